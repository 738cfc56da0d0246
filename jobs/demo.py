"""The demo: generated feeds through the whole pipeline into a DuckDB file, with counts that are known beforehand.

State: one folder with the feeds, Spark's checkpoint, the pipeline's packages, snapshots and relations, and the
warehouse. A mark says that a demo made it. `known.json` is written after everything else of the feeds and deleted
before anything else, so that its presence means: this folder can be continued.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, select

from etl.errors import BadInput
from etl.spark.session import local_session, require_java
from etl.storage.run_lock import Run
from jobs.demo_feeds import FeedSettings, KnownNumbers, write_feeds
from jobs.demo_report import agrees, print_load, print_summary
from jobs.order_pipeline import OrderPipeline
from jobs.order_stream import run_stream
from warehouse.engine import connect
from warehouse.load_package import LoadPackage
from warehouse.schema import create_schema, load_ledger

_MARK = ".headrace-demo"
# Spark tries a task again when its Python worker dies, which `local[*]` would not.
_MASTER = "local[*,4]"


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
    _mark(folder)
    pipeline = OrderPipeline(folder / "pipeline", connect(f"duckdb:///{warehouse_file(folder)}"))
    with pipeline.running() as run:
        known = _feeds_to_continue(folder) if resume else None
        if known is None:
            known = _started_over(folder, run, settings)
        console.print(f"feeds: {known.orders_rows:,} orders, {known.payments_rows:,} payments in {folder / 'feeds'}")
        create_schema(pipeline.engine)
        began = time.monotonic()
        done = _run_stream(folder, pipeline, run, console)
        totals = _totals(pipeline.engine)
        print_summary(console, known, totals)
        _print_speed(console, done, time.monotonic() - began)
        return agrees(known, totals)


def _run_stream(folder: Path, pipeline: OrderPipeline, run: Run, console: Console) -> DemoRun:
    """All files that are there, one load after the other."""
    done = DemoRun()

    def after_load(package: LoadPackage, seconds: float) -> None:
        done.seconds.append(seconds)
        done.rows.append(package.counts["orders_rows"] + package.counts["payments_rows"])
        print_load(console, package, seconds)

    # The quality gate takes seconds to import and the first load needs it; Java's start leaves a core for that.
    threading.Thread(target=import_module, args=("great_expectations",)).start()
    with console.status("starting Spark") as status:
        spark = local_session("headrace-demo", folder / "spark.log", _MASTER, spark__local__dir=str(folder / "scratch"))
        status.update("loading")
        try:
            run_stream(spark, pipeline, run, folder / "feeds", folder / "checkpoint", after_load=after_load)
        finally:
            spark.stop()
    return done


def _totals(engine: Engine) -> Counter[str]:
    """What the warehouse says, summed over its load ledger."""
    totals: Counter[str] = Counter()
    with engine.connect() as connection:
        for counts in connection.scalars(select(load_ledger.c.counts)):
            totals.update(counts)
    return totals


def _print_speed(console: Console, done: DemoRun, seconds: float) -> None:
    """The first load is told apart: it waits for Spark's workers and compilers."""
    if len(done.rows) > 1:
        later = sum(done.seconds[1:])
        console.print(
            f"\n{sum(done.rows[1:]) / later:,.0f} rows/s ({later / (len(done.rows) - 1):.2f} s a load) after a first "
            f"load of {done.seconds[0]:.1f} s",
            soft_wrap=True,
        )
    console.print(f"{sum(done.rows):,} rows in {seconds:.1f} s, the start of Spark included", soft_wrap=True)


def _mark(folder: Path) -> None:
    """Only a folder that a demo made is emptied: it bears a mark."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: name a folder for the demo")
    strangers = sorted(path.name for path in folder.glob("*")) if not (folder / _MARK).exists() else []
    if strangers:
        raise BadInput(f"folder {folder} holds {strangers[0]!r}, which no demo made: name an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        raise BadInput(f"cannot write to folder {folder}: {error.strerror}; name another with --folder") from error


def _started_over(folder: Path, run: Run, settings: FeedSettings) -> KnownNumbers:
    """An empty folder with new feeds; only the mark and what says that this run is at work stay."""
    _known_file(folder).unlink(missing_ok=True)
    kept = {folder / _MARK, run.folder.parent, run.folder}
    for path in (*folder.iterdir(), *run.folder.parent.iterdir()):
        if path in kept:
            continue
        if path.is_dir():
            # A killed run's Java ends a moment later and may still be tidying up its scratch files.
            shutil.rmtree(path, ignore_errors=path.name == "scratch")
        else:
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
