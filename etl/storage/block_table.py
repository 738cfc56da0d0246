"""All blocks of one relation version as arrays of addresses, so that one kernel call probes any number of segments.

Idea: a block of the table is a stretch of rows of one relation segment, sorted by key hash (on disk: a slice of a
run's block). The table says for each segment which blocks it has and for each block where its columns begin,
whether that is in a mapped file or in private memory. So a stream batch is probed against all the segments
that it touches at once, with no Python per segment and no build.

State: `blocks_from[s] .. blocks_from[s + 1]` are the blocks of segment s; per column the addresses of all blocks;
whatever keeps those addresses alive.

Invariants: a table never changes; `pinned` makes another one. Pairs are verified: equal hashes only
nominate them, the key columns decide.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.blocks import (
    BlockColumn,
    BlockPairs,
    block_column,
    equal_in_blocks,
    gather_from_blocks,
    probe_blocks,
)
from etl.kernels.chunks import DEFAULT_LIMIT
from etl.kernels.columns import ColumnView, Kind, view
from etl.kernels.hashing import proves_equality
from etl.storage import page_cache
from etl.storage.partitioning import Partitioning
from etl.storage.ports import Keys, Segments
from etl.storage.relation_rows import HASH_COLUMN, RelationShape
from etl.storage.relation_runs import OpenRun

Int64s: TypeAlias = npt.NDArray[np.int64]
SegmentNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer]


_PAGE_BYTES = 4096
_LOOKS = 8
_PAGES_FOR_A_VALUE = 64
"""How many pages, read in a stretch, take as long as finding one value: about four pages that are waited for alone."""


class Blocks(NamedTuple):
    """Where the blocks come from, block by block: the run, and the slice of it."""

    run: Int64s
    slice: Int64s
    rows: Int64s
    bytes: Int64s


class _Copy(NamedTuple):
    """A block in private memory."""

    rows: pa.RecordBatch
    bytes: int


class BlockTable:
    """The blocks of one version; see `block_table`."""

    def __init__(
        self,
        shape: RelationShape,
        runs: Sequence[OpenRun],
        blocks_from: Int64s,
        blocks: Blocks,
        columns: Mapping[str, BlockColumn],
        pinned: Mapping[int, _Copy],
    ) -> None:
        self._shape = shape
        self._runs = runs
        self._columns = columns
        self._pinned = pinned
        self._key_columns = [columns[name] for name in shape.key]
        self._key_views = _no_keys(shape)
        self.blocks_from = blocks_from
        self.blocks = blocks
        self.index_bytes = _index_bytes(columns)
        """What the addresses take; a table without copies is the relation's own and shared by all who look at it."""
        self.pinned_bytes = sum(copy.bytes for copy in pinned.values()) + (self.index_bytes if pinned else 0)
        """What this table takes beyond the relation's own."""

    @property
    def segments(self) -> int:
        return int(self.blocks_from.size) - 1

    @cached_property
    def segment_rows(self) -> Int64s:
        return self._per_segment(self.blocks.rows)

    @cached_property
    def segment_bytes(self) -> Int64s:
        """What a copy of each segment takes in memory."""
        return self._per_segment(self.blocks.bytes)

    @cached_property
    def segment_blocks(self) -> Int64s:
        return np.diff(self.blocks_from)

    def probe(self, segment: Segments, keys: Keys, limit: int = DEFAULT_LIMIT) -> Iterator[BlockPairs]:
        """Pairs (position among the keys, block, row in the block) with equal keys, at most `limit` at a time.

        Each key is looked for in its `segment` only; -1 leaves it out. Null keys match nothing.
        """
        if len(keys.views) != len(self._key_columns):
            raise BadInput(
                f"relation {self._shape.name} has the key {self._shape.key}, but the probe has "
                f"{len(keys.views)} columns"
            )
        return self._verified(segment, keys, limit)

    def take(self, columns: Sequence[str], pairs: BlockPairs) -> list[pa.Array]:
        """The relation's side of the pairs: these columns, of the relation or `_created_by`."""
        return [
            gather_from_blocks(self._columns[name], self._shape.stored.field(name).type, pairs.block, pairs.row)
            for name in columns
        ]

    def pinned(self, segments: SegmentNumbers, previous: "BlockTable | None" = None) -> "BlockTable":
        """A table in which the blocks of exactly these segments are copies in private memory.

        Copies that this table has already, or a `previous` one of an older version, are used again; those of other
        segments go with the last table that holds them.
        """
        at_hand = {**({} if previous is None else previous._places()), **self._places()}
        wanted = self._blocks_of(segments)
        pinned = {block: at_hand.get(self._place(block)) or self._copy(block) for block in wanted}
        moved = {block: copy for block, copy in pinned.items() if block not in self._pinned}
        moved.update((block, self._slice(block)) for block in self._pinned if block not in pinned)
        return self._moved(moved, pinned)

    def read_ahead(self, segments: npt.NDArray[np.intp], rows: Int64s) -> None:
        """So many rows are about to be looked up in each of these segments: fetch what they are likely to touch.

        A segment that few rows touch is left to page faults, and so is one that is in the page cache.
        """
        pages = self.segment_bytes[segments] // _PAGE_BYTES
        dense = segments[rows * len(self._columns) * _PAGES_FOR_A_VALUE >= pages]
        mapped = [block for block in self._blocks_of(dense) if block not in self._pinned]
        # A look costs some microseconds: where a few blocks are in the page cache, the others are taken to be too.
        if any(map(self._is_cold, mapped[:: max(1, len(mapped) // _LOOKS)])):
            blocks = [block for block in mapped if self._is_cold(block)]
            page_cache.read_ahead(self._fixed_stretches(blocks))
            page_cache.read_ahead(self._variable_stretches(blocks))

    def _is_cold(self, block: int) -> bool:
        middle = int(self._columns[HASH_COLUMN].values[block]) + 4 * int(self.blocks.rows[block])
        return not page_cache.is_resident(middle)

    def _fixed_stretches(self, blocks: list[int]) -> Iterator[tuple[int, int]]:
        """Where the fixed-width values of these blocks lie, and the offsets of the others."""
        for column in self._columns.values():
            starts = column.offsets if column.kind >= Kind.OFFSETS_32 else column.values
            for block in blocks:
                yield int(starts[block]), int(self.blocks.rows[block]) * max(1, column.width)

    def _variable_stretches(self, blocks: list[int]) -> Iterator[tuple[int, int]]:
        """Where the bytes of variable-width values lie; their offsets are on their way already."""
        for column in self._columns.values():
            if column.kind < Kind.OFFSETS_32:
                continue
            offset = ctypes.c_int32 if column.kind == Kind.OFFSETS_32 else ctypes.c_int64
            for block in blocks:
                place = int(column.offsets[block])
                first = offset.from_address(place).value
                last = offset.from_address(place + int(self.blocks.rows[block]) * column.width).value
                yield int(column.values[block]) + first, last - first

    def read_segment(self, segment: int) -> list[pa.RecordBatch]:
        """The rows of a segment, block by block, with their hashes and loads."""
        return [self._slice(block) for block in self._blocks_of([segment])]

    def filter_of(self, block: int) -> tuple[tuple[str, int], npt.NDArray[np.uint64]]:
        """The filter that covers a block, and its name: the run and the number of the run's block."""
        run = self._runs[self.blocks.run[block]]
        number = int(run.block[self.blocks.slice[block]])
        return (run.name, number), run.filter(number)

    def _verified(self, segment: Segments, keys: Keys, limit: int) -> Iterator[BlockPairs]:
        hash_decides = proves_equality(keys.views, self._key_views)
        hash_address = self._columns[HASH_COLUMN].values
        for pairs in probe_blocks(
            self.blocks_from, hash_address, self.blocks.rows, segment, keys.hashes, keys.valid, limit
        ):
            if not hash_decides:
                equal = equal_in_blocks(keys.views, pairs.positions, self._key_columns, pairs.block, pairs.row)
                if not equal.all():
                    pairs = BlockPairs(pairs.positions[equal], pairs.block[equal], pairs.row[equal])
            if pairs.positions.size:
                yield pairs

    def _per_segment(self, of_block: Int64s) -> Int64s:
        sums = np.concatenate([[0], np.cumsum(of_block)])
        return np.diff(sums[self.blocks_from])

    def _blocks_of(self, segments: SegmentNumbers) -> list[int]:
        numbers = np.asarray(segments, np.int64)
        astray = numbers[(numbers < 0) | (numbers >= self.segments)]
        if astray.size:
            raise BadInput(
                f"relation {self._shape.name} has no segment {astray[0]}: it has {self.segments}, numbered from 0"
            )
        counts = self.segment_blocks[numbers]
        first, before = self.blocks_from[numbers], np.cumsum(counts) - counts
        chosen: list[int] = (np.arange(counts.sum()) + np.repeat(first - before, counts)).tolist()
        return chosen

    def _places(self) -> dict[tuple[str, int], _Copy]:
        return {self._place(block): copy for block, copy in self._pinned.items()}

    def _place(self, block: int) -> tuple[str, int]:
        """Where a block comes from, in whichever version."""
        return self._runs[self.blocks.run[block]].name, int(self.blocks.slice[block])

    def _slice(self, block: int) -> pa.RecordBatch:
        return self._runs[self.blocks.run[block]].rows_of(int(self.blocks.slice[block]))

    def _copy(self, block: int) -> _Copy:
        # Writing and reading back is a copy of exactly the rows of the slice, in one piece of memory.
        message = self._slice(block).serialize()
        return _Copy(pa.ipc.read_record_batch(message, self._shape.stored), message.size)

    def _moved(self, moved: Mapping[int, _Copy | pa.RecordBatch], pinned: Mapping[int, _Copy]) -> "BlockTable":
        """This table with some blocks elsewhere."""
        if not moved:
            return self
        at = np.array(list(moved), np.int64)
        batches = [place.rows if isinstance(place, _Copy) else place for place in moved.values()]
        columns = {
            name: _replaced(column, at, block_column([rows.column(name) for rows in batches]))
            for name, column in self._columns.items()
        }
        return BlockTable(self._shape, self._runs, self.blocks_from, self.blocks, columns, pinned)


def _index_bytes(columns: Mapping[str, BlockColumn]) -> int:
    return sum(part.nbytes for column in columns.values() for part in column if isinstance(part, np.ndarray))


class LiveSlices(NamedTuple):
    """An open run and which of its slices belong to the version."""

    run: OpenRun
    live: npt.NDArray[np.bool_]


def block_table(shape: RelationShape, partitioning: Partitioning, parts: Sequence[LiveSlices]) -> BlockTable:
    """The table of a version: the live slices of its runs, by segment, older runs first."""
    numbers = [np.flatnonzero(part.live) for part in parts]
    first = [part.run.first_coordinate[which] for part, which in zip(parts, numbers, strict=True)]
    segment = partitioning.segment_at(np.concatenate([np.empty(0, np.uint64), *first]))
    order = np.argsort(segment, kind="stable")
    blocks_from: Int64s = np.searchsorted(segment[order], np.arange(partitioning.segments + 1)).astype(np.int64)

    def gathered(of_run: list[Int64s]) -> Int64s:
        chosen = [array[which] for array, which in zip(of_run, numbers, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *chosen])[order]

    blocks = Blocks(
        run=np.repeat(np.arange(len(parts)), [which.size for which in numbers])[order],
        slice=np.concatenate([np.empty(0, np.int64), *numbers])[order],
        rows=gathered([part.run.rows for part in parts]),
        bytes=gathered([part.run.slice_bytes for part in parts]),
    )
    columns = {
        name: _joined([part.run.columns[name] for part in parts], numbers, order, field.type)
        for name, field in zip(shape.stored.names, shape.stored, strict=True)
    }
    return BlockTable(shape, [part.run for part in parts], blocks_from, blocks, columns, {})


def _joined(
    columns: Sequence[BlockColumn], numbers: Sequence[Int64s], order: Int64s, type_: pa.DataType
) -> BlockColumn:
    empty = block_column([], type_)
    parts = [empty, *columns]
    chosen = [np.empty(0, np.int64), *numbers]

    def gathered(field: str) -> npt.NDArray[np.generic]:
        return np.concatenate([getattr(part, field)[which] for part, which in zip(parts, chosen, strict=True)])[order]

    return _with_arrays(empty, [gathered(field) for field in _PER_BLOCK])


_PER_BLOCK = ("values", "offsets", "validity", "bit_offset", "rows")


def _replaced(column: BlockColumn, at: Int64s, others: BlockColumn) -> BlockColumn:
    changed = []
    for field in _PER_BLOCK:
        array = getattr(column, field).copy()
        array[at] = getattr(others, field)
        changed.append(array)
    return _with_arrays(column, changed)


def _with_arrays(column: BlockColumn, arrays: Sequence[npt.NDArray[Any]]) -> BlockColumn:
    values, offsets, validity, bit_offset, rows = arrays
    return column._replace(values=values, offsets=offsets, validity=validity, bit_offset=bit_offset, rows=rows)


def _no_keys(shape: RelationShape) -> list[ColumnView]:
    return [view(pa.array([], shape.schema.field(name).type)) for name in shape.key]
