"""Order-preserving 64-bit ranks of one key column, and the segment of a relation that a rank falls into.

A greater value never has a smaller rank, and equal values have equal ranks whatever their container (an int32
5 ranks like a uint8 5). Values that differ only beyond what a rank can tell share it, and so stay in one
segment: a segment is found by its rank, a row in it by its key.

- Integers, dates, times and timestamps of at most 8 bytes: the value as a signed 64-bit number, sign flipped.
  A uint64 from 2**63 on has no such number and takes the highest rank.
- Strings and binary: 8 bytes after the first `skip`, the first byte highest, a shorter value filled up with
  zeros. Skip what all values share. A value that does not share it ranks by its later bytes all the same:
  out of order, but always at the same place.
- Null ranks 0.

Limits: fixed-size binary of 1, 2, 4 or 8 bytes looks like an integer in a `ColumnView` and is ranked as one;
wider decimals are ranked by their bytes as they lie. Both keep equal values together, but not in order.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from etl.kernels.cells import COLUMN, RawColumn, is_word, range_at, word_at
from etl.kernels.columns import ColumnView, Kind
from etl.kernels.compiling import Bools, Int32s, UInt64s, helper, input_of, kernel, output_of, signed, validity
from etl.kernels.intrinsics import load_8

__all__ = ["rank", "common_prefix", "SlotArray", "slot_array", "segment_of_rank"]


def rank(view: ColumnView, skip: int = 0) -> UInt64s:
    """The rank of each value; `skip` bytes are passed over in values that are bytes."""
    if skip < 0:
        raise ValueError(f"skip is {skip}: give the number of leading bytes that all values share")
    ranks: UInt64s = np.empty(view.length, dtype=np.uint64)
    _rank(view[:4], skip, ranks)
    if view.valid is not None:
        # Arrow leaves the bytes under a null undefined: without this the rank would differ from run to run.
        ranks[~view.valid] = 0
    return ranks


def common_prefix(view: ColumnView) -> int:
    """How many leading bytes all values share: what `rank` may skip. 0 for integers, and if there is no value."""
    if view.kind <= Kind.SIGNED:
        return 0
    return _common_prefix(view[:4], view.length, validity(view.valid, view.length))


class SlotArray(NamedTuple):
    """The arguments of `segment_of_rank` for one set of segments."""

    slots: Int32s
    boundaries: UInt64s
    low: int
    shift: int


def slot_array(boundaries: UInt64s, bits: int | None = None) -> SlotArray:
    """Cut the range of the boundaries into 2**bits slots of equal width; as many as leave few segments in each.

    `boundaries` are the first ranks of the segments, ascending. What lies before the first boundary belongs to
    the first segment, and what lies after the last to the last.
    """
    boundaries = _checked_boundaries(boundaries)
    bits = max(boundaries.size - 1, 1).bit_length() + 1 if bits is None else bits
    if not 1 <= bits <= _MOST_BITS:
        raise ValueError(f"2**{bits} slots: give 1 to {_MOST_BITS} bits")
    low = int(boundaries[0])
    shift = max((int(boundaries[-1]) - low).bit_length() - bits, 0)
    # Past the top of the range there is no rank, and no segment after the last.
    firsts = [min(low + (slot << shift), _HIGHEST) for slot in range((1 << bits) + 1)]
    slots = np.searchsorted(boundaries, np.array(firsts, dtype=np.uint64), side="right") - 1
    return SlotArray(slots.astype(np.int32), boundaries, low, shift)


def segment_of_rank(slots: Int32s, boundaries: UInt64s, low: int, shift: int, ranks: UInt64s) -> Int32s:
    """The segment of each rank: the last one whose boundary is not above it, or the first segment.

    `slots[i]` is the segment of rank `low + (i << shift)`. The slot of a rank leaves the segments from
    `slots[i]` to `slots[i + 1]`; halving among their boundaries finds the one. See `slot_array`.
    """
    boundaries = _checked_boundaries(boundaries)
    slots = np.ascontiguousarray(slots, dtype=np.int32)
    if slots.size < 2 or slots[0] != 0 or slots[-1] != boundaries.size - 1:
        raise ValueError(f"the slots must run from segment 0 to the last, {boundaries.size - 1}: see slot_array")
    if not 0 <= shift < 64:
        raise ValueError(f"the shift is {shift}: a slot is 2**0 to 2**63 ranks wide")
    ranks = np.ascontiguousarray(ranks, dtype=np.uint64)
    segment: Int32s = np.empty(ranks.size, dtype=np.int32)
    culprit = _find_segments(slots, boundaries, np.uint64(low), np.uint64(shift), ranks, segment)
    if culprit >= 0:
        raise ValueError(f"the slots {culprit} and {culprit + 1} descend or name no segment: see slot_array")
    return segment


def _checked_boundaries(boundaries: UInt64s) -> UInt64s:
    if boundaries.size == 0:
        raise ValueError("there are no boundaries: a relation has at least one segment")
    boundaries = np.ascontiguousarray(boundaries, dtype=np.uint64)
    if (boundaries[1:] <= boundaries[:-1]).any():
        raise ValueError("the boundaries must ascend, each above the one before it: one first rank per segment")
    return boundaries


_HIGHEST = 2**64 - 1
_MOST_BITS = 20

_RANK_BYTES = 8
_UNSIGNED = Kind.UNSIGNED
_SIGN = np.uint64(1 << 63)
_HIGHEST_RANK = np.uint64(_HIGHEST)


@helper
def _rank_of_word(word: np.uint64, is_unsigned: bool) -> np.uint64:
    if is_unsigned and word >= _SIGN:
        return _HIGHEST_RANK
    return word ^ _SIGN


@helper
def _rank_of_bytes(address: int, length: int) -> np.uint64:
    """Up to 8 bytes, the first one highest; nothing outside the value is read."""
    value = np.uint64(0)
    for place in range(_RANK_BYTES):
        value <<= np.uint64(8)
        if place < length:
            value |= load_8(address + place)
    return value


@kernel(types.void(COLUMN, types.int64, output_of(types.uint64)))
def _rank(column: RawColumn, skip: int, ranks: UInt64s) -> None:
    if is_word(column):
        for row in range(ranks.size):
            ranks[row] = _rank_of_word(word_at(column, row), column[3] == _UNSIGNED)
    else:
        for row in range(ranks.size):
            address, length = range_at(column, row)
            ranks[row] = _rank_of_bytes(address + skip, length - skip)


@kernel(types.int64(COLUMN, types.int64, input_of(types.boolean)))
def _common_prefix(column: RawColumn, rows: int, valid: Bools) -> int:
    shared = -1
    reference = 0
    for row in range(rows):
        if valid.size and not valid[row]:
            continue
        address, length = range_at(column, row)
        if shared < 0:
            reference, shared = address, length
            continue
        shared = min(shared, length)
        for place in range(shared):
            if load_8(address + place) != load_8(reference + place):
                shared = place
                break
    return max(shared, 0)


@kernel(
    types.int64(
        input_of(types.int32),
        input_of(types.uint64),
        types.uint64,
        types.uint64,
        input_of(types.uint64),
        output_of(types.int32),
    )
)
def _find_segments(
    slots: Int32s, boundaries: UInt64s, low: np.uint64, shift: np.uint64, ranks: UInt64s, segment: Int32s
) -> int:
    """Returns the first slot whose segments are impossible, or -1."""
    last_slot = np.uint64(slots.size - 2)
    for row in range(ranks.size):
        distance = ranks[row] - low if ranks[row] > low else np.uint64(0)
        slot = signed(min(distance >> shift, last_slot))
        first, last = signed(slots[slot]), signed(slots[slot + 1])
        if first < 0 or last < first or last >= boundaries.size:
            return slot
        while first < last:
            middle = (first + last + 1) >> 1
            if boundaries[middle] <= ranks[row]:
                first = middle
            else:
                last = middle - 1
        segment[row] = np.int32(first)
    return -1
