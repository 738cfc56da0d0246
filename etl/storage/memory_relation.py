"""Relations in memory: the fake for tests, with the versions, races and errors of the lookup store.

Only the two things below a relation are faked: its runs and the files of its log. All else is the code of
the real one.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from etl.errors import AlreadyPublished, MissingFile
from etl.storage.memory_runs import MemoryRuns
from etl.storage.relation import Relation, RelationParts, WallClock, first_version
from etl.storage.relation_log import VersionLog
from etl.storage.relation_rows import RelationShape


def the_epoch() -> datetime:
    """A clock that stands still: a fake's versions are the same in every run of a test."""
    return datetime.fromtimestamp(0, UTC)


def create_memory_relation(
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    segments: int = 16,
    batches: Iterable[pa.RecordBatch] = (),
    highest: int = 0,
    clock: WallClock = the_epoch,
) -> Relation:
    """As `create_relation` does, without a folder."""
    shape = RelationShape(name, schema, tuple(key), segments)
    parts = RelationParts(VersionLog(MemoryFiles(), f"memory of {name}"), MemoryRuns(), clock)
    return first_version(parts, shape, pa.Table.from_batches(batches, shape.schema), highest)


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

    def names(self) -> list[str]:
        return sorted(self._contents)
