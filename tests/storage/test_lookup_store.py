"""The lookup store on disk: damage, crashes and several processes at once."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import AlreadyPublished, CommitRace, CorruptFile, ForeignFormat, MissingFile, StorageError
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.relation import Relation, write_file
from etl.storage.relation_rows import RelationShape
from etl.storage.run_files import RunFiles
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered


@pytest.fixture
def relation(tmp_path: Path) -> Relation:
    start = create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, 4, [numbered(range(50))])
    return start.append(numbered(range(50, 60)), "load 1", 60)


def entry_of(folder: Path, version: int) -> Path:
    return folder / "_log" / f"{version:08d}.json"


def test_another_opening_sees_the_newest_or_the_wanted_version(relation: Relation, tmp_path: Path) -> None:
    newest, first = open_relation(tmp_path / "customers"), open_relation(tmp_path / "customers", 1)
    assert (newest.version, first.version) == (2, 1)
    assert all_rows(newest) == all_rows(relation)
    assert len(all_rows(first)) == 50
    assert newest.describe() == relation.describe()


def test_a_commit_writes_one_file_for_all_segments(relation: Relation, tmp_path: Path) -> None:
    files = sorted(path.name[:11] for path in (tmp_path / "customers" / "segments").glob("*.arrow"))
    assert files[0].startswith("base-")
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


def test_a_probe_does_not_go_past_a_file_that_is_missing_or_cut(relation: Relation, tmp_path: Path) -> None:
    path = next((tmp_path / "customers" / "segments").glob("base-*.arrow"))
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
        (lambda text: replaced(text, '"format_version": 1', '"format_version": 2'), ForeignFormat),
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
    assert (entry["format"], entry["format_version"]) == ("headrace-relation", 1)
    assert entry["content"]["loads"] == {"load 1": 2}


# --- crashes


Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(["append", "crash", "reopen", "go back"]), st.integers(0, 5)), max_size=25)


@given(steps=steps)
@settings(max_examples=40, deadline=None)
def test_committed_rows_stay_and_nothing_else_appears(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two handles act in turns; each step's number picks the handle, the load and its rows."""
    folder = tmp_path_factory.mktemp("relation") / "customers"
    handles = [create_relation(folder, "customers", SCHEMA, KEY, 3)] * 2
    committed: dict[int, dict[int, str]] = {1: {}}  # version -> number -> load
    made: dict[str, int] = {}
    for at, (step, number) in enumerate(steps):
        handle = handles[number % 2]
        load_id = f"load {number}"
        if step == "reopen":
            handles[number % 2] = open_relation(folder)
            continue
        if step == "go back":
            handles[number % 2] = handle.at(1 + number % len(committed))
            continue
        if step == "crash":
            shape = RelationShape("customers", SCHEMA, KEY, 3)
            write_file(RunFiles(folder / "segments"), shape, pa.Table.from_batches([numbered([at])]), load_id)
            continue
        try:
            after = handle.append(numbered([at]), load_id, 0)
        except CommitRace:
            assert handle.version < max(committed)
            assert load_id not in made
            continue
        if load_id in made:
            assert after.version == made[load_id]
        else:
            assert after.version == handle.version + 1 == max(committed) + 1
            made[load_id] = after.version
            committed[after.version] = committed[handle.version] | {at: load_id}
        handles[number % 2] = after
    for version, rows in committed.items():
        relation = open_relation(folder, version)
        relation.verify()
        assert {row[1]: row[3] for row in all_rows(relation)} == rows
        assert relation.rows == len(rows)
    newest = open_relation(folder)
    assert newest.version == max(committed)
    assert {load: newest.find(load) for load in made} == made


def test_a_writer_killed_at_any_moment_leaves_whole_versions(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    create_relation(folder, "customers", SCHEMA, KEY, 3)
    script = "import sys; from tests.storage import test_lookup_store as t; t.append_for_ever(sys.argv[1])"
    for kill in range(1, 4):
        before = open_relation(folder).version
        writer = subprocess.Popen([sys.executable, "-c", script, str(folder)])
        try:
            deadline = time.monotonic() + 60
            while not entry_of(folder, before + 7 * kill).exists():
                assert time.monotonic() < deadline, "the writer made no progress"
                assert writer.poll() is None
                time.sleep(0.001)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        relation = open_relation(folder)
        relation.verify()
        committed = range(2, relation.version + 1)
        expected = [(2 * version + odd, f"load {version}") for version in committed for odd in (0, 1)]
        assert sorted((row[1], row[3]) for row in all_rows(relation)) == expected


def append_for_ever(folder: str) -> None:
    relation = open_relation(Path(folder))
    while True:
        version = relation.version + 1
        relation = relation.append(numbered([2 * version, 2 * version + 1]), f"load {version}", 0)


# --- several processes


_ROUNDS = 12
_barrier: Barrier


def test_two_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    create_relation(folder, "customers", SCHEMA, KEY, 3)
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=_remember_barrier, initargs=(context.Barrier(2),)) as pool:
        races = pool.starmap(_append_in_rounds, [(folder, writer) for writer in range(2)], chunksize=1)
    newest = open_relation(folder)
    expected = sorted((2 * r + writer, f"writer {writer} load {r}") for r in range(_ROUNDS) for writer in range(2))
    assert sorted((row[1], row[3]) for row in all_rows(newest)) == expected
    assert newest.version == 1 + 2 * _ROUNDS
    assert sum(races) == _ROUNDS, "in each round both start from one version, and one of them loses"
    for version in range(1, newest.version + 1):
        assert open_relation(folder, version).rows == version - 1
    newest.verify()
    assert len(list((folder / "segments").glob("*.arrow"))) == 2 * _ROUNDS, "losers removed their files"


def _remember_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _append_in_rounds(folder: Path, writer: int) -> int:
    """How many races this writer lost."""
    try:
        return sum(_append_in_one_round(folder, writer, number) for number in range(_ROUNDS))
    except BaseException:
        _barrier.abort()  # or the other writer would wait in vain
        raise


def _append_in_one_round(folder: Path, writer: int, number: int) -> int:
    _barrier.wait(timeout=60)
    relation = open_relation(folder)
    _barrier.wait(timeout=60)
    races = 0
    while True:
        try:
            relation.append(numbered([2 * number + writer]), f"writer {writer} load {number}", 0)
        except CommitRace:
            races += 1
            relation = relation.at()
        else:
            return races
