"""The demo: generated feeds through the whole pipeline into a DuckDB file, with counts that are known beforehand.

State: one folder with the feeds, Spark's checkpoint, the pipeline's packages, snapshots and relations, and the
warehouse. A mark says that a demo made it, a lock that one is running in it. `known.json` is written after everything
else of the feeds and deleted before anything else, so that its presence means: this folder can be continued.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from rich.console import Console
from sqlalchemy import Engine, select

from etl.errors import BadInput, PipelineBusy
from etl.spark.session import local_session, require_java
from jobs.demo_feeds import FeedSettings, KnownNumbers, write_feeds
from jobs.demo_report import agrees, print_load, print_summary
from jobs.order_feeds import read_feeds
from jobs.order_load import OrderPipeline, run_load
from warehouse.engine import connect
from warehouse.schema import create_schema, load_ledger

_MARK = ".headrace-demo"
_LOCK = f"{_MARK}.lock"


@dataclass
class DemoRun:
    """What this run did itself; a run that is continued finds some of the work done."""

    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def warehouse_file(folder: Path) -> Path:
    return folder / "warehouse.duckdb"


def run_demo(folder: Path, settings: FeedSettings, console: Console, resume: bool = False) -> bool:
    """Run it; True when every count equals the number that the generator knows.

    It starts over, unless `resume` asks to go on with what a run that was broken off left behind.
    """
    require_java()
    _refuse_foreign(folder)
    with _held(folder):
        known = _feeds_to_continue(folder) if resume else None
        if known is None:
            known = _started_over(folder, settings)
        console.print(f"feeds: {known.orders_rows:,} orders, {known.payments_rows:,} payments in {folder / 'feeds'}")
        engine = connect(f"duckdb:///{warehouse_file(folder)}")
        create_schema(engine)
        began = time.monotonic()
        run = _run_stream(folder, OrderPipeline(folder / "pipeline", engine), console)
        totals = _totals(engine)
        print_summary(console, known, totals)
        _print_speed(console, run, time.monotonic() - began)
        return agrees(known, totals)


def _run_stream(folder: Path, pipeline: OrderPipeline, console: Console) -> DemoRun:
    """All files that are there, one load after the other."""
    run = DemoRun()
    failures: list[Exception] = []

    def load(rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        try:
            package = run_load(pipeline, rows, batch_id)
        except Exception as failure:
            failures.append(failure)
            raise
        run.seconds.append(time.monotonic() - began)
        run.rows.append(package.counts["orders_rows"] + package.counts["payments_rows"])
        print_load(console, package, run.seconds[-1])

    # The quality gate takes seconds to import and the first load needs it; Java's start leaves a core for that.
    threading.Thread(target=import_module, args=("great_expectations",)).start()
    with console.status("starting Spark") as status:
        spark = local_session("headrace-demo", folder / "spark.log", spark__local__dir=str(folder / "scratch"))
        status.update("loading")
        try:
            query = (
                read_feeds(spark, folder / "feeds")
                .writeStream.foreachBatch(load)
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
    return run


def _totals(engine: Engine) -> Counter[str]:
    """What the warehouse says, summed over its load ledger."""
    totals: Counter[str] = Counter()
    with engine.connect() as connection:
        for counts in connection.scalars(select(load_ledger.c.counts)):
            totals.update(counts)
    return totals


def _print_speed(console: Console, run: DemoRun, seconds: float) -> None:
    """The first load is told apart: it waits for Spark's workers and compilers."""
    if len(run.rows) > 1:
        later = sum(run.seconds[1:])
        console.print(
            f"\n{sum(run.rows[1:]) / later:,.0f} rows/s ({later / (len(run.rows) - 1):.2f} s a load) after a first "
            f"load of {run.seconds[0]:.1f} s",
            soft_wrap=True,
        )
    console.print(f"{sum(run.rows):,} rows in {seconds:.1f} s, the start of Spark included", soft_wrap=True)


def _refuse_foreign(folder: Path) -> None:
    """Only a folder that a demo made is emptied."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: name a folder for the demo")
    strangers = sorted(path.name for path in folder.glob("*")) if not (folder / _MARK).exists() else []
    if strangers:
        raise BadInput(f"folder {folder} holds {strangers[0]!r}, which no demo made: name an empty folder")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One run at a time: the kernel frees the lock when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise BadInput(f"cannot write to folder {folder}: {error.strerror}; name another with --folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineBusy(f"another demo is running in {folder}: wait for it or name another folder") from None
        yield


def _started_over(folder: Path, settings: FeedSettings) -> KnownNumbers:
    """An empty folder with new feeds."""
    (folder / _MARK).touch()
    _known_file(folder).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            # A killed run's Java ends a moment later and may still be tidying up its scratch files.
            shutil.rmtree(path, ignore_errors=path.name == "scratch")
        elif path.name not in (_MARK, _LOCK):
            path.unlink()
    try:
        return write_feeds(folder / "feeds", settings)
    except ValueError as error:
        raise BadInput(f"these feeds cannot be written: {error}") from error


def _feeds_to_continue(folder: Path) -> KnownNumbers | None:
    known = _known_file(folder)
    return KnownNumbers.from_json(known.read_text()) if known.exists() else None


def _known_file(folder: Path) -> Path:
    return folder / "feeds" / "known.json"
