"""What a partition group leaves behind after a load, as names of durable bytes.

Idea: a group's state is a base snapshot and a log of the inputs since, whatever the operator. A load adds to the log
what it brought; only now and then a new base takes the place of both. So what a load writes depends on the rows of the
load, not on the rows that wait.

State: one file for each task of a load, with a section for each log entry and each new base of the task's groups: one
wait for the disk instead of one a group. Beside it the sealed runs of operators that spill.

Invariants: a section never changes and is compared with its checksum when it is read. All names begin with the load
that wrote them. A state names every file it stands on, also the runs that only the living operator needs, so that
whoever deletes what no state names deletes nothing that is in use.

Limits: a file stays as long as one of its sections is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import pyarrow as pa
import xxhash

from etl.crash_points import CrashPoint, reached
from etl.errors import CorruptFile
from etl.storage.durable import BytesLike, DurableFolder, PendingFile


class Section(NamedTuple):
    """A stretch of a durable file, and what identifies its content."""

    file: str
    offset: int
    size: int
    checksum: str

    def read(self, folder: DurableFolder) -> pa.Buffer:
        """The content, memory-mapped; CorruptFile or MissingFile names the file."""
        content = folder.read_unchecked(self.file)
        if self.offset + self.size > content.size:
            raise CorruptFile(
                f"file {folder.path(self.file)} has {content.size} bytes and should reach to "
                f"{self.offset + self.size}; restore it from a copy"
            )
        content = content.slice(self.offset, self.size)
        if xxhash.xxh3_128_hexdigest(content) != self.checksum:
            raise CorruptFile(
                f"file {folder.path(self.file)} was changed after it was written: {self.size} bytes from byte "
                f"{self.offset} do not match their checksum; restore it from a copy"
            )
        return content


class GroupState(NamedTuple):
    """A base snapshot, the inputs since in order, and the runs on disk that the base or the living operator uses."""

    base: Section
    log: tuple[Section, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def log_bytes(self) -> int:
        return sum(section.size for section in self.log)

    def begins_like(self, earlier: GroupState) -> bool:
        """Whether an operator that stands for `earlier` gets here by taking the rest of our log."""
        return self.base == earlier.base and self.log[: len(earlier.log)] == earlier.log

    def file_names(self) -> frozenset[str]:
        return frozenset([self.base.file, *(section.file for section in self.log), *self.runs])

    def to_json(self) -> dict[str, object]:
        return {"base": list(self.base), "log": [list(section) for section in self.log], "runs": list(self.runs)}

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> GroupState:
        return cls(
            base=Section(*cast(tuple[str, int, int, str], stored["base"])),
            log=tuple(Section(*section) for section in cast(Sequence[tuple[str, int, int, str]], stored["log"])),
            runs=tuple(cast(Sequence[str], stored["runs"])),
        )


class TaskFile:
    """The file of one task, written section by section; nothing is there before `publish`, and nothing if none came."""

    def __init__(self, folder: DurableFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file: PendingFile | None = None

    def append(self, parts: Sequence[BytesLike]) -> Section:
        if self._file is None:
            self._file = self._folder.begin(self._name)
        offset = self._file.size
        checksum = xxhash.xxh3_128()
        for part in parts:
            self._file.write(part)
            checksum.update(part)
        return Section(self._name, offset, self._file.size - offset, checksum.hexdigest())

    def publish(self) -> None:
        reached(CrashPoint.BEFORE_SNAPSHOT)
        if self._file is not None:
            self._file.publish()
        reached(CrashPoint.AFTER_SNAPSHOT)

    def abandon(self) -> None:
        """Drop what was not published; harmless after `publish`."""
        if self._file is not None:
            self._file.abandon()
