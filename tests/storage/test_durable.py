"""Durable folders: nothing half-written is ever seen, one of several racing writers wins, damage is found."""

import multiprocessing
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etl.errors import AlreadyPublished, BadInput, CorruptFile, MissingFile, StorageError
from etl.storage.durable import DurableFolder, FileStamp


@pytest.fixture
def folder(tmp_path: Path) -> DurableFolder:
    return DurableFolder(tmp_path / "folder")


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@given(parts=st.lists(st.binary(max_size=50)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_come_back_as_one_file_with_its_size_and_checksum(folder: DurableFolder, parts: list[bytes]) -> None:
    folder.delete("a/b.bin")
    whole = b"".join(parts)
    stamp = folder.put("a/b.bin", parts)
    assert stamp == FileStamp("a/b.bin", len(whole), xxhash.xxh3_128(whole).hexdigest())
    assert folder.read(stamp).to_pybytes() == whole
    assert folder.map_sized(stamp).to_pybytes() == whole
    assert folder.read_unchecked("a/b.bin").to_pybytes() == whole


def test_a_published_name_keeps_its_first_content(folder: DurableFolder) -> None:
    stamp = folder.put("one", [b"first"])
    with pytest.raises(AlreadyPublished, match=str(folder.root / "one")):
        folder.put("one", [b"second"])
    assert folder.read(stamp).to_pybytes() == b"first"
    assert folder.sweep_temporary() == 0, "the loser removed its temporary file"


def test_a_buffer_outlives_the_deletion_of_its_file(folder: DurableFolder) -> None:
    content = folder.read(folder.put("one", [b"still here"]))
    assert folder.delete("one")
    assert not folder.delete("one"), "deleting again is harmless and says so"
    assert content.to_pybytes() == b"still here"


def test_names_lists_what_is_published_and_nothing_else(folder: DurableFolder) -> None:
    pending = folder.begin("pending")
    pending.write(b"half")
    for name in ["b", "a/2", "a/1", "ab/3"]:
        folder.put(name, [b"x"])
    assert folder.names() == ["a/1", "a/2", "ab/3", "b"]
    assert folder.names("a/") == ["a/1", "a/2"]
    assert folder.names("a") == ["a/1", "a/2", "ab/3"]
    assert folder.names("nowhere/") == []
    assert folder.exists("b")
    assert not folder.exists("pending")
    pending.abandon()
    assert folder.names("p") == []


def test_damage_is_found_and_the_file_is_named(folder: DurableFolder) -> None:
    stamp = folder.put("sub/one", [b"content"])
    path = folder.root / "sub" / "one"
    flip_last_byte(path)
    with pytest.raises(CorruptFile, match=f"{path} was changed"):
        folder.read(stamp)
    assert folder.map_sized(stamp).size == stamp.size, "a changed byte is beyond a check of the size"
    os.truncate(path, 3)
    for read in (folder.read, folder.map_sized):
        with pytest.raises(CorruptFile, match=f"{path} has 3 bytes, expected 7"):
            read(stamp)
    path.unlink()
    for read in (folder.read, folder.map_sized):
        with pytest.raises(MissingFile, match=f"{path} does not exist"):
            read(stamp)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../up", "a/../../up", ".hidden", "a//b", "a/", "ä", ".temporary/x"]
)
def test_a_name_cannot_lead_out_of_the_folder(folder: DurableFolder, name: str) -> None:
    for use in (folder.exists, folder.delete, folder.begin, folder.read_unchecked):
        with pytest.raises(BadInput, match="not a legal file name"):
            use(name)


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=f"cannot write to folder {tmp_path / 'file' / 'folder'}"):
        DurableFolder(tmp_path / "file" / "folder")


def test_a_full_disk_publishes_nothing_and_names_the_file(folder: DurableFolder) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match=f"cannot use file {folder.root / 'big'}"):
            folder.put("big", [bytes(1 << 19)] * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert folder.names() == []
    assert list((folder.root / ".temporary").iterdir()) == []


def test_the_sweep_takes_the_files_of_dead_writers_only(folder: DurableFolder) -> None:
    dies_while_writing = (
        "import os, sys, pathlib; from etl.storage.durable import DurableFolder;"
        "pending = DurableFolder(pathlib.Path(sys.argv[1])).begin('never');"
        "pending.write(b'x' * 10**6); os._exit(9)"
    )
    died = subprocess.run([sys.executable, "-c", dies_while_writing, str(folder.root)], check=False, timeout=60)
    assert died.returncode == 9
    alive = folder.begin("alive")
    alive.write(b"being written")
    assert folder.sweep_temporary() == 1
    assert folder.read(alive.publish()).to_pybytes() == b"being written"
    assert folder.names() == ["alive"]
    assert folder.sweep_temporary() == 0


def test_a_sweep_disturbs_neither_the_opening_of_a_folder_nor_a_writer(tmp_path: Path) -> None:
    """A sweep in one process once took the file by which another was proving that it may write."""
    sweeper = DurableFolder(tmp_path)
    finished = threading.Event()

    def sweep() -> None:
        while not finished.is_set():
            sweeper.sweep_temporary()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for number in range(300):
            DurableFolder(tmp_path).put(f"{number}", [b"content"])
    finally:
        finished.set()
        thread.join()
    assert len(sweeper.names()) == 300


def test_one_of_two_racing_processes_wins_each_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    rounds = 30
    with context.Pool(2, initializer=_remember_barrier, initargs=(barrier,)) as pool:
        wins = pool.starmap(_race, [(tmp_path, rounds, writer) for writer in range(2)], chunksize=1)
    folder = DurableFolder(tmp_path)
    for number in range(rounds):
        winners = [writer for writer in range(2) if number in wins[writer]]
        assert len(winners) == 1, f"name {number} was won by {winners}"
        assert folder.read_unchecked(f"{number}").to_pybytes() == bytes([winners[0]]) * 1000


_barrier: Barrier


def _remember_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _race(root: Path, rounds: int, writer: int) -> list[int]:
    folder = DurableFolder(root)
    won = []
    for number in range(rounds):
        _barrier.wait(timeout=30)
        try:
            folder.put(f"{number}", [bytes([writer]) * 1000])
        except AlreadyPublished:
            continue
        won.append(number)
    return won


def test_folders_go_with_their_last_file(tmp_path: Path) -> None:
    folder = DurableFolder(tmp_path)
    for name in ("a/b/one", "a/b/two", "a/three"):
        folder.put(name, [b"x"])
    folder.delete("a/b/one")
    assert (tmp_path / "a" / "b").is_dir()
    folder.delete("a/b/two")
    assert not (tmp_path / "a" / "b").exists()
    folder.delete("a/three")
    assert not (tmp_path / "a").exists()
    assert tmp_path.is_dir()
    folder.put("a/b/one", [b"y"])


def test_a_folder_that_goes_while_a_file_is_published_in_it_is_made_again(tmp_path: Path) -> None:
    """Two threads put and delete files of one folder: it is empty, and goes, again and again."""
    folder = DurableFolder(tmp_path)

    def busy(thread: int) -> None:
        for number in range(100):
            name = f"a/b/{thread}-{number}"
            folder.put(name, [b"x"])
            assert folder.delete(name)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(busy, range(2)))
    assert folder.names() == []
