"""The thesis' parallel join on real Spark: a skewed stream, and how groups and slots follow it (thesis 7.4, 7.5).

    python -m benchmarks.papers.parallel_on_spark            a minute or two
    python -m benchmarks.papers.parallel_on_spark --quick    does it run?

Two streams with Zipf keys go through the correlate host, the bucketed window join in each partition group. After a
while other keys become the hot ones; then the rate grows, then it falls. What a slot did in each load, as a share of
what it is said to be able to do, is printed and plotted; the results are compared with those of a single operator that
took all rows. The measure is rows taken and given, not seconds: two cores cannot show four slots' worth of speed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.papers.parallel_on_spark_plot import Load, write_plot
from etl import joins
from etl.joins.parallel.rebalancing import Rebalancing
from etl.spark.correlate import EMPTY_STATE, Correlation, correlate
from etl.spark.session import local_session
from etl.streams.arrival_models import zipf_keys

PLOT = Path("build/papers/parallel/on_spark.png")
KEYS = 20_000
SECOND = 1_000_000
SIDES = tuple(
    pa.schema([("k", pa.int64()), (f"n{side}", pa.int64()), (f"t{side}", pa.timestamp("us", "UTC"))]) for side in (0, 1)
)
JOIN = "bucketed-window"
# A load is a second of event time; rows meet if they are at most half a second apart.
SETTINGS: dict[str, object] = {"event_times": ("t0", "t1"), "windows": (SECOND // 2, SECOND // 2)}


@dataclass(frozen=True)
class Course:
    """Rows of each side, load by load, and the load at which other keys become the hot ones."""

    rates: tuple[int, ...]
    turn: int


def course(quick: bool) -> Course:
    """A steady stream whose hot keys change, then more of it, then little."""
    rate, loads = (500, 2) if quick else (8_000, 18)
    rates = [rate] * 2 * loads + [rate * 6 // 5] * loads + [rate * 3 // 10] * loads
    return Course(tuple(rates), turn=loads)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.parallel_on_spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and small loads")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE", help=f"where the plot goes ({PLOT})")
    options = parser.parse_args(arguments)
    chosen = course(options.quick)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    loads, results = run(chosen)
    console.print(_table(loads))
    expected = _by_one_operator(chosen)
    console.print(f"{results:,} results on Spark, {expected:,} by one operator", highlight=False)
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    write_plot(loads, options.plot)
    console.print(f"plot: {options.plot}", highlight=False)
    return 0 if results == expected else 1


def run(chosen: Course) -> tuple[list[Load], int]:
    """What each load did, and how many results came in all."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        scratch = str(Path(folder) / "scratch")
        spark = local_session("balance", Path(folder) / "spark.log", master="local[2]", spark__local__dir=scratch)
        try:
            return _loads(spark, chosen, _plan(Path(folder) / "state", chosen.rates[0]))
        finally:
            spark.stop()


def _plan(folder: Path, rate: int) -> Correlation:
    return Correlation(
        join=JOIN,
        sides=SIDES,
        on=(("k", "k"),),
        groups=40,
        folder=str(folder),
        event_times=("t0", "t1"),
        settings=SETTINGS,
        slots=4,
        # At the first rate all rows and results together are about three slots' worth.
        slot_rows=17 * rate // 8,
        rebalancing=Rebalancing(supply_threshold=0.9, consume_threshold=0.75, most_slots=6, epoch_length=2),
    )


def _loads(spark: SparkSession, chosen: Course, plan: Correlation) -> tuple[list[Load], int]:
    loads, results, state = [], 0, EMPTY_STATE
    for number, batches in enumerate(_stream(chosen)):
        rows = spark.createDataFrame(_tagged(batches))
        # All of a load's event times lie in its own second, and no later load is older.
        watermarks = dict.fromkeys((0, 1), number * SECOND)
        correlated = correlate(rows, plan, f"balance/{number:08d}", state, watermarks)
        state = correlated.state
        results += correlated.results.num_rows
        assert correlated.placement is not None
        work = [0.0] * correlated.placement.slots
        for group, done in correlated.work.items():
            work[correlated.placement.slot_of[group]] += done / plan.slot_rows
        reorganisation = correlated.reorganisation
        moves = len(reorganisation.moves) if reorganisation else 0
        loads.append(Load(tuple(work), moves, reorganisation.reason if reorganisation else ""))
    return loads, results


def _stream(chosen: Course) -> Iterator[list[pa.RecordBatch]]:
    """For each load, a batch of each side."""
    for number, rate in enumerate(chosen.rates):
        batches = []
        for side, schema in enumerate(SIDES):
            seed = 2 * number + side
            keys = zipf_keys(rate, KEYS, exponent=0.7, seed=seed)
            if number >= chosen.turn:
                keys = (keys + KEYS // 2) % KEYS
            times = np.sort(np.random.default_rng(seed).integers(0, SECOND, rate)) + number * SECOND
            batches.append(pa.record_batch([keys, np.arange(rate), pa.array(times).cast(schema.types[2])], schema))
        yield batches


def _tagged(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The sides one below the other, as the correlate host takes them."""
    tables = []
    for side, batch in enumerate(batches):
        structs = {f"row_{number}": pa.nulls(len(batch), pa.struct(list(SIDES[number]))) for number in (0, 1)}
        structs[f"row_{side}"] = batch.to_struct_array()
        aside = pa.nulls(len(batch), pa.struct([("payload", pa.string())]))
        tables.append(pa.table({"side": pa.array([side] * len(batch), pa.int32()), **structs, "aside": aside}))
    return pa.concat_tables(tables)


def _by_one_operator(chosen: Course) -> int:
    operator = joins.build(JOIN, sides=SIDES, on=[("k", "k")], memory_bytes=1 << 30, **SETTINGS)  # type: ignore[arg-type]
    results = 0

    def count(batch: pa.RecordBatch) -> None:
        nonlocal results
        results += batch.num_rows

    for batches in _stream(chosen):
        for side, batch in enumerate(batches):
            operator.offer(joins.Rows(side, batch), count)
    return results


def _table(loads: Sequence[Load]) -> Table:
    table = Table(title="reorganisations", title_justify="left")
    for heading in ("load", "slots", "fullest", "emptiest", "moves", "why"):
        table.add_column(heading, justify="left" if heading == "why" else "right")
    for number, load in enumerate(loads):
        if load.reason:
            fullest, emptiest = (f"{share:.2f}" for share in (max(load.work), min(load.work)))
            table.add_row(str(number), str(len(load.work)), fullest, emptiest, str(load.moves), load.reason)
    return table


if __name__ == "__main__":
    sys.exit(main())
