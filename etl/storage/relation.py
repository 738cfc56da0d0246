"""A relation: a lookup table in frozen versions, over any run store and any version log.

Idea: rows lie in runs whose blocks are sorted by key hash inside each relation segment. A version is a list of
runs and the boundaries of its segments; the next version is mostly the same and one more run, with the rows of
one load. Compaction merges the runs and draws the boundaries anew.

State: the state of one version, which never changes, and its runs, opened on first use and handed on to the
versions that are made from this one.

Invariants: a reader keeps its version whatever others commit; a run is durable before the version that
names it; a load makes at most one version; a run that no version names is harmless, and its name is never
used again.

Limits: a run is checked for presence, size and format when it is opened; its bytes only by `verify`, because
a probe of a large relation must not read all of it first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import StorageError
from etl.storage import appending, compaction, key_numbering, looking_up, retention, verification
from etl.storage.block_table import BlockTable
from etl.storage.bulk_load import DEFAULT_MEMORY_BYTES, LoadSettings, Progress, no_progress
from etl.storage.partitioning import Partitioning
from etl.storage.ports import CREATED_BY_COLUMN, Keys, RelationView, Segments, StoreCounters
from etl.storage.relation_filters import FilterSet
from etl.storage.relation_rows import HASH_COLUMN
from etl.storage.relation_version import OpenVersion
from etl.storage.retention import Dropped

_MOST_HASHES = 1 << 20


@dataclass(frozen=True, slots=True)
class RelationDescription:
    """What people want to know of a relation version."""

    name: str
    version: int
    oldest_version: int
    work: str
    load_id: str
    created_at: str
    age_seconds: float
    rows: int
    highest: int
    partition: str
    theta: int
    segments: int
    smallest_segment: int
    largest_segment: int
    files: int
    delta_files: int
    delta_rows: int
    bytes: int


class Relation:
    """One version of a relation; `append`, `compact` and `at` give others."""

    def __init__(self, version: OpenVersion) -> None:
        self._version = version

    @property
    def name(self) -> str:
        return self._version.state.shape.name

    @property
    def opening(self) -> object:
        return self._version.parts

    @property
    def folder(self) -> Path | None:
        """Where other processes can open it; None for a relation in memory."""
        return self._version.parts.folder

    @property
    def schema(self) -> pa.Schema:
        return self._version.state.shape.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self._version.state.shape.key

    @property
    def partition(self) -> str:
        return self._version.state.shape.partition

    @property
    def partitioning(self) -> Partitioning:
        return self._version.state.partitioning

    @property
    def theta(self) -> int:
        return self._version.state.shape.theta

    @property
    def segments(self) -> int:
        return self._version.state.partitioning.segments

    @property
    def version(self) -> int:
        return self._version.state.version

    @property
    def highest(self) -> int:
        return self._version.state.highest

    @property
    def rows(self) -> int:
        return self._version.state.rows

    @property
    def segment_rows(self) -> npt.NDArray[np.int64]:
        return self._version.table.segment_rows

    @property
    def segment_blocks(self) -> npt.NDArray[np.int64]:
        return self._version.table.segment_blocks

    @property
    def segment_bytes(self) -> npt.NDArray[np.int64]:
        return self._version.table.segment_bytes

    @property
    def counters(self) -> StoreCounters:
        """Reads and writes of all versions that were made from one opening."""
        return self._version.parts.reads.beside(self._version.parts.runs.counters)

    def segment_of(self, keys: Keys) -> Segments:
        return self._version.state.partitioning.segment_of(keys)

    def same_segments(self, other: RelationView) -> bool:
        return self.partitioning.same_segments(other.partitioning)

    def block_table(self) -> BlockTable:
        return self._version.table

    def filters(
        self, limit_bytes: int, previous: FilterSet | None = None, order: Sequence[int] | None = None
    ) -> FilterSet:
        """Filters of the segments in `order` (by number when none is given), in at most so many bytes."""
        return FilterSet(self._version.table, limit_bytes, order, previous)

    def hashes_added_since(self, version: int) -> npt.NDArray[np.uint64] | None:
        newer = [file for file in self._version.state.files if file.last_version > version]
        if not all(file.delta for file in newer) or sum(file.run.rows for file in newer) > _MOST_HASHES:
            return None
        hashes = [batch.column(HASH_COLUMN).to_numpy() for batch in self._version.rows_in(newer)]
        return np.concatenate([np.empty(0, np.uint64), *hashes])

    def count_reads(self, segments: Sequence[int] | npt.NDArray[np.integer]) -> int:
        table = self._version.table
        blocks = int(table.segment_blocks[segments].sum())
        self._version.parts.reads.stretch_read(blocks, int(table.segment_bytes[segments].sum()))
        return blocks

    def read_segment(self, segment: int) -> list[pa.RecordBatch]:
        blocks = self._version.table.read_segment(segment)
        self.count_reads([segment])
        return blocks

    def find(self, load_id: str) -> int | None:
        return appending.find_load_version(self._version, load_id)

    def brought(self, load_id: str) -> pa.Table:
        """The rows that a load inserted, up to this version; none when it made no version or a newer one."""
        made = self._version.find(load_id)
        files = [
            file
            for file in self._version.state.files
            if made is not None and file.first_version <= made <= file.last_version
        ]
        batches = [
            batch.filter(pc.equal(batch.column(CREATED_BY_COLUMN), load_id)) for batch in self._version.rows_in(files)
        ]
        return pa.Table.from_batches(batches, self._version.state.shape.stored).select(self.schema.names)

    def at(self, version: int | None = None) -> "Relation":
        return Relation(self._version.newest() if version is None else self._version.at(version))

    def append(self, rows: pa.RecordBatch | pa.Table, load_id: str, highest: int) -> "Relation":
        return Relation(appending.append(self._version, _as_table(rows), load_id, highest))

    def append_new(self, rows: pa.RecordBatch | pa.Table, load_id: str, number: str) -> "Relation":
        """Commit the next version with those rows whose key is new, numbered in column `number`.

        `rows` has all columns but that one; of several rows with one key the first counts. The new keys, sorted by
        relation segment, key hash and key, get the numbers after `highest`. When another writer commits first, only
        the keys still new are numbered again, after the winner's. A load that made a version gets that version, or the
        newest one when it was dropped.
        """
        return Relation(key_numbering.append_new(self._version, _as_table(rows), load_id, number))

    def look_up(self, rows: pa.RecordBatch | pa.Table, on: Sequence[tuple[str, str]]) -> pa.Table:
        """The rows, in their order, with what the relation holds for their key: its other columns and `_created_by`.

        `on` pairs columns of the rows with the key columns. A key that the relation does not hold, or with a null in
        it, gives nulls; a key that it holds several times gives as many rows.
        """
        return looking_up.look_up(self._version, _as_table(rows), on)

    def compact(self, memory_bytes: int = DEFAULT_MEMORY_BYTES, progress: Progress = no_progress) -> "Relation":
        """Merge deltas and bring all segments of the newest version back to theta .. 2 * theta rows.

        Readers and appenders go on meanwhile. Gives the newest version itself when there is nothing to do.
        """
        settings = LoadSettings(self._version.parts.scratch, memory_bytes, progress)
        return Relation(compaction.compact(self._version, settings))

    def versions(self) -> list[int]:
        """All versions that can be opened."""
        return self._version.parts.log.openable()

    def drop_versions(self, keep: int) -> Dropped:
        """Let go of versions older than the newest `keep`, and of all files that no version names.

        A few more are kept when the log needs them to tell the others; after a compaction `keep=1` drops all before it.
        """
        return retention.drop_versions(self._version.parts, self.name, keep)

    def problems(self) -> list[StorageError]:
        """All that is wrong with the log and with this version's files; reads every byte of them."""
        return list(verification.problems(self._version))

    def verify(self) -> None:
        """Raise the first of `problems`, if there is any."""
        found = self.problems()
        if found:
            for other in found[1:]:
                found[0].add_note(f"and: {other}")
            raise found[0]

    def describe(self) -> RelationDescription:
        state, parts = self._version.state, self._version.parts
        rows = self.segment_rows
        return RelationDescription(
            name=self.name,
            version=self.version,
            oldest_version=min(self.versions(), default=self.version),
            work=state.work,
            load_id=state.load_id,
            created_at=state.created_at,
            age_seconds=(parts.clock() - datetime.fromisoformat(state.created_at)).total_seconds(),
            rows=self.rows,
            highest=self.highest,
            partition=self.partition,
            theta=self.theta,
            segments=self.segments,
            smallest_segment=int(rows.min()),
            largest_segment=int(rows.max()),
            files=len(state.files),
            delta_files=len(state.deltas),
            delta_rows=sum(int(run.rows[live].sum()) for run, live in map(self._version.slices, state.deltas)),
            bytes=sum(file.run.bytes for file in state.files),
        )

    def close(self) -> None:
        """Let go of the files; a later probe opens them again."""
        self._version.forget()


def _as_table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
