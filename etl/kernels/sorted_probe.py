"""Probing an array that is sorted by hash: nothing is built, a memory-mapped file will do.

Hashes are spread evenly, so the place of one can be guessed, and the guess is off by about the square root of
the length. A step by the distance that is left is off by about the square root of that step; after two such
steps the place is a cache line or two away. Doubling and halving steps end the search, and bound the work by
the logarithm of the length on any distribution. Guesses are made, and their cache lines asked for, some rows
ahead.

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
_FAR_AHEAD = 16
_NEAR_AHEAD = 8


@helper
def _density(sorted_hashes: UInt64s) -> float:
    """Places per unit of hash, if the hashes were spaced evenly."""
    spread = sorted_hashes[-1] - sorted_hashes[0]
    return (sorted_hashes.size - 1) / np.float64(spread) if spread else 0.0


@helper
def _step(sorted_hashes: UInt64s, key_hash: np.uint64, place: int, density: float) -> int:
    """Step from a place by the distance that is left; a hash beyond the ends counts as the end."""
    wanted = min(max(key_hash, sorted_hashes[0]), sorted_hashes[-1])
    found = sorted_hashes[place]
    if found < wanted:
        return min(place + int(np.float64(wanted - found) * density), sorted_hashes.size - 1)
    return max(place - int(np.float64(found - wanted) * density), 0)


@helper
def _second_guess(sorted_hashes: UInt64s, key_hash: np.uint64, density: float) -> int:
    first_guess = _step(sorted_hashes, key_hash, 0, density)
    return _step(sorted_hashes, key_hash, first_guess, density)


@helper
def _prefetch_guesses(sorted_hashes: UInt64s, hashes: UInt64s, position: int, density: float) -> None:
    """The first guess needs no memory; the second reads at the first, asked for a few rows ago."""
    start = sorted_hashes.ctypes.data
    first_guess = _step(sorted_hashes, hashes[position + _FAR_AHEAD], 0, density)
    prefetch(start + np.uintp(8 * first_guess))
    second_guess = _second_guess(sorted_hashes, hashes[position + _NEAR_AHEAD], density)
    prefetch(start + np.uintp(8 * second_guess))


@helper
def _first_not_below(sorted_hashes: UInt64s, key_hash: np.uint64, place: int) -> int:
    """The first place whose hash is not below `key_hash`: doubling steps from the guess, then halving."""
    step = 1
    if sorted_hashes[place] < key_hash:
        low, high = place + 1, place + 1
        while high < sorted_hashes.size and sorted_hashes[high] < key_hash:
            low = high + 1
            high += step
            step += step
        high = min(high, sorted_hashes.size)
    else:
        low, high = place, place
        while low > 0 and sorted_hashes[low - 1] >= key_hash:
            high = low - 1
            low -= step
            step += step
        low = max(low, 0)
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
    density = _density(sorted_hashes)
    while position < hashes.size and count < positions.size:
        key_hash = hashes[position]
        if place == _FRESH:
            if position + _FAR_AHEAD < hashes.size:
                _prefetch_guesses(sorted_hashes, hashes, position, density)
            if not valid.size or valid[position]:
                guess = _second_guess(sorted_hashes, key_hash, density)
                guess = _step(sorted_hashes, key_hash, guess, density)
                place = _first_not_below(sorted_hashes, key_hash, guess)
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
