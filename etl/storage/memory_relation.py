"""Relations in memory: the fake for tests, with the versions, races and errors of the lookup store.

Only the things below a relation are faked: its runs, the files of its log and the list of its writers. All else is the
code of the real one.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from etl.errors import AlreadyPublished, MissingFile
from etl.storage.bulk_load import LoadSettings
from etl.storage.memory_runs import MemoryRuns
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from etl.storage.relation_creation import first_version
from etl.storage.relation_log import VersionLog
from etl.storage.relation_rows import RelationShape
from etl.storage.relation_version import RelationParts, WallClock
from etl.storage.writers import MemoryWriters


def the_epoch() -> datetime:
    """A clock that stands still: a fake's versions are the same in every run of a test."""
    return datetime.fromtimestamp(0, UTC)


def create_memory_relation(
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    batches: Iterable[pa.RecordBatch] = (),
    *,
    partition: PartitionKind = "hash",
    range_by: str | None = None,
    theta: int = 65_536,
    highest: int | str = 0,
    clock: WallClock = the_epoch,
) -> Relation:
    """As `create_relation` does, without a folder."""
    shape = RelationShape(name, schema, tuple(key), partition, range_by, theta)
    log = VersionLog(MemoryFiles(), f"memory of {name}")
    parts = RelationParts(log, MemoryRuns(), MemoryWriters(), clock, scratch=None)
    return Relation(first_version(parts, shape, batches, highest, LoadSettings(scratch=None)))


class MemoryFiles:
    """Write-once files in a dictionary."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, name: str, parts: Iterable[bytes]) -> None:
        if name in self._contents:
            raise AlreadyPublished(f"{name} exists in memory already")
        self._contents[name] = b"".join(parts)

    def read_unchecked(self, name: str) -> pa.Buffer:
        if name not in self._contents:
            raise MissingFile(f"{name} does not exist in memory")
        return pa.py_buffer(self._contents[name])

    def exists(self, name: str) -> bool:
        return name in self._contents

    def names(self) -> list[str]:
        return sorted(self._contents)

    def delete(self, name: str) -> bool:
        return self._contents.pop(name, None) is not None
