"""The benchmark of the hybrid joins: every subject answers right, a wrong one is caught, data is built once."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import lookup_workers
from benchmarks.hybrid import Asked, Pace, StreamCase
from benchmarks.key_streams import Digest, KeyStream, StreamBatch, digest
from benchmarks.lookup_data import LookupData
from benchmarks.lookup_peers import DuckDb, Polars, PyArrow, RocksDb, Sqlite
from benchmarks.lookup_workers import Worker
from benchmarks.lookups import Answer, HybridJoin, Lookup
from benchmarks.runner import WrongAnswer
from etl.storage.lookup_store import open_relation

ROWS = 20_000
THETA = 1_024
MEMORY = 400_000
PACE = Pace(500, warm_up=2, batches=6, turn=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LookupData:
    return LookupData(ROWS, THETA, tmp_path_factory.mktemp("bench"))


SUBJECTS: dict[str, Callable[[LookupData], Lookup]] = {
    "hash-partitioned": lambda data: HybridJoin("hash-partitioned", data.relation("hash"), MEMORY),
    "range-partitioned": lambda data: HybridJoin("range-partitioned", data.relation("range"), MEMORY),
    "auto": lambda data: HybridJoin("auto", data.relation("range"), MEMORY),
    "meshjoin": lambda data: HybridJoin("meshjoin", data.relation("hash"), MEMORY, works_at_once=False),
    "duckdb": lambda data: DuckDb(data.duckdb(indexed=False), MEMORY),
    "duckdb, indexed": lambda data: DuckDb(data.duckdb(indexed=True), MEMORY),
    "sqlite": lambda data: Sqlite(data.sqlite(), MEMORY),
    "rocksdb": lambda data: RocksDb(data.rocksdb(), MEMORY),
    "polars": lambda data: Polars(data.rows),
    "pyarrow": lambda data: PyArrow(data.rows),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_gives_the_right_answers_stream_after_stream(subject: str, data: LookupData) -> None:
    lookup = SUBJECTS[subject](data)
    for stream in (KeyStream("zipf", ROWS), KeyStream("locality", ROWS, miss_ratio=0.5)):
        lookup.start()
        found = expected = Digest()
        for batch in stream.batches(2_000, 3):
            found = found.plus(total(lookup.answer(batch.rows)))
            expected = expected.plus(batch.expected)
        assert found.plus(total(lookup.finish())) == expected


class Forgetful:
    """Takes the last row of every batch for a miss."""

    def start(self) -> None:
        return

    def answer(self, batch: pa.RecordBatch) -> Answer:
        known = [int(key[-8:]) // 2 + 1 if int(key[-1]) % 2 == 0 else None for key in batch.column("key").to_pylist()]
        return [(batch.column("row"), pa.array([*known[:-1], None], pa.int64()))]

    def finish(self) -> Answer:
        return []

    def counters(self) -> dict[str, int]:
        return {}


class Failing(Forgetful):
    def answer(self, batch: pa.RecordBatch) -> Answer:
        raise ValueError("lost its files")


@pytest.fixture
def opened() -> Iterator[Callable[[str, lookup_workers.Opener, Path | None], Worker]]:
    workers: list[Worker] = []

    def open_worker(name: str, opener: lookup_workers.Opener, folder: Path | None = None) -> Worker:
        workers.append(Worker(name, opener, folder))
        return workers[-1]

    yield open_worker
    for worker in workers:
        worker.close()


def test_a_case_times_batches_and_catches_the_wrong_subject(data: LookupData, opened: Callable[..., Worker]) -> None:
    folder = data.relation("hash")
    stream = KeyStream("uniform", ROWS, miss_ratio=0.0)
    ours = Asked(opened("ours", partial(HybridJoin, "hash-partitioned", folder, MEMORY), folder), stream)
    found = {line.metric: line.value for line in StreamCase("right", PACE, {"ours": ours}).measure(rounds=1)}
    assert found["throughput"] == pytest.approx(PACE.batch_rows / found["time_median"])
    assert "rows_waiting" not in found

    forgetful = Asked(opened("forgetful", Forgetful), stream)
    with pytest.raises(WrongAnswer, match=r"forgetful says Digest\(hits=3992, misses=8,"):
        StreamCase("wrong", PACE, {"ours": ours, "forgetful": forgetful}).measure(rounds=1)


def test_rows_that_wait_when_the_stream_ends_are_told_and_still_checked(
    data: LookupData, opened: Callable[..., Worker]
) -> None:
    folder = data.relation("hash")
    mesh = partial(HybridJoin, "meshjoin", folder, MEMORY, works_at_once=False)
    late = Asked(opened("meshjoin", mesh, folder), KeyStream("uniform", ROWS))
    lines = StreamCase("late", PACE, {"meshjoin": late}).measure(rounds=1)
    waiting = next(line.value for line in lines if line.metric == "rows_waiting")
    assert 0 < waiting <= PACE.batch_rows * (PACE.warm_up + PACE.batches)


def test_memory_and_cold_batches_are_those_of_the_worker(data: LookupData, opened: Callable[..., Worker]) -> None:
    folder = data.relation("hash")
    worker = opened("ours", partial(HybridJoin, "hash-partitioned", folder, MEMORY), folder)
    batches = list(KeyStream("uniform", ROWS).batches(500, 4))
    worker.start()
    assert len(worker.turn(batches[:2])) == 2
    memory = worker.memory()
    assert 0 < memory.mapped < memory.peak
    cold = worker.cold_turn(batches[2:])
    assert all(batch.seconds > 0 and batch.disk_seconds > 0 for batch in cold)
    assert worker.finish() == total_expected(batches)
    assert worker.counters()["memory_counted"] <= MEMORY


def test_dropping_leaves_no_page_of_the_relation_mapped(data: LookupData) -> None:
    folder = data.relation("range")
    lookup = HybridJoin("range-partitioned", folder, MEMORY)
    (batch,) = KeyStream("uniform", ROWS).batches(2_000, 1)
    lookup.answer(batch.rows)
    assert resident(folder) > 0
    lookup_workers.drop_from_page_cache(folder)
    assert resident(folder) == 0
    (again,) = KeyStream("uniform", ROWS, seed=2).batches(2_000, 1)
    assert total(lookup.answer(again.rows)) == again.expected


def test_a_failure_in_a_worker_reaches_the_one_who_asked(opened: Callable[..., Worker]) -> None:
    worker = opened("failing", Failing)
    with pytest.raises(RuntimeError, match=r"failing failed:(.|\n)*lost its files"):
        worker.turn(list(KeyStream("uniform", ROWS).batches(10, 1)))


def test_data_is_built_once_and_never_taken_half(tmp_path: Path) -> None:
    data = LookupData(2_000, THETA, tmp_path)
    folder = data.relation("hash")
    half = folder.with_name("sqlite.partial")
    half.mkdir()
    (half / "relation.sqlite").write_bytes(b"interrupted")
    assert Sqlite(data.sqlite(), MEMORY).answer(next(KeyStream("uniform", 2_000).batches(10, 1)).rows)
    assert not half.exists()
    written = {file: file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("*")) if file.is_file()}
    assert (data.relation("hash"), data.sqlite().parent) == (folder, folder.parent)
    assert {file: file.stat().st_mtime_ns for file in written} == written


def test_a_relation_that_cannot_be_opened_is_built_anew(tmp_path: Path) -> None:
    data = LookupData(2_000, THETA, tmp_path)
    shutil.rmtree(data.relation("hash") / "_log")
    assert open_relation(data.relation("hash")).rows == 2_000


def total(answer: Answer) -> Digest:
    found = Digest()
    for rows, surrogates in answer:
        found = found.plus(digest(rows, surrogates))
    return found


def total_expected(batches: list[StreamBatch]) -> Digest:
    expected = Digest()
    for batch in batches:
        expected = expected.plus(batch.expected)
    return expected


def resident(folder: Path) -> int:
    return sum(mapping.resident for mapping in lookup_workers.mappings(folder))
