"""One subject of the correlate benchmark, in a process of its own: `python -m benchmarks.spark_correlate_subjects`.

It streams the files of a folder through its join, one file of each side a load, and prints a report as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType, TimestampType

from etl.spark.correlate import EMPTY_STATE, Correlation, correlate, tagged
from etl.spark.session import local_session

Digest = tuple[int, int]
Deliver = Callable[[DataFrame, int], pa.Table]
CORES = 2
OURS: Mapping[str, Literal["driver", "tasks"]] = {"headrace, in the driver": "driver", "headrace, in tasks": "tasks"}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SPARK: Mapping[str, Mapping[str, str]] = {
    "Spark, HDFS-backed state": {},
    "Spark, RocksDB": {"spark__sql__streaming__stateStore__providerClass": ROCKSDB},
    "Spark, RocksDB changelog": {
        "spark__sql__streaming__stateStore__providerClass": ROCKSDB,
        "spark__sql__streaming__stateStore__rocksdb__changelogCheckpointing__enabled": "true",
    },
}
SUBJECTS = (*OURS, *SPARK)
_FOR_SPARK = {
    # Its state lives on the heap: with the default of 1 GiB it ends with OutOfMemoryError after 1.6 M rows.
    "spark__driver__memory": "8g",
    # Not our session's options for short jobs: a long run with large heaps is better off with Java's own.
    "spark__driver__extraJavaOptions": "-Xss16m",
    "spark__sql__streaming__noDataMicroBatches__enabled": "false",
}


def digest(results: pa.Table) -> Digest:
    """Rows, and a sum over pairs that a wrong partner changes."""
    first, second = (results.column(name).to_numpy().astype(np.uint64) for name in ("v0", "v1"))
    mixed = first * np.uint64(0x9E3779B97F4A7C15) + second
    return results.num_rows, int((mixed * mixed).sum(dtype=np.uint64))


@dataclass
class Report:
    """Seconds of each trigger, processor seconds of all processes up to the end of each load, what came out, the most
    memory seen after a load, and what the state takes on disk."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    rows: int = 0
    checksum: int = 0
    memory_bytes: int = 0
    state_bytes: int = 0

    @property
    def answer(self) -> Digest:
        return self.rows, self.checksum

    def take(self, results: pa.Table) -> None:
        rows, checksum = digest(results) if results.num_rows else (0, 0)
        self.rows += rows
        self.checksum = (self.checksum + checksum) % 2**64
        memory, processor = _used_by_all()
        self.memory_bytes = max(self.memory_bytes, memory)
        self.processor.append(processor)

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Report:
        return cls(**stored)  # type: ignore[arg-type]


def run(subject: str, folder: Path) -> Report:
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        own = Path(scratch)
        settings = {"spark__local__dir": str(own / "local"), "spark__sql__shuffle__partitions": str(CORES)}
        if subject in SPARK:
            settings |= {**_FOR_SPARK, **SPARK[subject]}
        spark = local_session("benchmark", own / "spark.log", master=f"local[{CORES}]", **settings)
        try:
            sides = [_read(spark, folder / f"side-{side}", side) for side in (0, 1)]
            report = _ours(sides, own, OURS[subject]) if subject in OURS else _theirs(sides, own)
        finally:
            spark.stop()
        state = own / ("state" if subject in OURS else "checkpoint/state")
        report.state_bytes = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    return report


def _ours(sides: list[DataFrame], folder: Path, where: Literal["driver", "tasks"]) -> Report:
    columns = [sf.struct(*side.columns) for side in sides]
    none = [sf.lit(None).cast(side.schema) for side in sides]
    aside = sf.lit(None).cast("struct<payload: string>")
    first = sides[0].select(*tagged(sf.lit(0), [columns[0], none[1]], aside))
    second = sides[1].select(*tagged(sf.lit(1), [none[0], columns[1]], aside))
    plan = Correlation(
        join="symmetric-hash",
        sides=tuple(to_arrow_schema(side.schema, timezone="UTC") for side in sides),
        on=(("k", "k"),),
        groups=8 * CORES,
        folder=str(folder / "state"),
        event_times=(None, None),
        where=where,
        memory_bytes=1 << 30,
        live_bytes=4 << 30,
    )
    state = EMPTY_STATE

    def deliver(rows: DataFrame, load: int) -> pa.Table:
        nonlocal state
        correlated = correlate(rows, plan, f"benchmark/{load:08d}", state, {})
        state = correlated.state
        return correlated.results

    return _streamed(first.union(second), folder, deliver)


def _theirs(sides: list[DataFrame], folder: Path) -> Report:
    return _streamed(sides[0].join(sides[1], "k"), folder, lambda results, _: results.toArrow())


def _streamed(stream: DataFrame, folder: Path, deliver: Deliver) -> Report:
    report = Report()
    query = (
        stream.writeStream.foreachBatch(lambda rows, load: report.take(deliver(rows, load)))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    triggers = [progress for progress in query.recentProgress if progress.numInputRows]
    report.seconds = [progress.durationMs["triggerExecution"] / 1000 for progress in triggers]
    return report


def _read(spark: SparkSession, folder: Path, side: int) -> DataFrame:
    schema = StructType().add("k", LongType()).add(f"v{side}", LongType()).add(f"at{side}", TimestampType())
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def _used_by_all() -> tuple[int, float]:
    """Resident bytes and processor seconds of this process, Java and the Python workers.

    What forked workers share is counted for each of them.
    """
    here = psutil.Process()
    memory, processor = 0, 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            memory += process.memory_info().rss
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        processor += times.user + times.system
    return memory, processor


if __name__ == "__main__":
    print(json.dumps(asdict(run(sys.argv[1], Path(sys.argv[2])))))
