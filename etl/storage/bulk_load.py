"""Making relation segments from any number of rows in bounded memory.

Idea: the rows are set aside as they come, because only when all have been seen is it known how many there are and how
their coordinates are spread. Then they are dealt out to portions of ascending coordinates that each fit into memory,
and each portion is sorted, cut into segments and written. Rows that fit into memory from the start are one portion
and never set aside on disk.

Limits: every row is written three times, twice of it to scratch files. A portion may outgrow its share of the memory
when very many rows have the same coordinate.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput
from etl.kernels.ranks import common_prefix
from etl.kernels.scatter import scatter
from etl.storage.partitioning import Coordinates, Partitioning, one_segment
from etl.storage.ports import RunName, RunStore
from etl.storage.relation_rows import RelationShape, block_batches, segment_block
from etl.storage.scratch import Scratch
from etl.storage.segment_cutting import SegmentCutter, SegmentRows

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how many rows of it are done, and of how many (0 while nobody knows)."""

DEFAULT_MEMORY_BYTES = 256 << 20
_RUN_BYTES = 256 << 20
_SAMPLE = 1 << 16
# A portion is held several times at its worst: as it was read, in one piece, and sorted.
_SHARE_OF_PORTION = 6


def no_progress(work: str, done: int, total: int) -> None:
    """For callers that do not ask."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How much memory a load may use, where it sets rows aside, and whom it tells."""

    scratch: Path | None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    progress: Progress = no_progress
    run_bytes: int = _RUN_BYTES

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 << 20:
            raise BadInput(f"memory_bytes is {self.memory_bytes}; give a bulk load one MiB (1048576) or more")


class Spool:
    """Stored rows as they come, in memory while they fit; remembers what the portions will depend on."""

    def __init__(self, shape: RelationShape, settings: LoadSettings) -> None:
        self._shape = shape
        self._settings = settings
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._scratch: Scratch | None = None
        self._pieces = 0
        self._first_value: bytes | None = None
        self.rows = 0
        self.bytes = 0
        self.skip = 0

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        if self._shape.partition == "range":
            self._note_prefix(rows)
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._settings.memory_bytes // _SHARE_OF_PORTION:
            self._set_aside()

    @property
    def fits_into_memory(self) -> bool:
        return self._scratch is None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._scratch is not None:
            yield from (self._scratch.read(number) for number in range(self._pieces))
        yield from self._held

    def close(self) -> None:
        self._held.clear()
        if self._scratch is not None:
            self._scratch.close()

    def _set_aside(self) -> None:
        if self._scratch is None:
            self._scratch = Scratch(self._settings.scratch, self._shape.stored)
        for batch in self._held:
            self._scratch.append(batch)
        self._pieces += len(self._held)
        self._held.clear()
        self._held_bytes = 0

    def _note_prefix(self, rows: pa.RecordBatch) -> None:
        """Keep `skip` the number of leading bytes that all ranked values share."""
        view = self._shape.keys_of_stored(rows).views[self._shape.range_position]
        shared = common_prefix(view)
        value = rows.column(self._shape.range_by)[0].as_py()
        first = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
        if self._first_value is None:
            self._first_value, self.skip = first, shared
        self.skip = min(self.skip, shared, _shared(self._first_value, first))


def _shared(one: bytes, other: bytes) -> int:
    differs = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


def portions(
    shape: RelationShape, spool: Spool, partitioning: Partitioning, settings: LoadSettings
) -> Iterator[tuple[pa.Table, Coordinates]]:
    """All rows with their coordinates, in portions of ascending coordinates, each in any order inside."""
    if spool.fits_into_memory:
        if spool.rows:
            yield _portion(shape, partitioning, list(spool.batches()))
        return
    count = -(-spool.bytes * _SHARE_OF_PORTION // settings.memory_bytes)
    coarse = partitioning.redrawn(_coarse_boundaries(shape, spool, partitioning, count))
    scratch = Scratch(settings.scratch, shape.stored)
    try:
        pieces = _dealt_out(shape, spool, coarse, scratch, settings)
        for numbers in pieces:
            if numbers:
                yield _portion(shape, partitioning, [scratch.read(number) for number in numbers])
    finally:
        scratch.close()


def cut_segments(
    shape: RelationShape, spool: Spool, partitioning: Partitioning, settings: LoadSettings
) -> Iterator[SegmentRows]:
    """All rows in the spool as segments of theta to 2 * theta rows, ascending."""
    cutter = SegmentCutter(shape.stored, shape.theta)
    for rows, coordinates in portions(shape, spool, partitioning, settings):
        yield from cutter.feed(rows, coordinates)
    yield from cutter.finish()


def write_segments(
    runs: RunStore,
    shape: RelationShape,
    label: str,
    segments: Iterable[tuple[int, pa.RecordBatch]],
    run_bytes: int = _RUN_BYTES,
) -> Iterator[RunName]:
    """Runs of about `run_bytes` with the segments, each given with the first coordinate that belongs to it."""
    writer, size = None, 0
    try:
        for first_coordinate, rows in segments:
            for batch in block_batches(pa.Table.from_batches([rows])):
                writer = runs.writer(label, shape.block) if writer is None else writer
                writer.append(segment_block(shape, first_coordinate, batch))
                size += batch.nbytes
            if writer is not None and size >= run_bytes:
                yield writer.seal()
                writer, size = None, 0
        if writer is not None:
            yield writer.seal()
    finally:
        if writer is not None:
            writer.abandon()


def spooled_partitioning(shape: RelationShape, spool: Spool) -> Partitioning:
    return one_segment(shape.partition, shape.range_position, spool.skip)


def _portion(
    shape: RelationShape, partitioning: Partitioning, batches: list[pa.RecordBatch]
) -> tuple[pa.Table, Coordinates]:
    coordinates = [partitioning.coordinates(shape.keys_of_stored(batch)) for batch in batches]
    return pa.Table.from_batches(batches, shape.stored), np.concatenate(coordinates)


def _coarse_boundaries(shape: RelationShape, spool: Spool, partitioning: Partitioning, count: int) -> Coordinates:
    """First coordinates of about `count` portions of about equal size, from a sample."""
    every = max(1, spool.rows // _SAMPLE)
    sampled, passed = [], 0
    for batch in spool.batches():
        rows = batch.take(pa.array(np.arange(-passed % every, batch.num_rows, every)))
        sampled.append(partitioning.coordinates(shape.keys_of_stored(rows)))
        passed += batch.num_rows
    sample = np.sort(np.concatenate(sampled))
    chosen = sample[np.arange(1, count) * sample.size // count]
    return np.unique(np.concatenate([np.zeros(1, np.uint64), chosen]))


def _dealt_out(
    shape: RelationShape, spool: Spool, coarse: Partitioning, scratch: Scratch, settings: LoadSettings
) -> list[list[int]]:
    """Set all rows aside by portion; for each portion the numbers of its pieces."""
    pieces: list[list[int]] = [[] for _ in range(coarse.segments)]
    done = 0
    for batch in _gathered(spool.batches(), settings.memory_bytes // _SHARE_OF_PORTION):
        order, offsets = scatter(coarse.segment_of(shape.keys_of_stored(batch)), coarse.segments)
        ordered = batch.take(pa.array(order))
        for portion in np.flatnonzero(np.diff(offsets)).tolist():
            start, end = int(offsets[portion]), int(offsets[portion + 1])
            pieces[portion].append(scratch.append(ordered.slice(start, end - start)))
        done += batch.num_rows
        settings.progress("dealing out", done, spool.rows)
    return pieces


def _gathered(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def highest_of(column: pa.Array) -> int:
    """The highest surrogate key in a column; 0 when it holds none."""
    return int(pc.max(column).as_py() or 0)
