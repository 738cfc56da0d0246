"""Merging two ascending arrays into the index pairs that an equality or a band predicate accepts.

One pass over both: the first right value that a left value can reach only moves forward. Distances are taken
unsigned, in the direction known not to be negative, so nothing overflows at the ends of the integer range.

Invariant: both arrays ascend (not checked: that would cost as much as the merge); duplicates are welcome on
both sides.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core.typing.templates import Signature

from etl.kernels.chunks import DEFAULT_LIMIT, Pairs, pair_chunks
from etl.kernels.compiling import Int64s, UInt64s, helper, input_of, kernel, output_of, tuple_of

__all__ = ["Keys", "merge_equal", "merge_band"]

Keys = Int64s | UInt64s


def merge_equal(left: Keys, right: Keys, limit: int = DEFAULT_LIMIT) -> Iterator[Pairs]:
    """Chunks of at most `limit` index pairs with equal values, ascending by left, then right index."""
    return merge_band(left, right, 0, 0, limit)


def merge_band(left: Keys, right: Keys, below: int, above: int, limit: int = DEFAULT_LIMIT) -> Iterator[Pairs]:
    """Chunks of at most `limit` index pairs with left - below <= right <= left + above, in the same order."""
    if left.dtype != right.dtype or left.dtype not in (np.int64, np.uint64):
        raise TypeError(f"cannot merge {left.dtype} with {right.dtype}: both are int64, or both uint64")
    if below < 0 or above < 0:
        raise ValueError(f"a band reaches from left - {below} to left + {above}: neither reach may be negative")
    left_keys, right_keys = np.ascontiguousarray(left), np.ascontiguousarray(right)
    reach_below, reach_above = np.uint64(min(below, _FARTHEST)), np.uint64(min(above, _FARTHEST))

    def fill(cursor: tuple[int, ...], left_index: Int64s, right_index: Int64s) -> tuple[int, tuple[int, ...]]:
        return _merge(left_keys, right_keys, reach_below, reach_above, cursor, left_index, right_index)

    return pair_chunks(fill, (0, 0, 0), left.size, limit)


_FARTHEST = 2**64 - 1

_CURSOR = tuple_of(types.int64, types.int64, types.int64)


@helper
def _is_below(value: np.integer[Any], left: np.integer[Any], reach: np.uint64) -> bool:
    """value < left - reach, without computing the difference of the two when it would be negative."""
    return bool(value < left and np.uint64(left) - np.uint64(value) > reach)


@helper
def _is_above(value: np.integer[Any], left: np.integer[Any], reach: np.uint64) -> bool:
    """value > left + reach, likewise."""
    return bool(value > left and np.uint64(value) - np.uint64(left) > reach)


def _signature(keys: types.Type) -> Signature:
    numbers = output_of(types.int64)
    result = tuple_of(types.int64, _CURSOR)
    return result(input_of(keys), input_of(keys), types.uint64, types.uint64, _CURSOR, numbers, numbers)


@kernel(_signature(types.int64), _signature(types.uint64))
def _merge(
    left: npt.NDArray[np.integer[Any]],
    right: npt.NDArray[np.integer[Any]],
    below: np.uint64,
    above: np.uint64,
    cursor: tuple[int, ...],
    left_index: Int64s,
    right_index: Int64s,
) -> tuple[int, tuple[int, ...]]:
    """Write pairs until the output is full or one side ends; return the count and where to go on.

    The cursor: a left position, the first right position that may be in its reach, and the next to look at.
    """
    position, first, partner = cursor
    count = 0
    while position < left.size and first < right.size and count < left_index.size:
        value = left[position]
        while first < right.size and _is_below(right[first], value, below):
            first += 1
        partner = max(partner, first)
        while partner < right.size and not _is_above(right[partner], value, above) and count < left_index.size:
            left_index[count] = position
            right_index[count] = partner
            count += 1
            partner += 1
        if partner == right.size or _is_above(right[partner], value, above):
            position += 1
            partner = first
    return count, (position, first, partner)
