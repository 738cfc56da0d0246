"""Stores that crash: the n-th operation on a file raises, before or after it took effect, and so does every later one.

A process that has crashed does nothing any more, so the clean-up of whoever was interrupted must not work either.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa

from etl.storage.durable import DurableFolder
from etl.storage.memory_relation import MemoryFiles
from etl.storage.memory_runs import MemoryRuns
from etl.storage.ports import RunName, RunReader, RunWriter, StoreCounters
from etl.storage.relation import Relation
from etl.storage.relation_log import VersionLog
from etl.storage.relation_version import OpenVersion, RelationParts
from etl.storage.run_files import RunFiles
from etl.storage.writers import MemoryWriters, WriterFiles, Writers


class Crash(BaseException):
    """Not an Exception: nothing may catch it to carry on."""


class Fuse:
    """Counts operations; each has two moments, before and after."""

    def __init__(self, at: int | None = None) -> None:
        self.burnt = 0
        self._at = at

    @contextmanager
    def operation(self) -> Iterator[None]:
        self._burn()
        yield
        self._burn()

    def _burn(self) -> None:
        self.burnt += 1
        if self._at is not None and self.burnt >= self._at:
            raise Crash


class Disk:
    """What outlives a process: the files of one relation, in a folder or, to be quick, in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._log, self._runs, self._writers = MemoryFiles(), MemoryRuns(), MemoryWriters()

    def parts(self, fuse: Fuse) -> RelationParts:
        """The parts of the relation, as a process puts them together that will die when the fuse burns down."""
        if self._folder is None:
            log = VersionLog(CrashingLog(self._log, fuse), "memory")
            return _parts(log, CrashingRuns(self._runs, fuse), self._writers, None)
        folder = self._folder
        log = VersionLog(CrashingLog(DurableFolder(folder / "_log"), fuse), str(folder / "_log"))
        runs = CrashingRuns(RunFiles(folder / "segments"), fuse)
        return _parts(log, runs, WriterFiles(folder / "writers"), folder / "scratch")

    def open(self) -> Relation | None:
        """The newest version, in a process that lives on; None when there is none."""
        parts = self.parts(Fuse())
        newest = parts.log.newest()
        return Relation(OpenVersion(parts, parts.log.read(newest))) if newest else None

    def scratch_files(self) -> list[Path]:
        return [] if self._folder is None else list((self._folder / "scratch").glob("*"))


def _parts(log: VersionLog, runs: "CrashingRuns", writers: Writers, scratch: Path | None) -> RelationParts:
    clock = partial(datetime.now, UTC)
    return RelationParts(log, runs, writers, clock, scratch, checkpoint_every=3, most_deltas=2)


class CrashingLog:
    def __init__(self, files: DurableFolder | MemoryFiles, fuse: Fuse) -> None:
        self._files = files
        self._fuse = fuse

    def put(self, name: str, parts: Iterable[bytes]) -> None:
        with self._fuse.operation():
            self._files.put(name, parts)

    def read_unchecked(self, name: str) -> pa.Buffer:
        return self._files.read_unchecked(name)

    def exists(self, name: str) -> bool:
        return self._files.exists(name)

    def names(self) -> list[str]:
        return self._files.names()

    def delete(self, name: str) -> bool:
        with self._fuse.operation():
            return self._files.delete(name)


class CrashingRuns:
    def __init__(self, runs: RunFiles | MemoryRuns, fuse: Fuse) -> None:
        self._runs = runs
        self._fuse = fuse

    @property
    def counters(self) -> StoreCounters:
        return self._runs.counters

    def writer(self, label: str, schema: pa.Schema) -> RunWriter:
        writer = self._runs.writer(label, schema)
        try:
            with self._fuse.operation():
                return CrashingWriter(writer, self._fuse)
        except Crash:
            writer.abandon()  # the kernel closes the files of a process that dies
            raise

    def open(self, run: RunName, *, check_content: bool = True) -> RunReader:
        return self._runs.open(run, check_content=check_content)

    def delete(self, run: RunName | str) -> None:
        with self._fuse.operation():
            self._runs.delete(run)

    def runs(self) -> list[str]:
        return self._runs.runs()


class CrashingWriter:
    def __init__(self, writer: RunWriter, fuse: Fuse) -> None:
        self._writer = writer
        self._fuse = fuse

    def append(self, batch: pa.RecordBatch) -> None:
        with self._fuse.operation():
            self._writer.append(batch)

    def seal(self) -> RunName:
        with self._fuse.operation():
            return self._writer.seal()

    def abandon(self) -> None:
        self._writer.abandon()
