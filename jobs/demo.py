"""The demo: generated feeds through the whole pipeline into a DuckDB file, with counts that are known beforehand."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from etl.errors import BadInput, PipelineBusy
from etl.spark.session import local_session
from jobs.demo_feeds import FeedSettings, KnownNumbers, write_feeds
from jobs.order_feeds import read_feeds
from jobs.order_load import OrderPipeline, run_load
from warehouse.engine import connect
from warehouse.inspect import run_query
from warehouse.load_package import LoadPackage
from warehouse.schema import create_schema

FOLDER = Path("build/demo")
_MARK = ".headrace-demo"


def warehouse_file(folder: Path) -> Path:
    return folder / "warehouse.duckdb"


def run_demo(folder: Path, settings: FeedSettings, console: Console, resume: bool = False) -> bool:
    """Run it; True when every count equals the number that the generator knows.

    It starts over, unless `resume` asks to go on with what a run that was broken off left behind.
    """
    with _held(folder):
        known = _known_numbers(folder, settings) if resume else _started_over(folder, settings)
        console.print(
            f"feeds: {known.orders_rows:,} orders and {known.payments_rows:,} payments in {folder / 'feeds'}"
        )
        engine = connect(f"duckdb:///{warehouse_file(folder)}")
        create_schema(engine)
        pipeline = OrderPipeline(folder / "pipeline", engine)
        began = time.monotonic()
        seconds = _run_stream(folder, pipeline, console)
        _print_summary(folder, known, _totals(folder), seconds, time.monotonic() - began, console)
        return _as_known(known, _totals(folder))


def _run_stream(folder: Path, pipeline: OrderPipeline, console: Console) -> float:
    """All files that are there, one load after the other; the seconds spent in loads."""
    seconds = 0.0
    failures: list[Exception] = []

    def load(lines: DataFrame, batch_id: int) -> None:
        nonlocal seconds
        began = time.monotonic()
        try:
            package = run_load(pipeline, lines, batch_id)
        except Exception as failure:
            failures.append(failure)
            raise
        took = time.monotonic() - began
        seconds += took
        console.print(_progress_line(package, took), highlight=False)

    with console.status("starting Spark"):
        spark = local_session("headrace-demo", folder / "spark.log", spark__local__dir=str(folder / "scratch"))
    try:
        stream = read_feeds(spark, folder / "feeds")
        query = (
            stream.writeStream.foreachBatch(load)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except StreamingQueryException:
        # Spark wraps what a load raised into pages of its own state; the load's own words say it better.
        if failures:
            raise failures[0] from None
        raise
    finally:
        spark.stop()
    return seconds


def _progress_line(package: LoadPackage, seconds: float) -> str:
    counts = package.counts
    rows = counts["orders_rows"] + counts["payments_rows"]
    return (
        f"  load {package.load_id.batch_id}: {rows:,} rows in, {counts['matched']:,} matched, {counts['facts']:,} facts, "
        f"{counts['duplicates']} duplicates, {counts['quarantined']} quarantined  ({rows / seconds:,.0f} rows/s)"
    )


def _totals(folder: Path) -> dict[str, int]:
    """What the warehouse says, summed over its load ledger."""
    engine = connect(f"duckdb:///{warehouse_file(folder)}", read_only=True)
    totals: Counter[str] = Counter()
    for counts in run_query(engine, "select counts from load_ledger").column("counts").to_pylist():
        totals.update(_parsed_counts(counts))
    return dict(totals)


def _parsed_counts(stored: str | dict[str, int]) -> dict[str, int]:
    import json

    return json.loads(stored) if isinstance(stored, str) else stored  # type: ignore[no-any-return]


_SHOWN = {
    "orders_rows": "orders in",
    "payments_rows": "payments in",
    "matched": "matched",
    "facts": "facts loaded",
    "customers": "new customer keys",
    "products": "new product keys",
    "duplicates": "duplicates dropped",
    "malformed": "malformed",
    "late": "late",
    "unknown_codes": "unknown codes",
    "quarantined": "quarantined in all",
}


def _as_known(known: KnownNumbers, totals: dict[str, int]) -> bool:
    expected = asdict(known)
    return all(totals.get(name) == expected[name] for name in _SHOWN)


def _print_summary(
    folder: Path, known: KnownNumbers, totals: dict[str, int], load_seconds: float, seconds: float, console: Console
) -> None:
    expected = asdict(known)
    table = Table(show_edge=False, pad_edge=False)
    for heading, justify in (("", "left"), ("counted", "right"), ("known", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]  # one of rich's words
    for name, label in _SHOWN.items():
        counted = totals.get(name, 0)
        verdict = "as known" if counted == expected[name] else "[bold red]DIFFERS[/]"
        table.add_row(label, f"{counted:,}", f"{expected[name]:,}", verdict)
    console.print()
    console.print(table)
    rows = totals.get("orders_rows", 0) + totals.get("payments_rows", 0)
    if load_seconds:
        console.print(f"\n{rows / load_seconds:,.0f} rows/s in the loads, {seconds:.1f} s in all with Spark's start")
    console.print(f"\nInspect the tables by SQL ({warehouse_file(folder)}):")
    console.print("  .venv/bin/headrace inspect sales_by_method", highlight=False)
    console.print('  .venv/bin/headrace inspect "select * from fact_order limit 5"', highlight=False)


def _started_over(folder: Path, settings: FeedSettings) -> KnownNumbers:
    """An empty folder with new feeds. Only a folder that a demo made is emptied."""
    strangers = [path for path in folder.iterdir() if path.name not in (_MARK, f"{_MARK}.lock")]
    if strangers and not (folder / _MARK).exists():
        raise BadInput(f"folder {folder} holds {strangers[0].name!r}, which no demo made: name an empty folder")
    (folder / _MARK).touch()
    for path in strangers:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return write_feeds(folder / "feeds", settings)


def _known_numbers(folder: Path, settings: FeedSettings) -> KnownNumbers:
    known = folder / "feeds" / "known.json"
    if not known.exists():
        return _started_over(folder, settings)
    return KnownNumbers.from_json(known.read_text())


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One run at a time: the kernel frees the lock when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_MARK}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineBusy(f"another demo is running in {folder}: wait for it or name another folder") from None
        yield
