"""Probing many blocks that are each sorted by hash, in one call: nothing is built, memory-mapped files will do.

Idea: the search of `sorted_probe` (guesses from the spacing of the hashes, each closer than the last, then
doubling and halving steps), made in groups. A group is some dozens of searches, each a probe row in one block.
All of them make their next guess before any makes the one after, so the memory they wait for is on its way at
the same time.

State of one call: the lowest hash and the spacing of each block that was met, read when it is met first.
Invariant: the hashes of a block ascend (not checked: that would cost more than the probe).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from etl.kernels.chunks import DEFAULT_LIMIT
from etl.kernels.compiling import (
    Bools,
    Int32s,
    Int64s,
    UInt64s,
    helper,
    input_of,
    kernel,
    output_of,
    signed,
    tuple_of,
    validity,
)
from etl.kernels.intrinsics import load_64, prefetch
from etl.kernels.segment_ranges import checked_segments, checked_starts

__all__ = ["BlockPairs", "probe_blocks"]


class BlockPairs(NamedTuple):
    """Pairs of a probe row and a stored row; a stored row is named by its block and its place there."""

    positions: Int64s
    block: Int32s
    row: Int64s


def probe_blocks(
    blocks_from: Int64s,
    hash_address: UInt64s,
    block_rows: Int64s,
    segment: Int32s,
    hashes: UInt64s,
    valid: Bools | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Iterator[BlockPairs]:
    """Chunks of at most `limit` pairs with equal hashes, ascending by probe position, block and row.

    The blocks of segment s are numbered `blocks_from[s]` to `blocks_from[s + 1] - 1`; block b is `block_rows[b]`
    ascending hashes at `hash_address[b]`, which the caller keeps alive until the last chunk is taken. A probe
    row looks into the blocks of its `segment` only; -1 stands for none.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}: a chunk holds at least one pair")
    directory = _directory(blocks_from, hash_address, block_rows)
    hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
    segment = checked_segments(segment, hashes.size, directory[0].size - 1)
    probe = segment, hashes, validity(valid, hashes.size)
    lowest, density = np.empty(block_rows.size), np.full(block_rows.size, _UNKNOWN)

    def fill(cursor: _Cursor, pairs: BlockPairs) -> tuple[int, _Cursor]:
        return _probe(directory, (lowest, density), probe, cursor, pairs[:])

    return _chunks(fill, hashes.size, limit)


Float64s = npt.NDArray[np.float64]

_Cursor = tuple[int, int, int]
_Directory = tuple[Int64s, UInt64s, Int64s]
_Spacing = tuple[Float64s, Float64s]
_Probe = tuple[Int32s, UInt64s, Bools]
_Group = tuple[Int64s, Int64s, Int64s]

_FRESH = -1
_UNKNOWN = -1.0
_GROUP_SIZE = 64
_REFINEMENTS = 3


def _directory(blocks_from: Int64s, hash_address: UInt64s, block_rows: Int64s) -> _Directory:
    if hash_address.size != block_rows.size:
        raise ValueError(f"there are {hash_address.size} hash addresses for {block_rows.size} blocks: give one each")
    addresses = np.ascontiguousarray(hash_address, dtype=np.uint64)
    rows = np.ascontiguousarray(block_rows, dtype=np.int64)
    culprits = np.flatnonzero((rows < 0) | ((rows > 0) & (addresses == 0)))
    if culprits.size:
        block = int(culprits[0])
        raise ValueError(f"block {block} has {rows[block]} rows at address {addresses[block]}: it has no such hashes")
    return checked_starts(blocks_from, rows.size, "blocks_from"), addresses, rows


def _chunks(
    fill: Callable[[_Cursor, BlockPairs], tuple[int, _Cursor]], probe_rows: int, limit: int
) -> Iterator[BlockPairs]:
    """The loop of `chunks.pair_chunks`, with three arrays instead of two."""
    cursor: _Cursor = (0, _FRESH, _FRESH)
    room = min(limit, probe_rows + 1)
    while True:
        pairs = BlockPairs(np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int64))
        count, cursor = fill(cursor, pairs)
        if count:
            yield BlockPairs(pairs.positions[:count], pairs.block[:count], pairs.row[:count])
        if count < room:
            return
        room = min(limit, 4 * room)


_CURSOR = tuple_of(types.int64, types.int64, types.int64)


@helper
def _collect(
    directory: _Directory, probe: _Probe, position: int, number: int, group: _Group, wanted: int
) -> tuple[int, int, int]:
    """Fill the group with the next searches, from block `number` of the row at `position` on.

    Returns how many there are, and the position and block of the first that did not go in.
    """
    blocks_from, block_rows = directory[0], directory[2]
    segment, _, valid = probe
    filled = 0
    while position < segment.size and filled < wanted:
        owner = segment[position]
        if owner < 0 or (valid.size and not valid[position]):
            position += 1
            continue
        end = blocks_from[owner + 1]
        if number == _FRESH:
            number = blocks_from[owner]
        while number < end and filled < wanted:
            if block_rows[number]:
                group[0][filled] = position
                group[1][filled] = number
                filled += 1
            number += 1
        if number == end:
            position += 1
            number = _FRESH
    return filled, position, number


@helper
def _look_at_spacing(directory: _Directory, spacing: _Spacing, number: int) -> None:
    """Lowest hash, and rows per unit of hash if the hashes were spaced evenly."""
    start, rows = signed(directory[1][number]), directory[2][number]
    first = load_64(start)
    spread = load_64(start + 8 * (rows - 1)) - first
    spacing[0][number] = np.float64(first)
    spacing[1][number] = (rows - 1) / np.float64(spread) if spread else 0.0


@helper
def _step(start: int, rows: int, key_hash: np.uint64, row: int, density: float) -> int:
    """Step from a row by the distance that is left, but not beyond the ends.

    Floats lose the lowest bits of a hash, which a guess can spare; up or down is then not a branch.
    """
    distance = np.float64(key_hash) - np.float64(load_64(start + 8 * row))
    return int(min(max(row + distance * density, 0.0), np.float64(rows - 1)))


@helper
def _approach(directory: _Directory, spacing: _Spacing, hashes: UInt64s, group: _Group, searches: int) -> None:
    """Bring every search of the group to a row close to where its hash must be; asks for that row's memory."""
    _, hash_address, block_rows = directory
    lowest, density = spacing
    positions, numbers, rows = group
    for search in range(searches):
        number = numbers[search]
        if density[number] == _UNKNOWN:
            start = signed(hash_address[number])
            prefetch(start)
            prefetch(start + 8 * (block_rows[number] - 1))
    for search in range(searches):
        number = numbers[search]
        if density[number] == _UNKNOWN:
            _look_at_spacing(directory, spacing, number)
        # The first guess reads nothing from the block.
        distance = np.float64(hashes[positions[search]]) - lowest[number]
        rows[search] = int(min(max(distance * density[number], 0.0), np.float64(block_rows[number] - 1)))
        prefetch(signed(hash_address[number]) + 8 * rows[search])
    for _ in range(_REFINEMENTS):
        for search in range(searches):
            number = numbers[search]
            start = signed(hash_address[number])
            key_hash = hashes[positions[search]]
            rows[search] = _step(start, block_rows[number], key_hash, rows[search], density[number])
            prefetch(start + 8 * rows[search])


@helper
def _first_not_below(start: int, rows: int, key_hash: np.uint64, row: int) -> int:
    """The first row whose hash is not below `key_hash`: doubling steps from the guess, then halving."""
    step = 1
    if load_64(start + 8 * row) < key_hash:
        low, high = row + 1, row + 1
        while high < rows and load_64(start + 8 * high) < key_hash:
            low = high + 1
            high += step
            step += step
        high = min(high, rows)
    else:
        low, high = row, row
        while low > 0 and load_64(start + 8 * (low - 1)) >= key_hash:
            high = low - 1
            low -= step
            step += step
        low = max(low, 0)
    while low < high:
        middle = (low + high) >> 1
        if load_64(start + 8 * middle) < key_hash:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(
    tuple_of(types.int64, _CURSOR)(
        tuple_of(input_of(types.int64), input_of(types.uint64), input_of(types.int64)),
        tuple_of(output_of(types.float64), output_of(types.float64)),
        tuple_of(input_of(types.int32), input_of(types.uint64), input_of(types.boolean)),
        _CURSOR,
        tuple_of(output_of(types.int64), output_of(types.int32), output_of(types.int64)),
    )
)
def _probe(
    directory: _Directory, spacing: _Spacing, probe: _Probe, cursor: _Cursor, pairs: tuple[Int64s, Int32s, Int64s]
) -> tuple[int, _Cursor]:
    """Write pairs until the output is full or the probe rows end; return the count and where to go on.

    The cursor is a probe position, a block number or _FRESH for the first of its segment, and the next row in
    a run of equal hashes left half-way, or _FRESH.
    """
    position, number, resumed = cursor
    hashes, room = probe[1], pairs[0].size
    group = np.empty(_GROUP_SIZE, np.int64), np.empty(_GROUP_SIZE, np.int64), np.empty(_GROUP_SIZE, np.int64)
    count = 0
    while count < room:
        # A group left half-way starts over in the next chunk: no more searches than there is room for.
        wanted = min(_GROUP_SIZE, room - count)
        searches, position, number = _collect(directory, probe, position, number, group, wanted)
        if searches == 0:
            break
        _approach(directory, spacing, hashes, group, searches)
        for search in range(searches):
            key_hash, block = hashes[group[0][search]], group[1][search]
            start, rows = signed(directory[1][block]), directory[2][block]
            if resumed == _FRESH:
                row = _first_not_below(start, rows, key_hash, group[2][search])
            else:
                row = resumed
                resumed = _FRESH
            while row < rows and load_64(start + 8 * row) == key_hash:
                if count == room:
                    return count, (group[0][search], block, row)
                pairs[0][count] = group[0][search]
                pairs[1][count] = block
                pairs[2][count] = row
                count += 1
                row += 1
    return count, (position, number, _FRESH)
