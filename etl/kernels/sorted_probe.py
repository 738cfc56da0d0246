"""Probing an array that is sorted by hash: nothing is built, a memory-mapped file will do.

Hashes are spread evenly, so the place of one can be computed and is off by about the square root of the
length. Each step looks that far to both sides of the computed place, which leaves a window of some square
root of the former size; after a few steps a binary search ends it. On a bad distribution the steps gain
little, and the binary search still bounds the work. Places are computed, and their cache lines asked for,
some rows ahead.

Invariant: `sorted_hashes` ascends (not checked: that would cost more than the probe).
"""

from collections.abc import Iterator

import numpy as np
from numba import types

from etl.kernels.chunks import DEFAULT_LIMIT, Pairs, pair_chunks
from etl.kernels.compiling import (
    Bools,
    Int64s,
    UInt64s,
    helper,
    input_of,
    kernel,
    output_of,
    tuple_of,
    validity,
)
from etl.kernels.intrinsics import prefetch

__all__ = ["sorted_probe"]


def sorted_probe(
    sorted_hashes: UInt64s, hashes: UInt64s, valid: Bools | None = None, limit: int = DEFAULT_LIMIT
) -> Iterator[Pairs]:
    """Chunks of at most `limit` pairs (probe position, sorted position) with equal hashes, ascending."""
    sorted_hashes = np.ascontiguousarray(sorted_hashes, dtype=np.uint64)
    hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
    mask = validity(valid, hashes.size)

    def fill(cursor: tuple[int, ...], positions: Int64s, places: Int64s) -> tuple[int, tuple[int, ...]]:
        return _probe(sorted_hashes, hashes, mask, cursor, positions, places)

    return pair_chunks(fill, (0, _FRESH), hashes.size, limit)


_FRESH = -1
_CURSOR = tuple_of(types.int64, types.int64)
_AHEAD = 8
_SMALL_WINDOW = 16
_MOST_STEPS = 4


@helper
def _computed_place(sorted_hashes: UInt64s, key_hash: np.uint64, low: int, high: int) -> int:
    """Where the hash would stand in [low, high) if the hashes between were spaced evenly."""
    first, last = sorted_hashes[low], sorted_hashes[high - 1]
    if key_hash <= first:
        return low
    if key_hash >= last:
        return high - 1
    share = np.float64(key_hash - first) / np.float64(last - first)
    return low + min(int(share * (high - 1 - low)), high - 1 - low)


@helper
def _prefetch_computed(sorted_hashes: UInt64s, key_hash: np.uint64) -> None:
    size = sorted_hashes.size
    place = _computed_place(sorted_hashes, key_hash, 0, size)
    reach = int(np.sqrt(size))
    address = sorted_hashes.ctypes.data
    prefetch(address + np.uintp(8 * max(place - reach, 0)))
    prefetch(address + np.uintp(8 * min(place + reach, size - 1)))


@helper
def _first_not_below(sorted_hashes: UInt64s, key_hash: np.uint64) -> int:
    """The first place whose hash is not below `key_hash`; it lies in [low, high] throughout."""
    low, high = 0, sorted_hashes.size
    for _ in range(_MOST_STEPS):
        if high - low <= _SMALL_WINDOW:
            break
        place = _computed_place(sorted_hashes, key_hash, low, high)
        reach = int(np.sqrt(high - low))
        for neighbour in (place - reach, place + reach):
            if low <= neighbour < high:
                if sorted_hashes[neighbour] < key_hash:
                    low = neighbour + 1
                else:
                    high = neighbour
    while low < high:
        middle = (low + high) >> 1
        if sorted_hashes[middle] < key_hash:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(
    tuple_of(types.int64, _CURSOR)(
        input_of(types.uint64),
        input_of(types.uint64),
        input_of(types.boolean),
        _CURSOR,
        output_of(types.int64),
        output_of(types.int64),
    )
)
def _probe(
    sorted_hashes: UInt64s,
    hashes: UInt64s,
    valid: Bools,
    cursor: tuple[int, ...],
    positions: Int64s,
    places: Int64s,
) -> tuple[int, tuple[int, ...]]:
    """Write pairs until the output is full or the probe rows end; return the count and where to go on.

    The cursor is a probe position and the next place in a row of equal hashes left half-way, or _FRESH.
    """
    position, place = cursor
    count = 0
    if sorted_hashes.size == 0:
        return 0, (hashes.size, _FRESH)
    while position < hashes.size and count < positions.size:
        key_hash = hashes[position]
        if place == _FRESH:
            if position + _AHEAD < hashes.size:
                _prefetch_computed(sorted_hashes, hashes[position + _AHEAD])
            if not valid.size or valid[position]:
                place = _first_not_below(sorted_hashes, key_hash)
            else:
                place = sorted_hashes.size
        while place < sorted_hashes.size and sorted_hashes[place] == key_hash and count < positions.size:
            positions[count] = position
            places[count] = place
            count += 1
            place += 1
        if place == sorted_hashes.size or sorted_hashes[place] != key_hash:
            place = _FRESH
            position += 1
    return count, (position, place)
