"""A relation: a lookup table in frozen versions, over any run store and any version log.

Idea: rows lie in runs whose blocks are sorted by key hash, one or more blocks a relation segment. A
version is a list of runs; the next version is the same list and one more run, with the rows of one load.
A load writes a single run for all segments, because a commit waits for the disk once per file.

State: the entry of one version, which never changes, and the readers of its runs, opened on first use and
shared with the versions made from this one.

Invariants: a reader keeps its version whatever others commit; the run is durable before the version that
names it; a load makes at most one version; a run that no version names is harmless, and its name is never
used again.

Limits: the number of relation segments is fixed, runs are not merged and creating a relation holds its
rows in memory (compaction is to come). A run is checked for presence, size and format when it is opened;
its bytes only by `verify`, because a probe of a large relation must not read all of it first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import AlreadyPublished, BadInput, CommitRace, CorruptFile
from etl.kernels.columns import ColumnView
from etl.kernels.hashing import KeyHashes
from etl.kernels.scatter import partition_of
from etl.storage.ports import Positions, RunName, RunReader, RunStore, Segments, StoreCounters
from etl.storage.relation_log import RelationFile, VersionEntry, VersionLog
from etl.storage.relation_rows import (
    CREATED_WITH_RELATION,
    RelationShape,
    check_rows,
    file_label,
    probe_block,
    sorted_blocks,
)

WallClock: TypeAlias = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class RelationDescription:
    """What people want to know of a relation version."""

    name: str
    version: int
    created_at: str
    load_id: str
    rows: int
    highest: int
    segments: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RelationParts:
    """What the versions of one relation share."""

    log: VersionLog
    runs: RunStore
    clock: WallClock


class Relation:
    """One version of a relation; `append` and `at` give others."""

    def __init__(self, parts: RelationParts, entry: VersionEntry, readers: dict[str, RunReader] | None = None) -> None:
        self._parts = parts
        self._entry = entry
        self._readers = {} if readers is None else readers
        self._blocks_of_segment: list[list[tuple[RunName, int]]] = [[] for _ in range(self.segments)]
        for file in entry.files:
            for block, segment in enumerate(file.segments):
                self._blocks_of_segment[segment].append((file.run, block))

    @property
    def name(self) -> str:
        return self._entry.shape.name

    @property
    def schema(self) -> pa.Schema:
        return self._entry.shape.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self._entry.shape.key

    @property
    def segments(self) -> int:
        return self._entry.shape.segments

    @property
    def version(self) -> int:
        return self._entry.version

    @property
    def highest(self) -> int:
        return self._entry.highest

    @property
    def rows(self) -> int:
        return sum(file.run.rows for file in self._entry.files)

    @property
    def counters(self) -> StoreCounters:
        """Reads and writes of this version and of those that share its readers."""
        return self._parts.runs.counters

    def segment_of(self, hashes: npt.NDArray[np.uint64]) -> Segments:
        return partition_of(hashes, self.segments)

    def probe(
        self, segment: int, key_columns: Sequence[ColumnView], hashes: KeyHashes
    ) -> Iterator[tuple[Positions, pa.RecordBatch]]:
        if len(key_columns) != len(self.key):
            raise BadInput(f"relation {self.name} has the key {self.key}, but the probe has {len(key_columns)} columns")
        blocks = self._blocks(segment)
        return (
            pairs
            for run, number in blocks
            for pairs in probe_block(self._entry.shape, self._reader(run).block(number), key_columns, hashes)
        )

    def read_segment(self, segment: int) -> list[pa.RecordBatch]:
        return [self._reader(run).block(number) for run, number in self._blocks(segment)]

    def find(self, load_id: str) -> int | None:
        if load_id in self._entry.loads:
            return self._entry.loads[load_id]
        newest = self._parts.log.newest()
        return None if newest <= self.version else self._parts.log.read(newest).loads.get(load_id)

    def brought(self, load_id: str) -> pa.Table:
        """The rows that a load inserted, up to this version; none when it made no version or a newer one."""
        blocks = [
            self._reader(file.run).block(number)
            for file in self._files_made_at(self._entry.loads.get(load_id))
            for number in range(file.run.blocks)
        ]
        return pa.Table.from_batches(blocks, self._entry.shape.block_schema).select(self.schema.names)

    def at(self, version: int | None = None) -> "Relation":
        number = self._parts.log.newest() if version is None else version
        return Relation(self._parts, self._parts.log.read(number), self._readers)

    def append(self, rows: pa.RecordBatch | pa.Table, load_id: str, highest: int) -> "Relation":
        if not load_id:
            raise BadInput(f"relation {self.name}: rows need the id of the load that brings them")
        made = self.find(load_id)
        if made is not None:
            return self.at(made)
        if highest < self.highest:
            raise BadInput(
                f"relation {self.name}, load {load_id}: highest surrogate key {highest} is below "
                f"{self.highest} of version {self.version}; a key is never given twice"
            )
        file = write_file(self._parts.runs, self._entry.shape, check_rows(self._entry.shape, rows), load_id)
        entry = replace(
            self._entry,
            version=self.version + 1,
            created_at=timestamp(self._parts.clock),
            load_id=load_id,
            highest=highest,
            files=(*self._entry.files, *file),
            loads={**self._entry.loads, load_id: self.version + 1},
        )
        try:
            self._parts.log.commit(entry)
        except AlreadyPublished:
            return self._after_lost_race(load_id, file)
        return Relation(self._parts, entry, self._readers)

    def describe(self) -> RelationDescription:
        return RelationDescription(
            name=self.name,
            version=self.version,
            created_at=self._entry.created_at,
            load_id=self._entry.load_id,
            rows=self.rows,
            highest=self.highest,
            segments=self.segments,
            files=len(self._entry.files),
            bytes=sum(file.run.bytes for file in self._entry.files),
        )

    def verify(self) -> None:
        """Read every file that this version names; the first that is missing or damaged raises its error."""
        for file in self._entry.files:
            reader = self._parts.runs.open(file.run)
            rows = sum(reader.rows_in_block(number) for number in range(len(reader)))
            reader.close()
            if (len(reader), rows) != (len(file.segments), file.run.rows):
                raise CorruptFile(
                    f"run {file.run.name} of relation {self.name} holds {rows} rows in {len(reader)} blocks, "
                    f"but version {self.version} names {file.run.rows} in {len(file.segments)}: restore it"
                )

    def close(self) -> None:
        """Let go of the files, also of the versions that share them; a later probe opens them again."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _blocks(self, segment: int) -> list[tuple[RunName, int]]:
        if not 0 <= segment < self.segments:
            raise BadInput(f"relation {self.name} has no segment {segment}: it has {self.segments}, numbered from 0")
        return self._blocks_of_segment[segment]

    def _files_made_at(self, version: int | None) -> tuple[RelationFile, ...]:
        """A version's files are those of the version before it and at most one more."""
        if version is None:
            return ()
        before = self._parts.log.read(version - 1).files if version > 1 else ()
        made = self._parts.log.read(version).files
        return made[len(before) :]

    def _reader(self, run: RunName) -> RunReader:
        if run.name not in self._readers:
            self._readers[run.name] = self._parts.runs.open(run, check_content=False)
        return self._readers[run.name]

    def _after_lost_race(self, load_id: str, file: tuple[RelationFile, ...]) -> "Relation":
        """Our version number is taken: by another attempt of the same load, or by another load."""
        for orphan in file:
            self._parts.runs.delete(orphan.run)
        winner = self._parts.log.read(self.version + 1)
        made = self.find(load_id)
        if made is not None:
            return self.at(made)
        raise CommitRace(
            f"relation {self.name}: load {winner.load_id} made version {winner.version} before load "
            f"{load_id} could; resolve against the newest version and append again"
        )


def write_file(runs: RunStore, shape: RelationShape, rows: pa.Table, load_id: str) -> tuple[RelationFile, ...]:
    """One run with all the rows, durable but named by no version yet; nothing when there are no rows."""
    if rows.num_rows == 0:
        return ()
    writer = runs.writer(file_label(load_id), shape.block_schema)
    segments = []
    try:
        for segment, block in sorted_blocks(shape, rows, load_id):
            writer.append(block)
            segments.append(segment)
        return (RelationFile(writer.seal(), tuple(segments)),)
    finally:
        writer.abandon()


def first_version(parts: RelationParts, shape: RelationShape, rows: pa.Table, highest: int) -> Relation:
    """Commit version 1; AlreadyPublished when the relation exists."""
    entry = VersionEntry(
        shape=shape,
        version=1,
        created_at=timestamp(parts.clock),
        load_id=CREATED_WITH_RELATION,
        highest=highest,
        files=write_file(parts.runs, shape, check_rows(shape, rows), CREATED_WITH_RELATION),
        loads={},
    )
    parts.log.commit(entry)
    return Relation(parts, entry)


def timestamp(clock: WallClock) -> str:
    return clock().isoformat(timespec="milliseconds")
