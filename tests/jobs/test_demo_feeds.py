"""The known numbers against an evaluation of the written files by definition, in plain Python."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.demo_feeds import PAYMENT_METHODS, FeedSettings, KnownNumbers, write_feeds

SMALL = FeedSettings(
    orders=600,
    files=5,
    customers=50,
    products=12,
    resent_orders=9,
    resent_payments=8,
    unknown_codes=7,
    malformed_orders=13,
    malformed_payments=11,
    late_orders=5,
    late_payments=4,
    lost_orders=6,
)
NOTHING_SPECIAL = dict.fromkeys(
    (
        "resent_orders",
        "resent_payments",
        "unknown_codes",
        "malformed_orders",
        "malformed_payments",
        "late_orders",
        "late_payments",
        "lost_orders",
    ),
    0,
)


@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        FeedSettings(**{**vars(SMALL), "seed": 1}),
        FeedSettings(**{**vars(SMALL), "seed": 2, "files": 3, "skew": 0.0}),
        FeedSettings(**{**vars(SMALL), "seed": 3, "files": 12, "resent_orders": 150, "resent_payments": 150}),
        FeedSettings(orders=1, files=1, seed=4, **NOTHING_SPECIAL),
        FeedSettings(orders=300, files=1, seed=5, **{**NOTHING_SPECIAL, "resent_orders": 100}),
        FeedSettings(orders=8_000, files=4, seed=6),
    ],
    ids=lambda settings: f"seed-{settings.seed}",
)
@pytest.mark.parametrize("files_per_load", [1, 2])
def test_known_numbers_hold_by_definition(tmp_path: Path, settings: FeedSettings, files_per_load: int) -> None:
    known = write_feeds(tmp_path, settings)
    assert known == _count_by_definition(tmp_path, files_per_load)
    assert known == KnownNumbers.from_json((tmp_path / "known.json").read_text())


def test_special_rows_come_in_the_numbers_asked_for(tmp_path: Path) -> None:
    known = write_feeds(tmp_path, SMALL)
    assert (known.malformed, known.late, known.unknown_codes, known.duplicates) == (24, 9, 7, 17)
    assert known.quarantined == 40
    assert known.orderless_payments == 13 + 5 + 6
    assert known.unpaid_orders > 11 + 4  # and those whose payment would come after the last file


def test_same_settings_give_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    write_feeds(first, SMALL)
    write_feeds(second, SMALL)
    write_feeds(other, FeedSettings(**{**vars(SMALL), "seed": 7}))
    assert _contents(first) == _contents(second)
    assert _contents(first) != _contents(other)


def test_files_are_whole_numbered_and_modified_in_order(tmp_path: Path) -> None:
    write_feeds(tmp_path, SMALL)
    for feed in ("orders", "payments"):
        names = [f"{feed}-{number:04d}.json" for number in range(SMALL.files)]
        by_modification = sorted((tmp_path / feed).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert [path.name for path in by_modification] == names
        assert len({path.stat().st_mtime_ns for path in by_modification}) == SMALL.files


def test_natural_keys_overlap_between_the_source_systems(tmp_path: Path) -> None:
    write_feeds(tmp_path, SMALL)
    orders, _ = _good_rows(tmp_path, "orders", files_per_load=1)
    for column in ("order_no", "customer_no", "product_no"):
        keys = {system: {row[column] for row in orders if row["source_system"] == system} for system in SYSTEMS}
        assert keys["web"] & keys["store"]


def test_popularity_is_skewed(tmp_path: Path) -> None:
    write_feeds(tmp_path, FeedSettings(orders=5_000, files=3, customers=500))
    orders, _ = _good_rows(tmp_path, "orders", files_per_load=1)
    popularity = Counter((row["source_system"], row["customer_no"]) for row in orders)
    favourites = sum(count for _, count in popularity.most_common(len(popularity) // 10))
    assert favourites > 0.4 * len(orders)


def test_a_folder_that_holds_feeds_is_refused(tmp_path: Path) -> None:
    write_feeds(tmp_path, SMALL)
    before = _contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"orders already holds files: delete it"):
        write_feeds(tmp_path, SMALL)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": 0}, r"FeedSettings.orders is 0; use 1 or more"),
        ({"late_orders": -1}, r"FeedSettings.late_orders is -1; use 0 or more"),
        ({"files": 2}, r"late rows come in file 2 or later, but there are only 2 files"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeedSettings(**{**vars(SMALL), **change})


def test_more_special_rows_than_orders_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"orders are left for 1000 of RESENT_ORDER"):
        write_feeds(tmp_path, FeedSettings(**{**vars(SMALL), "resent_orders": 1000}))
    assert not any(tmp_path.iterdir())


SYSTEMS = ("web", "store")
Row = dict[str, Any]
ONE_HOUR = timedelta(hours=1)
REQUIRED = {
    "orders": ("source_system", "order_no", "customer_no", "product_no", "quantity", "amount", "ordered_at"),
    "payments": ("source_system", "payment_no", "order_no", "method", "paid_amount", "paid_at"),
}
EVENT_TIME = {"orders": "ordered_at", "payments": "paid_at"}


@dataclass(frozen=True)
class Census:
    rows: int
    malformed: int
    late: int


def _count_by_definition(folder: Path, files_per_load: int) -> KnownNumbers:
    orders, orders_census = _good_rows(folder, "orders", files_per_load)
    payments, payments_census = _good_rows(folder, "payments", files_per_load)
    orders_by_key: dict[tuple[str, str], list[Row]] = {}
    for order in orders:
        orders_by_key.setdefault((order["source_system"], order["order_no"]), []).append(order)
    matched = [
        (order, payment)
        for payment in payments
        for order in orders_by_key.get((payment["source_system"], payment["order_no"]), [])
    ]
    known_code = [pair for pair in matched if pair[1]["method"] in PAYMENT_METHODS]
    facts = {(o["source_system"], o["order_no"], p["payment_no"]): o for o, p in known_code}
    order_keys = {(row["source_system"], row["order_no"]) for row in orders}
    payment_keys = {(row["source_system"], row["order_no"]) for row in payments}
    malformed = orders_census.malformed + payments_census.malformed
    late = orders_census.late + payments_census.late
    unknown_codes = len(matched) - len(known_code)
    return KnownNumbers(
        orders_rows=orders_census.rows,
        payments_rows=payments_census.rows,
        malformed=malformed,
        late=late,
        unknown_codes=unknown_codes,
        duplicates=len(known_code) - len(facts),
        matched=len(matched),
        facts=len(facts),
        customers=len({(row["source_system"], row["customer_no"]) for row in facts.values()}),
        products=len({(row["source_system"], row["product_no"]) for row in facts.values()}),
        quarantined=malformed + late + unknown_codes,
        unpaid_orders=len(order_keys - payment_keys),
        orderless_payments=len(payment_keys - order_keys),
    )


def _good_rows(folder: Path, feed: str, files_per_load: int) -> tuple[list[Row], Census]:
    """Reads the files as loads of some files each, with the watermark that the pipeline keeps."""
    good: list[Row] = []
    rows = malformed = late = 0
    highest: datetime | None = None
    files = sorted((folder / feed).iterdir())
    for start in range(0, len(files), files_per_load):
        watermark = highest - ONE_HOUR if highest else None
        for line in "".join(path.read_text() for path in files[start : start + files_per_load]).splitlines():
            rows += 1
            row = _parse(line, feed)
            if row is None:
                malformed += 1
                continue
            happened = datetime.fromisoformat(row[EVENT_TIME[feed]])
            highest = max(highest or happened, happened)
            if watermark and happened < watermark:
                late += 1
            else:
                good.append(row)
    return good, Census(rows=rows, malformed=malformed, late=late)


def _parse(line: str, feed: str) -> Row | None:
    try:
        row: Row = json.loads(line)
    except json.JSONDecodeError:
        return None
    amount = row.get("amount" if feed == "orders" else "paid_amount")
    if any(column not in row for column in REQUIRED[feed]) or not isinstance(amount, float):
        return None
    return None if feed == "orders" and row["quantity"] <= 0 else row


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
