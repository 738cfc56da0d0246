"""One subject of the resolve benchmark in a process of its own: a session, a streaming query, its times and its memory.

    python -m benchmarks.spark_resolve_process JOB.json

The job says what to run and where; the outcome goes to the file that it names. A time is Spark's own for the whole
micro-batch ("triggerExecution": planning, reading, our code, the checkpoint's commit). Memory is that of the driver,
its JVM and all Python workers, by proportional set size: shared pages count once. Files that are mapped, most of all
those of R, are told apart: the system can take their pages back at any time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.key_streams import Digest, digest
from benchmarks.runner import WrongAnswer
from benchmarks.spark_resolve_peers import DEFAULT, SparkJoin
from benchmarks.spark_resolve_pipeline import ResolvePipeline
from benchmarks.spark_resolve_stream import FILES_PER_BATCH
from etl.spark.resolve import Way
from etl.spark.session import local_session

OURS, FLOOR = "headrace", "nothing but toArrow"
OURS_IN_TASKS = "headrace, in tasks"
_WAYS: dict[str, Way] = {OURS: "auto", OURS_IN_TASKS: "tasks"}

_JAVA_OPTIONS = "-Xss16m -XX:+UseParallelGC"
"""For loads that go on for long: all compilers on. The session's own options suit short jobs."""


@dataclass(frozen=True)
class Job:
    """Plain data, because it goes through a file; folders are written as text."""

    subject: str
    relation: str
    relation_rows: int
    stream: str
    folder: str
    outcome: str
    memory_bytes: int
    java_memory: str
    warm_up: int


@dataclass(frozen=True)
class Outcome:
    """Of all micro-batches, warm-up included; `steps` are ours only."""

    seconds: list[float]
    processor_seconds: float
    """Of one micro-batch after warm-up, on average; all threads of all processes."""
    answered: Digest
    memory: int
    mapped: int
    """How much of the memory was mapped files at that moment."""
    steps: dict[str, list[float]]


class _Subject(Protocol):
    def take(self, batch: DataFrame, batch_id: int) -> None: ...


def main(job_file: Path) -> None:
    job = Job(**json.loads(job_file.read_text(encoding="utf-8")))
    with _MemoryWatch() as watch:
        spark = _session(job)
        outcome = _run(spark, job, watch)
        spark.stop()
    Path(job.outcome).write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _session(job: Job) -> SparkSession:
    settings = {
        "spark__driver__extraJavaOptions": _JAVA_OPTIONS,
        "spark__driver__memory": job.java_memory,
        "spark__driver__maxResultSize": "0",
        "spark__local__dir": f"{job.folder}/scratch",
    }
    if job.subject == DEFAULT:
        settings |= {"spark__sql__shuffle__partitions": "200", "spark__sql__adaptive__enabled": "true"}
    return local_session("spark-resolve", Path(job.folder) / "spark.log", master="local[2]", **settings)


def _run(spark: SparkSession, job: Job, watch: _MemoryWatch) -> Outcome:
    schema = spark.read.parquet(job.stream).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(job.stream)
    if job.subject == FLOOR:
        return Outcome(*_times(stream, _Floor(), job), Digest(), *watch.highest, {})
    if job.subject in _WAYS:
        ours = ResolvePipeline(Path(job.relation), Path(job.folder) / "pipeline", job.memory_bytes, _WAYS[job.subject])
        taken = _times(stream, ours, job)
        return Outcome(*taken, _judged(ours, job), *watch.highest, ours.seconds)
    peer = SparkJoin(spark, Path(job.relation), job.subject)
    taken = _times(peer.on_stream(stream), peer, job)
    answers = peer.answers()
    return Outcome(*taken, digest(answers.column("row"), answers.column("surrogate")), *watch.highest, {})


class _Floor:
    def take(self, batch: DataFrame, _batch_id: int) -> None:
        batch.toArrow()


def _times(stream: DataFrame, subject: _Subject, job: Job) -> tuple[list[float], float]:
    """Run all micro-batches; how long each took, and what one took of the processors."""
    processor_seconds: list[float] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        if batch_id == job.warm_up:
            processor_seconds.append(_processor_seconds())
        subject.take(batch, batch_id)

    query = (
        stream.writeStream.foreachBatch(take)
        .option("checkpointLocation", f"{job.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    used = _processor_seconds() - processor_seconds[0]
    return seconds, used / (len(seconds) - job.warm_up)


def _processor_seconds() -> float:
    this = psutil.Process()
    used = 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:2])
    return used


def _judged(ours: ResolvePipeline, job: Job) -> Digest:
    """Of the facts, new customers counted as misses; raises when a new customer has a wrong or a second key."""
    facts, customers = ours.answers()
    new_keys = customers.column("customer_key")
    dense = pa.array(range(job.relation_rows + 1, job.relation_rows + 1 + customers.num_rows), pa.int64())
    if not new_keys.take(pc.sort_indices(new_keys)).combine_chunks().equals(dense):
        raise WrongAnswer(f"{job.subject}: {customers.num_rows} new keys are not dense after {job.relation_rows}")
    row = facts.column("order_no").cast(pa.int64())
    is_new = pc.greater(facts.column("customer_key"), job.relation_rows)
    asked = pq.read_table(job.stream, columns=["row", "key"]).sort_by("row").column("key")
    given = pc.index_in(facts.column("customer_key").filter(is_new), value_set=new_keys)
    if not customers.column("customer_no").take(given).equals(asked.take(row.filter(is_new))):
        raise WrongAnswer(f"{job.subject}: a fact has the key of another new customer")
    return digest(row, pc.if_else(is_new, pa.scalar(None, pa.int64()), facts.column("customer_key")))


class _Memory(NamedTuple):
    all: int
    mapped: int


class _MemoryWatch:
    """Looks twice a second at what this process and all that it started hold."""

    def __init__(self) -> None:
        self.highest = _Memory(0, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._end.wait(0.5):
            held = [_proportional_set(process) for process in [this, *this.children(recursive=True)]]
            self.highest = max(self.highest, _Memory(*map(sum, zip(*held, strict=True))))


def _proportional_set(process: psutil.Process) -> _Memory:
    with suppress(OSError, KeyError):  # it may have ended meanwhile
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        held = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return _Memory(held["Pss"], held["Pss_File"])
    return _Memory(0, 0)


def read_outcome(path: Path) -> Outcome:
    stored = cast(dict[str, object], json.loads(path.read_text(encoding="utf-8")))
    answered = Digest(*cast(list[int], stored.pop("answered")))
    build = cast(Callable[..., Outcome], Outcome)
    return build(answered=answered, **stored)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main(Path(sys.argv[1]))
