"""The hybrid joins beside what people use today: which surrogate key has each row of a stream?

R holds 10 M rows (int32 source, 17-byte text, int64 surrogate key); a subject may use a fifth of R's size in plain
Arrow columns. Batches of 10 k and 100 k rows; one row in ten asks for a key that R does not hold. A sample is one
batch: times are medians over batches after warm-up, rows/s follow from them, "time ratio" compares with the first line.
Every subject is a process of its own and takes its turns of a few batches; ours uses one thread, DuckDB, polars and
pyarrow use two; "processor time" adds up all threads of a process and is the steadier figure on a machine that others
use too. All files are in the page cache, except in the cold case.

The tables:
- each stream and batch size, all subjects; those that need all of R in memory say so; then other miss ratios;
- memory: the peak of each subject over all these streams, beyond Python and the libraries. Pages of R that are mapped
  into the process count as resident; they belong to the page cache, which can take them back. "memory counted" is what
  our operator counts against its budget;
- MESHJOIN beside hash-partitioned, after a warm-up that fills its queue; "rows waiting" are those that it had taken in
  and not answered yet;
- R of 1, 10 and 50 M rows, with the memory of the 10 M case;
- cold: all files of R are dropped from the page cache before every batch. "bytes read" is what the process had fetched
  from the disk for it, "disk time" what the disk takes for as many bytes of the same files in sequence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.key_streams import ROW_BYTES, Digest, KeyStream, StreamBatch
from benchmarks.lookup_data import LookupData
from benchmarks.lookup_peers import DuckDb, Polars, PyArrow, RocksDb, Sqlite
from benchmarks.lookup_workers import ColdBatch, Opener, Timed, Worker, read_into_page_cache
from benchmarks.lookups import HybridJoin
from benchmarks.runner import Measurement, Question, WrongAnswer, main, times

KINDS = ("uniform", "zipf", "locality")
MEMORY_SHARE = 0.2


@dataclass(frozen=True)
class Pace:
    """How a stream is put to the subjects; the limits in seconds let a slow one off with fewer batches."""

    batch_rows: int
    warm_up: int
    batches: int
    warm_up_seconds: float = 2.0
    seconds: float = 4.0
    fewest: int = 5
    turn: int = 4


@dataclass(frozen=True)
class Sizes:
    rows: int
    growing_rows: tuple[int, ...]
    paces: tuple[Pace, ...]
    filling_pace: Pace
    """With a warm-up that fills the queue of MESHJOIN."""
    cold_pace: Pace
    theta: int = 65_536

    @property
    def memory_bytes(self) -> int:
        return int(MEMORY_SHARE * ROW_BYTES * self.rows)


FULL = Sizes(
    rows=10_000_000,
    growing_rows=(1_000_000, 10_000_000, 50_000_000),
    paces=(Pace(10_000, warm_up=24, batches=40), Pace(100_000, warm_up=8, batches=12, turn=2)),
    filling_pace=Pace(100_000, warm_up=16, batches=5, warm_up_seconds=60, turn=1),
    cold_pace=Pace(10_000, warm_up=24, batches=5),
)
QUICK = Sizes(
    rows=200_000,
    growing_rows=(100_000, 200_000),
    paces=(Pace(1_000, 4, 8, 0.3, 0.3), Pace(5_000, 2, 4, 0.3, 0.3, turn=2)),
    filling_pace=Pace(5_000, warm_up=8, batches=5, turn=1),
    cold_pace=Pace(1_000, warm_up=4, batches=5),
    theta=4_096,
)


def cases(quick: bool) -> Iterator[Question]:
    """All tables. Relations are built when they are asked for first; processes live as long as their tables."""
    sizes = QUICK if quick else FULL
    data, memory = LookupData(sizes.rows, sizes.theta), sizes.memory_bytes
    with ExitStack() as stack:
        workers = _opened(stack, {**_ours(data, memory), **_peers(data, memory)})
        for pace in sizes.paces:
            for kind in KINDS:
                yield _stream_case(KeyStream(kind, sizes.rows), pace, workers)
        for miss_ratio in (0.0, 0.5, 1.0):
            yield _stream_case(KeyStream("uniform", sizes.rows, miss_ratio), sizes.paces[0], workers)
        yield MemoryTable(f"peak memory over all these streams, {_mebibytes(memory)} allowed", workers)
    with ExitStack() as stack:
        workers = _opened(stack, _meshjoin_beside_ours(data, memory))
        yield _stream_case(KeyStream("uniform", sizes.rows), sizes.filling_pace, workers, "MESHJOIN, ")
    yield from _growth_cases(sizes)
    for kind in KINDS:
        yield ColdCase(KeyStream(kind, sizes.rows), sizes.cold_pace, _partitioned(data, memory))


class Subject(NamedTuple):
    """How a process opens it, and where the files of its relation are; None for one that keeps R in memory."""

    opener: Opener
    folder: Path | None


class Asked(NamedTuple):
    """A subject and the stream that it is asked about."""

    worker: Worker
    stream: KeyStream


@dataclass(frozen=True)
class StreamCase:
    """Subjects side by side: turns of some batches, warm-up first, all answers checked when the stream has ended."""

    name: str
    pace: Pace
    asked: Mapping[str, Asked]

    def measure(self, rounds: int) -> list[Measurement]:
        """The number of batches is the pace's; `rounds` are those of cases that repeat the same input."""
        batches = {stream: _batches(stream, self.pace) for _, stream in self.asked.values()}
        runs = [_Run(name, worker, self.pace, batches[stream]) for name, (worker, stream) in self.asked.items()]
        going = runs
        while going:
            going = [run for run in going if run.take_turn()]
        for run in runs:
            run.finish(self.name)
        first = median(runs[0].seconds)
        return [line for run in runs for line in self._lines(run, first)]

    def _lines(self, run: _Run, first_seconds: float) -> Iterator[Measurement]:
        yield from times(self.name, run.name, run.seconds, first_seconds, self.pace.batch_rows)
        processor = median(batch.processor_seconds for batch in run.timed)
        yield Measurement(self.name, run.name, "processor_time", processor, "s")
        if run.waiting:
            yield Measurement(self.name, run.name, "rows_waiting", run.waiting, "rows")


@dataclass
class _Run:
    """One subject on its way through its stream."""

    name: str
    worker: Worker
    pace: Pace
    batches: Sequence[StreamBatch]
    timed: list[Timed] = field(default_factory=list)
    waiting: int = 0
    """Rows whose answers were owed when the stream ended."""
    _offered: int = 0
    _warmed_up: bool = False
    _warm_up_seconds: float = 0.0

    @property
    def seconds(self) -> list[float]:
        return [batch.seconds for batch in self.timed]

    def take_turn(self) -> bool:
        """The next batches; False when there is nothing more to do."""
        if self._is_done():
            return False
        if self._offered == 0:
            self.worker.start()
        turn = self.batches[self._offered : self._offered + self.pace.turn]
        taken = self.worker.turn(turn)
        self._offered += len(turn)
        if self._warmed_up:
            self.timed += taken
        else:
            self._warm_up_seconds += sum(batch.seconds for batch in taken)
            enough = self._warm_up_seconds >= self.pace.warm_up_seconds
            self._warmed_up = enough or self._offered >= self.pace.warm_up
        return True

    def finish(self, case: str) -> None:
        offered = self.batches[: self._offered]
        answered = self.worker.answered()
        self.waiting = sum(batch.rows.num_rows for batch in offered) - answered.hits - answered.misses
        _check(case, self.name, self.worker.finish(), offered)

    def _is_done(self) -> bool:
        long_enough = sum(self.seconds) >= self.pace.seconds and len(self.timed) >= self.pace.fewest
        return long_enough or len(self.timed) >= self.pace.batches or self._offered >= len(self.batches)


@dataclass(frozen=True)
class ColdCase:
    """Batches whose relation lies on the disk only; join memory, filters and cache are warm."""

    stream: KeyStream
    pace: Pace
    subjects: Mapping[str, Subject]

    @property
    def name(self) -> str:
        return f"cold, {self.stream.kind} stream, batches of {self.pace.batch_rows:,} rows"

    def measure(self, rounds: int) -> list[Measurement]:
        """As many batches as the pace says, whatever `rounds`; one process at a time, since it must unmap the files."""
        batches = _batches(self.stream, self.pace)
        lines: list[Measurement] = []
        for subject in self.subjects:
            with ExitStack() as stack:
                worker = _opened(stack, {subject: self.subjects[subject]})[subject]
                worker.start()
                worker.turn(batches[: self.pace.warm_up])
                cold = worker.cold_turn(batches[self.pace.warm_up :])
                _check(self.name, subject, worker.finish(), batches)
            first = lines[0].value if lines else median(batch.seconds for batch in cold)
            lines += self._lines(subject, cold, first)
        return lines

    def _lines(self, subject: str, cold: Sequence[ColdBatch], first_seconds: float) -> Iterator[Measurement]:
        seconds = [batch.seconds for batch in cold]
        disk_seconds = median(batch.disk_seconds for batch in cold)
        yield from times(self.name, subject, seconds, first_seconds, rows=None)
        yield Measurement(self.name, subject, "bytes_read", median(batch.bytes_read for batch in cold), "bytes")
        yield Measurement(self.name, subject, "disk_time", disk_seconds, "s")
        yield Measurement(self.name, subject, "over_disk_time", median(seconds) / disk_seconds, "x")


@dataclass(frozen=True)
class MemoryTable:
    """What the processes have held at their peak."""

    name: str
    workers: Mapping[str, Worker]

    def measure(self, rounds: int) -> list[Measurement]:
        """Nothing runs here; `rounds` means nothing."""
        lines = []
        for name, worker in self.workers.items():
            memory = worker.memory()
            lines.append(Measurement(self.name, name, "peak_memory", memory.peak, "bytes"))
            lines.append(Measurement(self.name, name, "mapped_files", memory.mapped, "bytes"))
            counted = worker.counters().get("memory_counted")
            if counted is not None:
                lines.append(Measurement(self.name, name, "memory_counted", counted, "bytes"))
        return lines


def _ours(data: LookupData, memory_bytes: int) -> dict[str, Subject]:
    """Those of the catalogue that answer a batch at once."""
    by_range = data.relation("range")
    auto = Subject(partial(HybridJoin, "auto", by_range, memory_bytes), by_range)
    return {**_partitioned(data, memory_bytes), "auto": auto}


def _partitioned(data: LookupData, memory_bytes: int) -> dict[str, Subject]:
    by_hash, by_range = data.relation("hash"), data.relation("range")
    return {
        "hash-partitioned": Subject(partial(HybridJoin, "hash-partitioned", by_hash, memory_bytes), by_hash),
        "range-partitioned": Subject(partial(HybridJoin, "range-partitioned", by_range, memory_bytes), by_range),
    }


def _peers(data: LookupData, memory_bytes: int) -> dict[str, Subject]:
    duckdb, indexed, sqlite = data.duckdb(indexed=False), data.duckdb(indexed=True), data.sqlite()
    return {
        "SQLite, clustered key": Subject(partial(Sqlite, sqlite, memory_bytes), sqlite),
        "RocksDB, multi-get": Subject(partial(RocksDb, data.rocksdb(), memory_bytes), data.rocksdb()),
        "DuckDB": Subject(partial(DuckDb, duckdb, memory_bytes), duckdb),
        "DuckDB, indexed": Subject(partial(DuckDb, indexed, memory_bytes), indexed),
        "pyarrow, all of R in RAM": Subject(partial(PyArrow, data.rows), None),
        "polars, all of R in RAM": Subject(partial(Polars, data.rows), None),
    }


def _meshjoin_beside_ours(data: LookupData, memory_bytes: int) -> dict[str, Subject]:
    by_hash = data.relation("hash")
    waits = partial(HybridJoin, "meshjoin", by_hash, memory_bytes, works_at_once=False)
    return {
        "hash-partitioned": Subject(partial(HybridJoin, "hash-partitioned", by_hash, memory_bytes), by_hash),
        "meshjoin": Subject(waits, by_hash),
    }


def _growth_cases(sizes: Sizes) -> Iterator[Question]:
    """Larger and larger relations, the same memory: one table for each join."""
    relations = {rows: _partitioned(LookupData(rows, sizes.theta), sizes.memory_bytes) for rows in sizes.growing_rows}
    for subject in relations[sizes.rows]:
        with ExitStack() as stack:
            workers = _opened(stack, {f"R of {rows:,} rows": ours[subject] for rows, ours in relations.items()})
            streams = [KeyStream("locality", rows) for rows in relations]
            asked = dict(zip(workers, map(Asked, workers.values(), streams), strict=True))
            pace = replace(sizes.paces[0], warm_up=2 * sizes.paces[0].warm_up)
            yield StreamCase(
                f"{subject}, R grows, locality stream, {_mebibytes(sizes.memory_bytes)} of memory", pace, asked
            )


def _opened(stack: ExitStack, subjects: Mapping[str, Subject]) -> dict[str, Worker]:
    """Processes that end with the stack, with their files in the page cache."""
    workers = {}
    for name, (opener, folder) in subjects.items():
        if folder is not None:
            read_into_page_cache(folder)
        workers[name] = worker = Worker(name, opener, folder)
        stack.callback(worker.close)
    return workers


def _stream_case(stream: KeyStream, pace: Pace, workers: Mapping[str, Worker], prefix: str = "") -> StreamCase:
    misses = f"{stream.miss_ratio:.0%} misses"
    name = f"{prefix}{stream.kind} stream, {misses}, batches of {pace.batch_rows:,} rows, R of {stream.relation_rows:,}"
    return StreamCase(name, pace, {name: Asked(worker, stream) for name, worker in workers.items()})


def _batches(stream: KeyStream, pace: Pace) -> list[StreamBatch]:
    return list(stream.batches(pace.batch_rows, pace.warm_up + pace.batches))


def _check(case: str, subject: str, found: Digest, offered: Sequence[StreamBatch]) -> None:
    right = Digest()
    for batch in offered:
        right = right.plus(batch.expected)
    if found != right:
        raise WrongAnswer(f"in {case!r}: {subject} says {found}, by definition it is {right}")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main(cases))
