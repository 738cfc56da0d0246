"""One process for each subject: it times its own answers, and its memory is its alone.

A worker opens its subject, then serves turns: some batches go in, seconds a batch come out. The answers are digested in
the worker, outside the timed part. Batches travel as Arrow IPC, so making them costs the worker nothing.

Memory is the highest resident set since the subject was about to be opened, less what the process held then (Python
and the libraries). It includes mapped files, which the operating system may take back at any time; how much of that is
data of the subject's own folder is told apart.

A cold turn drops the files of a folder from the page cache before every batch. The kernel keeps pages that somebody
has mapped, so nobody else may have the folder open.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, cast

import pyarrow as pa

from benchmarks.key_streams import STREAM_SCHEMA, Digest, StreamBatch, digest
from benchmarks.lookups import Answer, Lookup
from benchmarks.runner import reset_peak_memory, status_bytes

Opener = Callable[[], Lookup]


class Timed(NamedTuple):
    """Of one batch; the processor's seconds count all threads, and depend less on who else uses the machine."""

    seconds: float
    processor_seconds: float


class ColdBatch(NamedTuple):
    """A batch that found its files on disk only, and the same disk reading as many bytes one after the other."""

    seconds: float
    bytes_read: int
    disk_seconds: float


class Memory(NamedTuple):
    peak: int
    mapped: int


class Worker:
    """The parent's end."""

    def __init__(self, name: str, opener: Opener, folder: Path | None) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, opener, folder), daemon=True)
        self._process.start()
        theirs.close()
        self._reply()

    def start(self) -> None:
        """A stream begins."""
        self._ask("start")

    def turn(self, batches: Sequence[StreamBatch]) -> list[Timed]:
        return cast(list[Timed], self._ask("turn", [_packed(batch) for batch in batches]))

    def cold_turn(self, batches: Sequence[StreamBatch]) -> list[ColdBatch]:
        return cast(list[ColdBatch], self._ask("cold_turn", [_packed(batch) for batch in batches]))

    def answered(self) -> Digest:
        """The digest of all answers since the stream began."""
        return cast(Digest, self._ask("answered"))

    def finish(self) -> Digest:
        """The stream ends, and what was owed is answered."""
        return cast(Digest, self._ask("finish"))

    def counters(self) -> dict[str, int]:
        return cast(dict[str, int], self._ask("counters"))

    def memory(self) -> Memory:
        return cast(Memory, self._ask("memory"))

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _ask(self, command: str, *arguments: object) -> object:
        self._connection.send((command, arguments))
        return self._reply()

    def _reply(self) -> object:
        try:
            fine, value = self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process of {self.name} ended with code {self._process.exitcode}") from None
        if not fine:
            raise RuntimeError(f"{self.name} failed:\n{value}")
        return value


def _packed(batch: StreamBatch) -> bytes:
    return cast(bytes, batch.rows.serialize().to_pybytes())


def _unpacked(message: bytes) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(message), STREAM_SCHEMA)


def _serve(connection: Connection, opener: Opener, folder: Path | None) -> None:
    """The worker's end: commands until the other end is closed."""
    try:
        server = _Server(opener, folder)
        connection.send((True, None))
        while True:
            command, arguments = connection.recv()
            connection.send((True, getattr(server, command)(*arguments)))
    except EOFError:
        return
    except Exception:
        connection.send((False, traceback.format_exc()))


class _Server:
    def __init__(self, opener: Opener, folder: Path | None) -> None:
        self._folder = folder
        self._held_before = reset_peak_memory()
        self._lookup = opener()
        self._answered = Digest()

    def start(self) -> None:
        self._answered = Digest()
        self._lookup.start()

    def turn(self, messages: Sequence[bytes]) -> list[Timed]:
        return [self._timed(_unpacked(message)) for message in messages]

    def cold_turn(self, messages: Sequence[bytes]) -> list[ColdBatch]:
        assert self._folder is not None
        turn = []
        for message in messages:
            batch = _unpacked(message)
            drop_from_page_cache(self._folder)
            before = _bytes_read()
            seconds = self._timed(batch).seconds
            bytes_read = _bytes_read() - before
            drop_from_page_cache(self._folder)
            turn.append(ColdBatch(seconds, bytes_read, _sequential_read_seconds(self._folder, bytes_read)))
        return turn

    def answered(self) -> Digest:
        return self._answered

    def finish(self) -> Digest:
        self._note(self._lookup.finish())
        return self._answered

    def counters(self) -> dict[str, int]:
        return self._lookup.counters()

    def memory(self) -> Memory:
        mapped = 0 if self._folder is None else sum(mapping.resident for mapping in mappings(self._folder))
        return Memory(status_bytes("VmHWM") - self._held_before, mapped)

    def _timed(self, batch: pa.RecordBatch) -> Timed:
        gc.disable()
        start, processor_start = time.perf_counter(), time.process_time()
        answer = self._lookup.answer(batch)
        timed = Timed(time.perf_counter() - start, time.process_time() - processor_start)
        gc.enable()
        self._note(answer)
        return timed

    def _note(self, answer: Answer) -> None:
        for row, surrogate in answer:
            self._answered = self._answered.plus(digest(row, surrogate))


class Mapping(NamedTuple):
    start: int
    length: int
    resident: int


def mappings(folder: Path) -> Iterator[Mapping]:
    """Where files of the folder are mapped into this process, and how many bytes of each are in memory."""
    start = end = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            start, end = (int(address, 16) for address in first.split("-"))
            ours = f" {folder.resolve()}/" in rest
        elif ours and first == "Rss:":
            yield Mapping(start, end - start, int(rest.split()[0]) * 1024)


def read_into_page_cache(folder: Path) -> None:
    """All files of the folder, in sequence."""
    _sequential_read_seconds(folder, sum(file.stat().st_size for file in _files(folder)))


def drop_from_page_cache(folder: Path) -> None:
    """All files of the folder. Their pages leave this process first: the kernel does not drop what is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    advise_dont_need = 4
    for mapping in mappings(folder):
        if libc.madvise(ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.length), advise_dont_need):
            raise OSError(ctypes.get_errno(), f"cannot unmap the pages of {folder}")
    for file in _files(folder):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _sequential_read_seconds(folder: Path, wanted: int) -> float:
    """How long the disk takes for as many bytes of the same files, one after the other."""
    buffer = bytearray(8 << 20)
    start = time.perf_counter()
    for file in _files(folder):
        with file.open("rb", buffering=0) as stream:
            while wanted > 0 and (count := stream.readinto(memoryview(buffer)[:wanted])):
                wanted -= count
    return time.perf_counter() - start


def _bytes_read() -> int:
    """Bytes that this process had fetched from the disk, through page faults too."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
