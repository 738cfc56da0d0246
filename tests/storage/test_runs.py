"""Run stores: one suite for the fake and the files, then what only files can suffer."""

import dataclasses
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etl.errors import BadInput, CorruptFile, ForeignFormat, MissingFile, StorageError
from etl.storage.disk_model import DiskModel, ModelledRuns, VirtualClock
from etl.storage.durable import DurableFolder
from etl.storage.memory_runs import MemoryRuns
from etl.storage.ports import RunName, RunStore, StoreCounters
from etl.storage.run_files import RunFiles

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("flag", pa.bool_())])


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([None if n % 3 == 0 else f"text {n}" for n in numbers], pa.string()),
            pa.array([n % 2 == 0 for n in numbers], pa.bool_()),
        ],
        schema=SCHEMA,
    )


def write(store: RunStore, *blocks: pa.RecordBatch) -> RunName:
    writer = store.writer("run", SCHEMA)
    for block in blocks:
        writer.append(block)
    return writer.seal()


@pytest.fixture(params=["memory", "files", "modelled"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    if request.param == "memory":
        return MemoryRuns()
    if request.param == "files":
        return RunFiles(tmp_path / "runs")
    return ModelledRuns(MemoryRuns(), DiskModel(0.01, 1e8, VirtualClock()))


# --- what every run store does


@given(cuts=st.lists(st.integers(0, 40), max_size=6), offset=st.integers(0, 9))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_come_back_as_they_were_appended(store: RunStore, cuts: list[int], offset: int) -> None:
    # Slices of one parent: a store must write the slice, not the parent's whole buffers.
    parent = batch_of(range(60))
    blocks = [parent.slice(offset, cut) for cut in cuts]
    run = write(store, *blocks)
    assert (run.blocks, run.rows) == (len(blocks), sum(cuts))
    reader = store.open(run)
    assert len(reader) == len(blocks)
    assert [reader.rows_in_block(number) for number in range(len(blocks))] == cuts
    for number in reversed(range(len(blocks))):
        assert reader.block(number).equals(blocks[number])
    reader.close()
    store.delete(run)


def test_a_block_does_not_share_memory_with_its_batch(store: RunStore) -> None:
    numbers = np.arange(5)
    writer = store.writer("run", pa.schema([("n", pa.int64())]))
    writer.append(pa.record_batch({"n": numbers}))
    numbers[:] = -1
    assert store.open(writer.seal()).block(0).column(0).to_pylist() == [0, 1, 2, 3, 4]


def test_a_run_is_invisible_until_it_is_sealed(store: RunStore) -> None:
    writer = store.writer("run", SCHEMA)
    writer.append(batch_of([1]))
    assert store.runs() == []
    run = writer.seal()
    assert store.runs() == [run.name]
    assert run.name.startswith("run-")


def test_an_abandoned_run_never_appears(store: RunStore) -> None:
    writer = store.writer("run", SCHEMA)
    writer.append(batch_of([1]))
    writer.abandon()
    writer.abandon()
    assert store.runs() == []
    with pytest.raises(BadInput, match=r"run-.* is sealed or abandoned"):
        writer.append(batch_of([2]))
    with pytest.raises(BadInput, match=r"run-.* is sealed or abandoned"):
        writer.seal()
    assert store.counters.runs_written == 0


def test_a_sealed_run_takes_no_more_blocks_and_survives_abandon(store: RunStore) -> None:
    writer = store.writer("run", SCHEMA)
    writer.append(batch_of([1]))
    run = writer.seal()
    with pytest.raises(BadInput, match=f"{run.name} is sealed or abandoned"):
        writer.append(batch_of([2]))
    with pytest.raises(BadInput, match=f"{run.name} is sealed or abandoned"):
        writer.seal()
    writer.abandon()
    assert store.open(run).block(0).equals(batch_of([1]))


def test_a_name_survives_its_journey_through_json(store: RunStore) -> None:
    run = write(store, batch_of([1, 2]), batch_of([3]))
    again = RunName.from_json(json.loads(json.dumps(run.to_json())))
    assert again == run
    assert store.open(again).block(1).equals(batch_of([3]))


@pytest.mark.parametrize("entry", ["name", "blocks", "rows", "bytes", "checksum"])
def test_a_json_that_is_no_run_name_is_refused_with_the_entry(entry: str) -> None:
    document = RunName("r-1", 1, 2, 3, "00").to_json()
    with pytest.raises(BadInput, match=f"'{entry}'"):
        RunName.from_json({key: value for key, value in document.items() if key != entry})
    with pytest.raises(BadInput, match=f"'{entry}'"):
        RunName.from_json(document | {entry: 1.5})


def test_names_are_never_given_twice(store: RunStore) -> None:
    first = write(store)
    store.delete(first)
    names = [write(store).name for _ in range(20)]
    assert len({first.name, *names}) == 21


def test_a_deleted_run_is_missing_for_new_readers_only(store: RunStore) -> None:
    run = write(store, batch_of([1]))
    reader = store.open(run)
    store.delete(run)
    store.delete(run)
    store.delete(run.name)
    assert store.counters.runs_deleted == 1
    assert store.runs() == []
    assert reader.block(0).equals(batch_of([1]))
    with pytest.raises(MissingFile, match=run.name):
        store.open(run)


def test_garbage_is_deleted_by_name(store: RunStore) -> None:
    kept, garbage = write(store, batch_of([1])), write(store, batch_of([2]))
    for name in set(store.runs()) - {kept.name}:
        store.delete(name)
    assert store.runs() == [kept.name]
    assert garbage.name != kept.name


def test_counters_tell_sequential_from_random_reads(store: RunStore) -> None:
    a = write(store, *(batch_of([n]) for n in range(4)))
    b = write(store, batch_of([9]), batch_of([10]))
    before = store.counters
    assert (before.runs_written, before.blocks_written, before.blocks_read) == (2, 6, 0)
    read_a, read_b = store.open(a), store.open(b)
    read_a.rows_in_block(2)  # looks at no block
    sequence = [
        (read_a, 0),
        (read_a, 1),
        (read_a, 2),
        (read_b, 0),
        (read_b, 1),
        (read_a, 3),
        (read_a, 3),
        (read_a, 2),
    ]
    for reader, number in sequence:
        reader.block(number)
    spent = store.counters.since(before)
    assert (spent.blocks_read, spent.sequential_reads, spent.random_reads) == (8, 3, 5)
    assert (spent.blocks_written, spent.runs_written) == (0, 0)


def test_bytes_read_equal_bytes_written(store: RunStore) -> None:
    run = write(store, batch_of(range(1000)), batch_of(range(10)).slice(3, 4))
    reader = store.open(run)
    for number in range(len(reader)):
        reader.block(number)
    assert store.counters.bytes_read == store.counters.bytes_written > 1000 * 8
    assert store.counters.bytes_written <= run.bytes <= store.counters.bytes_written + 4096


def test_a_block_of_another_schema_is_refused(store: RunStore) -> None:
    writer = store.writer("orders", SCHEMA)
    with pytest.raises(BadInput, match=r"run orders-.*number: int64.*this block has \(other: int8\)"):
        writer.append(pa.record_batch({"other": pa.array([1], pa.int8())}))
    writer.append(batch_of([1]))
    assert writer.seal().blocks == 1


@pytest.mark.parametrize("label", ["", "a/b", ".hidden", "x" * 101, "ü"])
def test_a_label_that_is_no_file_name_is_refused(store: RunStore, label: str) -> None:
    with pytest.raises(BadInput, match="run label"):
        store.writer(label, SCHEMA)


def test_a_dictionary_column_is_refused_by_name(store: RunStore) -> None:
    with pytest.raises(BadInput, match="run r: column 'coded' is dictionary-encoded"):
        store.writer("r", pa.schema([("coded", pa.dictionary(pa.int32(), pa.string()))]))


def test_blocks_that_do_not_exist_are_refused(store: RunStore) -> None:
    run = write(store, batch_of([1]))
    reader = store.open(run)
    for use in (reader.block, reader.rows_in_block):
        for number in (-1, 1):
            with pytest.raises(BadInput, match=f"{run.name} has no block {number}"):
                use(number)
    block = reader.block(0)
    reader.close()
    reader.close()
    with pytest.raises(BadInput, match=f"{run.name} is closed"):
        reader.block(0)
    assert block.equals(batch_of([1])), "a block outlives its reader"


def test_fake_and_files_count_alike(tmp_path: Path) -> None:
    counters = []
    stores: list[RunStore] = [MemoryRuns(), RunFiles(tmp_path)]
    for store in stores:
        runs = [write(store, *(batch_of(range(size)) for size in sizes)) for sizes in ([5, 0, 17], [1], [])]
        reader = store.open(runs[0])
        for number in (0, 1, 2, 0):
            reader.block(number)
        store.delete(runs[1])
        counters.append(store.counters)
    assert counters[0] == counters[1] != StoreCounters()


# --- what only files can suffer


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[RunFiles, RunName, Path]:
    store = RunFiles(tmp_path / "runs")
    run = write(store, batch_of(range(100)), batch_of(range(50)))
    return store, run, tmp_path / "runs" / f"{run.name}.arrow"


def test_another_process_reads_a_run_by_its_json(sealed: tuple[RunFiles, RunName, Path]) -> None:
    store, run, path = sealed
    script = (
        "import sys, json, pathlib; from etl.storage.ports import RunName;"
        "from etl.storage.run_files import RunFiles;"
        "run = RunName.from_json(json.loads(sys.argv[2]));"
        "print(sum(RunFiles(pathlib.Path(sys.argv[1])).open(run).block(1).column(0).to_pylist()))"
    )
    arguments = [sys.executable, "-c", script, str(path.parent), json.dumps(run.to_json())]
    assert int(subprocess.run(arguments, check=True, capture_output=True, timeout=60).stdout) == sum(range(50))
    assert store.runs() == [run.name], "opening the folder again swept nothing that is published"


def test_every_flipped_byte_and_every_cut_is_found(sealed: tuple[RunFiles, RunName, Path]) -> None:
    store, run, path = sealed
    whole = path.read_bytes()
    for position in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=str(path)):
            store.open(run)
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFile, match=str(path)):
            store.open(run)
    path.write_bytes(whole)
    assert store.open(run).block(0).equals(batch_of(range(100)))


def test_a_missing_file_is_named(sealed: tuple[RunFiles, RunName, Path]) -> None:
    store, run, path = sealed
    path.unlink()
    with pytest.raises(MissingFile, match=str(path)):
        store.open(run)


@pytest.mark.parametrize("metadata", [None, {b"headrace_format": b"headrace-run-999"}])
def test_an_arrow_file_of_another_format_is_named(tmp_path: Path, metadata: dict[bytes, bytes] | None) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA, metadata=metadata):
        pass
    stamp = DurableFolder(tmp_path).put("foreign.arrow", [sink.getvalue()])
    with pytest.raises(ForeignFormat, match=f"{tmp_path / 'foreign.arrow'} has format"):
        RunFiles(tmp_path).open(RunName("foreign", 0, 0, stamp.size, stamp.checksum))


def test_a_file_that_is_no_arrow_file_is_named(tmp_path: Path) -> None:
    stamp = DurableFolder(tmp_path).put("foreign.arrow", [b"a letter to a friend"])
    with pytest.raises(ForeignFormat, match=f"{tmp_path / 'foreign.arrow'} is not a run"):
        RunFiles(tmp_path).open(RunName("foreign", 0, 0, stamp.size, stamp.checksum))


def test_a_name_with_another_number_of_blocks_is_refused(sealed: tuple[RunFiles, RunName, Path]) -> None:
    store, run, path = sealed
    with pytest.raises(CorruptFile, match=f"{path} holds 2 blocks, but the run was sealed with 3"):
        store.open(dataclasses.replace(run, blocks=3))


def test_a_full_disk_leaves_no_run(tmp_path: Path) -> None:
    store = RunFiles(tmp_path)
    writer = store.writer("run", pa.schema([("n", pa.int64())]))
    block = pa.record_batch({"n": np.arange(1 << 17)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        with pytest.raises(StorageError, match=f"cannot use file {tmp_path}/run-.*arrow"):
            writer.append(block)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(BadInput, match="sealed or abandoned"):
        writer.seal()
    assert store.runs() == []
    assert list((tmp_path / ".temporary").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=str(tmp_path / "file" / "runs")):
        RunFiles(tmp_path / "file" / "runs")


def test_blocks_of_a_file_are_not_copied(sealed: tuple[RunFiles, RunName, Path]) -> None:
    store, run, _ = sealed
    before = pa.total_allocated_bytes()
    blocks = [store.open(run).block(number) for number in range(2)]
    assert pa.total_allocated_bytes() == before
    assert blocks[1].num_rows == 50


def test_the_runs_of_two_stores_on_one_folder_do_not_collide(tmp_path: Path) -> None:
    stores = [RunFiles(tmp_path), RunFiles(tmp_path)]
    runs = [write(store, batch_of([number])) for number, store in enumerate(stores) for _ in range(5)]
    assert stores[0].runs() == sorted(run.name for run in runs) == stores[1].runs()
    assert len(set(stores[0].runs())) == 10
    assert list((tmp_path / ".temporary").iterdir()) == []
