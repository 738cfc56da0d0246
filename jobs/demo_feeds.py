"""The demo's two feeds, orders and payments, as JSON-lines files with numbers that are known beforehand.

Idea: every row is *sent* at an instant, and the file that carries it is the hour of that instant. An ordinary
row is sent when it happens; a late row happened days before the feed's start; a re-sent row is sent once more
in the same file or the next. What becomes of each order is drawn first (its fate), and the known numbers are
counted from the fates, not from the files: a test reads the files and counts again by definition.

Two source systems number their orders, customers and products alike, so `C00042` means one customer on the
web and another in the store: only (source_system, natural key) identifies.

Invariants: the same settings give the same bytes; an order has one fate; a copy comes at most one file after
the first, so a watermark of one hour never takes it for late, however files are grouped into loads.
Limits: a late row is late only if an earlier load was taken before it: with at most two files a load.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["FeedSettings", "KnownNumbers", "PAYMENT_METHODS", "SOURCE_SYSTEMS", "write_feeds"]

SOURCE_SYSTEMS = ("web", "store")

PAYMENT_METHODS = {
    "CC": "credit card",
    "DC": "debit card",
    "PP": "payment provider",
    "BT": "bank transfer",
    "GC": "gift card",
    "CA": "cash",
}
UNKNOWN_METHODS = ("XX", "Q7", "cc")  # codes are case-sensitive: "cc" is no known code

FIRST_HOUR = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = 3_600_000  # instants are milliseconds since FIRST_HOUR
DAY = 24 * HOUR
MOST_FILES_TO_PAYMENT = 2
MEAN_PAYMENT_DELAY = 20 * 60_000
FIRST_LATE_FILE = 2

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FeedSettings:
    """How much to write. `orders` counts the orders placed; every special number is taken out of them."""

    orders: int = 40_000
    files: int = 8
    seed: int = 20260301
    customers: int = 6_000  # in each source system
    products: int = 400  # in each source system
    skew: float = 1.0  # exponent of the Zipf-like popularity of customers and products
    resent_orders: int = 120
    resent_payments: int = 80
    unknown_codes: int = 60
    malformed_orders: int = 40
    malformed_payments: int = 30
    late_orders: int = 30
    late_payments: int = 20
    lost_orders: int = 100  # the payment comes, its order never does

    def __post_init__(self) -> None:
        for field in fields(self):
            lowest = 1 if field.name in ("orders", "files", "customers", "products") else 0
            if getattr(self, field.name) < lowest:
                raise ValueError(f"FeedSettings.{field.name} is {getattr(self, field.name)}; use {lowest} or more")
        if self.late_orders + self.late_payments and self.files <= FIRST_LATE_FILE:
            raise ValueError(
                f"late rows come in file {FIRST_LATE_FILE} or later, but there are only {self.files} files: "
                f"ask for {FIRST_LATE_FILE + 1} files or more, or for no late rows"
            )


@dataclass(frozen=True)
class KnownNumbers:
    """What a correct pipeline must count on the feeds.

    A good row is neither malformed nor late. `matched` counts the join of all good rows, copies and unknown
    codes included; `facts` the distinct pairs that load; `customers` and `products` those in the facts.
    """

    orders_rows: int
    payments_rows: int
    malformed: int
    late: int
    unknown_codes: int
    duplicates: int
    matched: int
    facts: int
    customers: int
    products: int
    quarantined: int
    unpaid_orders: int
    orderless_payments: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "KnownNumbers":
        return cls(**json.loads(text))


def write_feeds(folder: Path, settings: FeedSettings | None = None) -> KnownNumbers:
    """Writes `orders/`, `payments/` and `known.json` under the folder, which must hold no feeds yet."""
    settings = settings or FeedSettings()
    for feed in ("orders", "payments"):
        if (folder / feed).exists() and any((folder / feed).iterdir()):
            raise FileExistsError(f"{folder / feed} already holds files: delete it or name another folder")
    random = np.random.default_rng(settings.seed)
    placed = _place_orders(random, settings)
    fates = _draw_fates(random, settings, placed)
    orders = _order_lines(random, settings, placed, fates)
    payments = _payment_lines(random, settings, placed, fates)
    known = _count(placed, fates, orders_rows=len(orders.lines), payments_rows=len(payments.lines))
    _write_feed(folder / "orders", "orders", orders, settings.files)
    _write_feed(folder / "payments", "payments", payments, settings.files)
    _publish(folder / "known.json", known.to_json(), modified=_end_of_file(settings.files))
    return known


class _Fate(IntEnum):
    ORDINARY = 0
    UNPAID = 1  # its payment would be sent after the last file
    RESENT_ORDER = 2
    RESENT_PAYMENT = 3
    UNKNOWN_CODE = 4
    MALFORMED_ORDER = 5
    MALFORMED_PAYMENT = 6
    LATE_ORDER = 7
    LATE_PAYMENT = 8
    LOST_ORDER = 9


_LOADED = (_Fate.ORDINARY, _Fate.RESENT_ORDER, _Fate.RESENT_PAYMENT)
_WITHOUT_GOOD_PAYMENT = (_Fate.UNPAID, _Fate.MALFORMED_PAYMENT, _Fate.LATE_PAYMENT)
_WITHOUT_GOOD_ORDER = (_Fate.LOST_ORDER, _Fate.MALFORMED_ORDER, _Fate.LATE_ORDER)


@dataclass(frozen=True)
class _PlacedOrders:
    """One entry an order, in the order of placing."""

    source: Integers
    order_number: Integers
    payment_number: Integers
    customer: Integers
    product: Integers
    method: Integers
    quantity: Integers
    cents: Integers
    ordered: Integers
    paid: Integers


@dataclass(frozen=True)
class _Lines:
    """The rows of one feed as text, each with the instant it is sent."""

    lines: list[str]
    sent: Integers


def _place_orders(random: np.random.Generator, settings: FeedSettings) -> _PlacedOrders:
    count = settings.orders
    source = random.choice(len(SOURCE_SYSTEMS), size=count, p=[0.6, 0.4]).astype(np.int64)
    ordered = np.sort(random.integers(0, settings.files * HOUR, size=count))
    delay = 1 + random.exponential(MEAN_PAYMENT_DELAY, size=count).astype(np.int64)
    payment_end = (ordered // HOUR + MOST_FILES_TO_PAYMENT + 1) * HOUR
    paid = np.minimum(ordered + delay, payment_end - 1)
    product = _popular(random, source, settings.products, settings.skew)
    prices = random.integers(199, 20_000, size=(len(SOURCE_SYSTEMS), settings.products + 1))
    quantity = random.integers(1, 6, size=count)
    return _PlacedOrders(
        source=source,
        order_number=_number_per_source(source),
        payment_number=_number_per_source(source, by=paid),
        customer=_popular(random, source, settings.customers, settings.skew),
        product=product,
        method=random.integers(0, len(PAYMENT_METHODS), size=count),
        quantity=quantity,
        cents=quantity * prices[source, product],
        ordered=ordered,
        paid=paid,
    )


def _draw_fates(random: np.random.Generator, settings: FeedSettings, placed: _PlacedOrders) -> Integers:
    fates = np.full(settings.orders, _Fate.ORDINARY, dtype=np.int64)
    fates[placed.paid >= settings.files * HOUR] = _Fate.UNPAID
    first_late = FIRST_LATE_FILE * HOUR
    _deal(random, fates, _Fate.LATE_ORDER, settings.late_orders, placed.ordered >= first_late)
    _deal(random, fates, _Fate.LATE_PAYMENT, settings.late_payments, placed.paid >= first_late)
    anywhere = np.ones(settings.orders, dtype=np.bool_)
    for fate, count in (
        (_Fate.RESENT_ORDER, settings.resent_orders),
        (_Fate.RESENT_PAYMENT, settings.resent_payments),
        (_Fate.UNKNOWN_CODE, settings.unknown_codes),
        (_Fate.MALFORMED_ORDER, settings.malformed_orders),
        (_Fate.MALFORMED_PAYMENT, settings.malformed_payments),
        (_Fate.LOST_ORDER, settings.lost_orders),
    ):
        _deal(random, fates, fate, count, anywhere)
    return fates


def _deal(
    random: np.random.Generator, fates: Integers, fate: _Fate, count: int, eligible: npt.NDArray[np.bool_]
) -> None:
    """Gives the fate to that many eligible orders which are still ordinary."""
    candidates = np.flatnonzero(eligible & (fates == _Fate.ORDINARY))
    if count > len(candidates):
        raise ValueError(
            f"only {len(candidates)} orders are left for {count} of {fate.name}: "
            "raise FeedSettings.orders or lower that number"
        )
    fates[random.choice(candidates, size=count, replace=False)] = fate


def _order_lines(random: np.random.Generator, settings: FeedSettings, placed: _PlacedOrders, fates: Integers) -> _Lines:
    happened = placed.ordered.copy()
    _make_late(random, happened, fates == _Fate.LATE_ORDER)
    columns = zip(
        placed.source.tolist(),
        placed.order_number.tolist(),
        placed.customer.tolist(),
        placed.product.tolist(),
        placed.quantity.tolist(),
        placed.cents.tolist(),
        _timestamps(happened),
        strict=True,
    )
    lines = [
        f'{{"source_system":"{SOURCE_SYSTEMS[source]}","order_no":"{number:07d}","customer_no":"C{customer:05d}",'
        f'"product_no":"P{product:04d}","quantity":{quantity},"amount":{cents // 100}.{cents % 100:02d},'
        f'"ordered_at":"{ordered_at}"}}'
        for source, number, customer, product, quantity, cents, ordered_at in columns
    ]
    _break(lines, np.flatnonzero(fates == _Fate.MALFORMED_ORDER), _spoil_order)
    sent = fates != _Fate.LOST_ORDER
    return _with_copies(random, settings, lines, placed.ordered, sent, fates == _Fate.RESENT_ORDER)


def _payment_lines(
    random: np.random.Generator, settings: FeedSettings, placed: _PlacedOrders, fates: Integers
) -> _Lines:
    happened = placed.paid.copy()
    _make_late(random, happened, fates == _Fate.LATE_PAYMENT)
    codes = np.array([*PAYMENT_METHODS, *UNKNOWN_METHODS])
    method = placed.method.copy()
    unknown = fates == _Fate.UNKNOWN_CODE
    method[unknown] = len(PAYMENT_METHODS) + random.integers(0, len(UNKNOWN_METHODS), size=int(unknown.sum()))
    columns = zip(
        placed.source.tolist(),
        placed.payment_number.tolist(),
        placed.order_number.tolist(),
        codes[method].tolist(),
        placed.cents.tolist(),
        _timestamps(happened),
        strict=True,
    )
    lines = [
        f'{{"source_system":"{SOURCE_SYSTEMS[source]}","payment_no":"{payment:07d}","order_no":"{order:07d}",'
        f'"method":"{code}","paid_amount":{cents // 100}.{cents % 100:02d},"paid_at":"{paid_at}"}}'
        for source, payment, order, code, cents, paid_at in columns
    ]
    _break(lines, np.flatnonzero(fates == _Fate.MALFORMED_PAYMENT), _spoil_payment)
    sent = fates != _Fate.UNPAID
    return _with_copies(random, settings, lines, placed.paid, sent, fates == _Fate.RESENT_PAYMENT)


def _with_copies(
    random: np.random.Generator,
    settings: FeedSettings,
    lines: list[str],
    first_sent: Integers,
    is_sent: npt.NDArray[np.bool_],
    is_resent: npt.NDArray[np.bool_],
) -> _Lines:
    once = np.flatnonzero(is_sent)
    again = np.flatnonzero(is_resent)
    # Never beyond the next file: there a watermark of one hour would make the copy late, not a duplicate.
    latest = np.minimum((first_sent[again] // HOUR + 2) * HOUR, settings.files * HOUR)
    second_sent = random.integers(first_sent[again] + 1, np.maximum(latest, first_sent[again] + 2))
    rows = np.concatenate([once, again])
    sent = np.concatenate([first_sent[once], np.minimum(second_sent, settings.files * HOUR - 1)])
    order = np.argsort(sent, kind="stable")
    return _Lines(lines=[lines[row] for row in rows[order].tolist()], sent=sent[order])


def _count(placed: _PlacedOrders, fates: Integers, orders_rows: int, payments_rows: int) -> KnownNumbers:
    def having(*wanted: _Fate) -> int:
        return int(np.isin(fates, wanted).sum())

    loaded = np.isin(fates, _LOADED)
    malformed = having(_Fate.MALFORMED_ORDER, _Fate.MALFORMED_PAYMENT)
    late = having(_Fate.LATE_ORDER, _Fate.LATE_PAYMENT)
    unknown_codes = having(_Fate.UNKNOWN_CODE)
    duplicates = having(_Fate.RESENT_ORDER, _Fate.RESENT_PAYMENT)
    facts = int(loaded.sum())
    return KnownNumbers(
        orders_rows=orders_rows,
        payments_rows=payments_rows,
        malformed=malformed,
        late=late,
        unknown_codes=unknown_codes,
        duplicates=duplicates,
        matched=facts + duplicates + unknown_codes,
        facts=facts,
        customers=_distinct(placed.source[loaded], placed.customer[loaded]),
        products=_distinct(placed.source[loaded], placed.product[loaded]),
        quarantined=malformed + late + unknown_codes,
        unpaid_orders=having(*_WITHOUT_GOOD_PAYMENT),
        orderless_payments=having(*_WITHOUT_GOOD_ORDER),
    )


def _spoil_order(line: str, kind: int) -> str:
    row = json.loads(line)
    if kind % 4 == 0:
        return line[: len(line) // 2]
    if kind % 4 == 1:
        del row["customer_no"]
    elif kind % 4 == 2:
        row["amount"] = "twelve"
    else:
        row["quantity"] = -(kind % 3)
    return json.dumps(row, separators=(",", ":"))


def _spoil_payment(line: str, kind: int) -> str:
    row = json.loads(line)
    if kind % 3 == 0:
        return line[: len(line) // 2]
    if kind % 3 == 1:
        del row["order_no"]
    else:
        row["paid_amount"] = "n/a"
    return json.dumps(row, separators=(",", ":"))


def _break(lines: list[str], rows: Integers, spoil: Callable[[str, int], str]) -> None:
    for kind, row in enumerate(rows.tolist()):
        lines[row] = spoil(lines[row], kind)


def _make_late(random: np.random.Generator, happened: Integers, late: npt.NDArray[np.bool_]) -> None:
    happened[late] = -random.integers(DAY, 6 * DAY, size=int(late.sum()))


def _popular(random: np.random.Generator, source: Integers, members: int, skew: float) -> Integers:
    """Draws a member number from 1 for each order: Zipf-like by rank, other ranks in each source system."""
    cumulated = np.cumsum(np.arange(1, members + 1, dtype=np.float64) ** -skew)
    rank = np.searchsorted(cumulated, random.random(len(source)) * cumulated[-1], side="right")
    member_of_rank = np.stack([random.permutation(members) + 1 for _ in SOURCE_SYSTEMS])
    drawn: Integers = member_of_rank[source, np.minimum(rank, members - 1)]
    return drawn


def _number_per_source(source: Integers, by: Integers | None = None) -> Integers:
    """Numbers the rows of each source system from 1, in their own order or by increasing `by`."""
    order = np.arange(len(source)) if by is None else np.argsort(by, kind="stable")
    numbers = np.empty(len(source), dtype=np.int64)
    for system in range(len(SOURCE_SYSTEMS)):
        rows = order[source[order] == system]
        numbers[rows] = np.arange(1, len(rows) + 1)
    return numbers


def _distinct(source: Integers, member: Integers) -> int:
    return len(np.unique(member * len(SOURCE_SYSTEMS) + source))


def _timestamps(instants: Integers) -> list[str]:
    start = np.datetime64(FIRST_HOUR.replace(tzinfo=None), "ms")
    stamps: list[str] = np.datetime_as_string(start + instants.astype("timedelta64[ms]"), timezone="UTC").tolist()
    return stamps


def _end_of_file(number: int) -> int:
    """When the hour of that file ends, in nanoseconds: a file source takes the files in this order."""
    return (int(FIRST_HOUR.timestamp() * 1_000) + (number + 1) * HOUR) * 1_000_000


def _write_feed(folder: Path, name: str, feed: _Lines, files: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ends = np.searchsorted(feed.sent, np.arange(1, files + 1) * HOUR, side="left").tolist()
    starts = [0, *ends[:-1]]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        text = "".join(f"{line}\n" for line in feed.lines[start:end])
        _publish(folder / f"{name}-{number:04d}.json", text, modified=_end_of_file(number))


def _publish(path: Path, text: str, modified: int) -> None:
    """The file appears whole; until then its name starts with a dot, which Spark's file source skips."""
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(text, encoding="utf-8")
    os.utime(temporary, ns=(modified, modified))
    temporary.replace(path)
