"""The lookup store on disk: damage, crashes and several processes at once."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from etl.errors import AlreadyPublished, CommitRace, CorruptFile, ForeignFormat, MissingFile, StorageError
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.relation import Relation
from etl.storage.relation_rows import segment_block, sliced_block
from etl.storage.relation_runs import write_run
from etl.storage.relation_state import RelationFile
from etl.storage.relation_version import OpenVersion
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered


@pytest.fixture
def relation(tmp_path: Path) -> Relation:
    start = create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, [numbered(range(50))], theta=9)
    return start.append(numbered(range(50, 60)), "load 1", 60)


def entry_of(folder: Path, version: int) -> Path:
    return folder / "_log" / f"{version:08d}.json"


def test_another_opening_sees_the_newest_or_the_wanted_version(relation: Relation, tmp_path: Path) -> None:
    newest, first = open_relation(tmp_path / "customers"), open_relation(tmp_path / "customers", 1)
    assert (newest.version, first.version) == (2, 1)
    assert all_rows(newest) == all_rows(relation)
    assert len(all_rows(first)) == 50
    assert replace(newest.describe(), age_seconds=0) == replace(relation.describe(), age_seconds=0)


def test_a_commit_writes_one_file_for_all_segments(relation: Relation, tmp_path: Path) -> None:
    files = sorted(path.name[:11] for path in (tmp_path / "customers" / "segments").glob("*.arrow"))
    assert files[0].startswith("base.")
    assert files[1] == "load-load_1"
    assert len(files) == 2


def test_opening_reads_no_block(relation: Relation, tmp_path: Path) -> None:
    assert open_relation(tmp_path / "customers").counters.blocks_read == 0


def test_a_folder_is_never_taken_over(relation: Relation, tmp_path: Path) -> None:
    with pytest.raises(AlreadyPublished, match=f"{tmp_path / 'customers'} holds a relation already"):
        create_relation(tmp_path / "customers", "other", SCHEMA, KEY)
    assert open_relation(tmp_path / "customers").name == "customers"


def test_a_folder_without_a_relation_is_named_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=f"{tmp_path / 'nowhere'} holds no relation"):
        open_relation(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty" / "_log").mkdir(parents=True)
    with pytest.raises(MissingFile, match=f"{tmp_path / 'empty'} holds no relation"):
        open_relation(tmp_path / "empty")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=str(tmp_path / "file" / "customers")):
        create_relation(tmp_path / "file" / "customers", "customers", SCHEMA, KEY)


# --- damage


def test_verify_names_the_damaged_file(relation: Relation, tmp_path: Path) -> None:
    relation.verify()
    path = next((tmp_path / "customers" / "segments").glob("load-*.arrow"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(CorruptFile, match=str(path)):
        relation.verify()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match=str(path)):
        relation.verify()
    path.unlink()
    with pytest.raises(MissingFile, match=str(path)):
        relation.verify()
    relation.at(1).verify()


def test_verify_finds_all_problems_at_once(relation: Relation, tmp_path: Path) -> None:
    base = next((tmp_path / "customers" / "segments").glob("base.*.arrow"))
    load = next((tmp_path / "customers" / "segments").glob("load-*.arrow"))
    entry = entry_of(tmp_path / "customers", 1)
    base.write_bytes(base.read_bytes()[:1000])
    load.unlink()
    entry.write_text(replaced(entry.read_text(), '"format_version": 2', '"format_version": 3'))
    found = relation.problems()
    assert [type(problem) for problem in found] == [ForeignFormat, CorruptFile, MissingFile]
    for problem, path in zip(found, (entry, base, load), strict=True):
        assert str(path) in str(problem)
    with pytest.raises(ForeignFormat, match="another release of Headrace") as raised:
        relation.verify()
    assert len(raised.value.__notes__) == 2


def test_verify_tells_a_file_of_another_program(relation: Relation, tmp_path: Path) -> None:
    path = next((tmp_path / "customers" / "segments").glob("load-*.arrow"))
    foreign = path.read_bytes().replace(b"headrace-run-1", b"headrace-run-9")
    path.write_bytes(foreign)
    state = relation._version.state
    checksum = xxhash.xxh3_128(foreign).hexdigest()
    files = [replace(file, run=replace(file.run, checksum=checksum)) for file in state.deltas]
    forged = Relation(OpenVersion(relation._version.parts, replace(state, files=(*state.files[:-1], *files))))
    assert [type(problem) for problem in forged.problems()] == [ForeignFormat]
    assert str(path) in str(forged.problems()[0])


@pytest.mark.parametrize("fault", ["hash", "order", "segment", "filter"])
def test_verify_finds_rows_that_no_probe_would_find(relation: Relation, fault: str) -> None:
    """Such a file has a right checksum: only a wrong program could have written it."""
    version = relation._version
    shape, partitioning = version.state.shape, version.state.partitioning
    rows = pa.concat_batches([version.table.read_segment(0)[0], version.table.read_segment(1)[0]])
    if fault == "hash":
        rows = rows.set_column(0, rows.schema.field(0), pa.array(np.arange(rows.num_rows, dtype=np.uint64)))
    block = sliced_block(shape, partitioning, rows)
    if fault == "order":
        block = pa.record_batch([*rows.take(pa.array(np.arange(rows.num_rows)[::-1])).columns, *block.columns[-2:]],
                                schema=shape.block)  # fmt: skip
    if fault == "segment":
        block = segment_block(shape, int(partitioning.boundaries[0]), rows)
    if fault == "filter":
        other = sliced_block(shape, partitioning, version.table.read_segment(2)[0].slice(0, 1))
        word = other.column("_filter").values
        encoded = pa.RunEndEncodedArray.from_arrays(pa.array([rows.num_rows], pa.int32()), word)
        block = block.set_column(block.num_columns - 1, shape.block.field("_filter"), encoded)
    run = write_run(version.parts.runs, shape, "forged", [block])
    assert run is not None
    state = replace(version.state, files=(RelationFile(run, False, 1, 1),), rows=rows.num_rows)
    found = Relation(OpenVersion(version.parts, state)).problems()
    assert len(found) == 1
    message = {"hash": "hash differs", "order": "not sorted", "segment": "wrong relation segment", "filter": "filter"}
    assert message[fault] in str(found[0])
    assert run.name in str(found[0])


def test_a_probe_does_not_go_past_a_file_that_is_missing_or_cut(relation: Relation, tmp_path: Path) -> None:
    path = next((tmp_path / "customers" / "segments").glob("base.*.arrow"))
    os.truncate(path, 1000)
    with pytest.raises(CorruptFile, match=str(path)):
        all_rows(open_relation(tmp_path / "customers"))
    path.unlink()
    with pytest.raises(MissingFile, match=str(path)):
        all_rows(open_relation(tmp_path / "customers"))


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, "the premise: the entry holds what the test damages"
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda text: text[: len(text) // 2], CorruptFile),
        (lambda text: "", CorruptFile),
        (lambda text: replaced(text, '"highest": 60', '"highest": 61'), CorruptFile),
        (lambda text: replaced(text, '"checksum": "', '"checksum": "0'), CorruptFile),
        (lambda text: replaced(text, '"format_version": 2', '"format_version": 3'), ForeignFormat),
        (lambda text: replaced(text, "headrace-relation", "iceberg"), ForeignFormat),
        (lambda text: "[1, 2]", ForeignFormat),
    ],
)
def test_a_damaged_or_foreign_log_entry_is_named(
    relation: Relation, tmp_path: Path, damage: Callable[[str], str], error: type[StorageError]
) -> None:
    path = entry_of(tmp_path / "customers", 2)
    path.write_text(damage(path.read_text()))
    with pytest.raises(error, match=str(path)):
        open_relation(tmp_path / "customers")
    assert open_relation(tmp_path / "customers", 1).rows == 50


def test_an_entry_under_a_wrong_number_is_named(relation: Relation, tmp_path: Path) -> None:
    third = entry_of(tmp_path / "customers", 3)
    third.write_bytes(entry_of(tmp_path / "customers", 2).read_bytes())
    with pytest.raises(CorruptFile, match=f"{third} describes version 2"):
        open_relation(tmp_path / "customers")


def test_a_missing_version_is_named(relation: Relation, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=str(entry_of(tmp_path / "customers", 9))):
        open_relation(tmp_path / "customers", 9)


def test_the_log_is_readable_json(relation: Relation, tmp_path: Path) -> None:
    entry = json.loads(entry_of(tmp_path / "customers", 2).read_text())
    assert (entry["format"], entry["format_version"]) == ("headrace-relation", 2)
    assert entry["content"]["difference"]["load_id"] == "load 1"


# --- several processes


_ROUNDS = 12
_barrier: Barrier


def test_two_processes_that_number_keys_at_once_agree(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    create_relation(folder, "customers", SCHEMA, KEY)
    _in_two_processes(_number_in_rounds, folder)
    newest = open_relation(folder)
    newest.verify()
    rows = all_rows(newest)
    keys = [row[:2] for row in rows]
    assert len(set(keys)) == len(keys), "no key has two numbers"
    assert sorted(row[2] for row in rows) == list(range(1, len(rows) + 1)), "dense, and no number has two keys"
    expected = {number for r in range(_ROUNDS) for writer in range(2) for number in _numbers_of(r, writer)}
    assert {row[1] for row in rows} == expected
    assert newest.highest == len(rows)
    loads = [f"writer {writer} load {r}" for r in range(_ROUNDS) for writer in range(2)]
    assert {newest.find(load) for load in loads} == set(range(2, 2 + 2 * _ROUNDS)), "all loads have succeeded"


def test_appending_and_compacting_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    create_relation(folder, "customers", SCHEMA, KEY, [numbered(range(1000, 1100))], theta=8)
    _in_two_processes(_append_or_compact_in_rounds, folder)
    newest = open_relation(folder)
    newest.verify()
    expected = [(number, f"load {number // 4}") for number in range(4 * 5 * _ROUNDS)]
    assert sorted((row[1], row[3]) for row in all_rows(newest) if row[3]) == expected
    assert newest.rows == 100 + len(expected)
    newest.compact().drop_versions(keep=1)
    named = {file.run.name for file in open_relation(folder)._version.state.files}
    found = {path.stem for path in (folder / "segments").glob("*.arrow")}
    assert {name for name in found if not name.startswith("loads.")} == named, "no file is left behind"


def _in_two_processes(work: Callable[[Path, int], None], folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=_remember_barrier, initargs=(context.Barrier(2),)) as pool:
        pool.starmap(work, [(folder, writer) for writer in range(2)], chunksize=1)


def _remember_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _numbers_of(round_: int, writer: int) -> range:
    """Keys of one load; half of them are asked for by the other writer too."""
    return range(20 * round_ + 5 * writer, 20 * round_ + 5 * writer + 10)


def _number_in_rounds(folder: Path, writer: int) -> None:
    try:
        for number in range(_ROUNDS):
            _barrier.wait(timeout=60)
            relation = open_relation(folder)
            _barrier.wait(timeout=60)
            rows = numbered(_numbers_of(number, writer)).drop_columns(["surrogate"])
            relation.append_new(rows, f"writer {writer} load {number}", "surrogate")
    except BaseException:
        _barrier.abort()  # or the other writer would wait in vain
        raise


def _append_or_compact_in_rounds(folder: Path, writer: int) -> None:
    try:
        for number in range(_ROUNDS):
            _barrier.wait(timeout=60)
            if writer:
                open_relation(folder).compact().drop_versions(keep=2)
            else:
                for load in range(5 * number, 5 * number + 5):
                    _append_until_done(folder, numbered(range(4 * load, 4 * load + 4)), f"load {load}")
    except BaseException:
        _barrier.abort()
        raise


def _append_until_done(folder: Path, rows: pa.RecordBatch, load_id: str) -> None:
    while True:
        try:
            open_relation(folder).append(rows, load_id, 0)
        except CommitRace:
            continue
        return


def test_a_writer_killed_at_any_moment_leaves_whole_versions(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    create_relation(folder, "customers", SCHEMA, KEY, theta=4)
    script = "import sys; from tests.storage import test_lookup_store as t; t.write_for_ever(sys.argv[1])"
    for kill in range(1, 4):
        before = open_relation(folder).version
        writer = subprocess.Popen([sys.executable, "-c", script, str(folder)])
        try:
            deadline = time.monotonic() + 60
            while not entry_of(folder, before + 9 * kill).exists():
                assert time.monotonic() < deadline, "the writer made no progress"
                assert writer.poll() is None
                time.sleep(0.0003 * kill)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        relation = open_relation(folder)
        relation.verify()
        expected = [(number, f"load {number // 2}") for number in range(relation.rows)]
        assert sorted((row[1], row[3]) for row in all_rows(relation)) == expected
        assert relation.rows % 2 == 0, "a load is there whole or not at all"


def write_for_ever(folder: str) -> None:
    """Append, and now and then compact and drop; load n holds the numbers 2n and 2n + 1."""
    relation = open_relation(Path(folder))
    while True:
        load = relation.rows // 2
        relation = relation.append(numbered([2 * load, 2 * load + 1]), f"load {load}", 0)
        if load % 5 == 4:
            relation = relation.compact()
        if load % 7 == 6:
            relation.drop_versions(keep=20)
