"""Exact comparison of candidate pairs: what equal hashes only suggest, the key columns decide.

Values are compared, not containers: an int32 equals the same int64, a string the same large string. Null
equals nothing, not even null.
"""

from collections.abc import Sequence

import numpy as np
from numba import types

from etl.kernels.cells import COLUMN, RawColumn, is_word, range_at, word_at
from etl.kernels.columns import ColumnView, Kind
from etl.kernels.compiling import Bools, Int64s, helper, input_of, kernel, output_of, validity
from etl.kernels.intrinsics import load_8, load_64, prefetch

__all__ = ["equal_bytes", "equal_rows"]


def equal_rows(
    left: Sequence[ColumnView], left_index: Int64s, right: Sequence[ColumnView], right_index: Int64s
) -> Bools:
    """For each pair (left_index[i], right_index[i]): are all key columns equal?"""
    if len(left) != len(right):
        raise ValueError(f"the left key has {len(left)} columns, the right key has {len(right)}")
    if left_index.size != right_index.size:
        raise ValueError(f"pairs need two indexes of one length, not {left_index.size} and {right_index.size}")
    left_index = np.ascontiguousarray(left_index, dtype=np.int64)
    right_index = np.ascontiguousarray(right_index, dtype=np.int64)
    equal: Bools = np.ones(left_index.size, dtype=np.bool_)
    for number, (left_column, right_column) in enumerate(zip(left, right, strict=True)):
        _check_comparable(number, left_column, right_column)
        within = _compare_column(
            left_column[:4],
            validity(left_column.valid, left_column.length),
            left_column.length,
            left_index,
            right_column[:4],
            validity(right_column.valid, right_column.length),
            right_column.length,
            right_index,
            equal,
        )
        if not within:
            raise IndexError(
                f"a pair lies outside key column {number}: it has {left_column.length} rows on the left and "
                f"{right_column.length} on the right"
            )
    return equal


def _check_comparable(number: int, left: ColumnView, right: ColumnView) -> None:
    left_family, right_family = _family(left), _family(right)
    if left_family != right_family:
        raise TypeError(
            f"key column {number} holds {left_family} on the left and {right_family} on the right: "
            "cast one of them before the join"
        )


def _family(column: ColumnView) -> str:
    if column.kind <= Kind.SIGNED:
        return "integers"
    return f"values of {column.width} bytes" if column.kind == Kind.FIXED else "variable-width values"


_UNSIGNED, _OFFSETS_32 = Kind.UNSIGNED, Kind.OFFSETS_32


@helper
def equal_bytes(left: int, right: int, length: int) -> bool:
    """The last load overlaps the one before it rather than reading past the value."""
    if length < 8:
        for place in range(length):  # noqa: SIM110 - a kernel has no generators
            if load_8(left + place) != load_8(right + place):
                return False
        return True
    for place in range(0, length - 8, 8):
        if load_64(left + place) != load_64(right + place):
            return False
    return bool(load_64(left + length - 8) == load_64(right + length - 8))


# Stored rows lie far apart: the right side, taken to be the larger one, is asked for before it is needed.
_OFFSET_AHEAD, _BYTES_AHEAD = 24, 12


@helper
def _prefetch_offset(column: RawColumn, row: int, length: int) -> None:
    if 0 <= row < length:
        prefetch(column[1].ctypes.data + (4 if column[3] == _OFFSETS_32 else 8) * row)


@helper
def _prefetch_bytes(column: RawColumn, row: int, length: int) -> None:
    if 0 <= row < length:
        prefetch(range_at(column, row)[0])


@kernel(
    types.boolean(
        COLUMN,
        input_of(types.boolean),
        types.int64,
        input_of(types.int64),
        COLUMN,
        input_of(types.boolean),
        types.int64,
        input_of(types.int64),
        output_of(types.boolean),
    )
)
def _compare_column(
    left: RawColumn,
    left_valid: Bools,
    left_length: int,
    left_index: Int64s,
    right: RawColumn,
    right_valid: Bools,
    right_length: int,
    right_index: Int64s,
    equal: Bools,
) -> bool:
    """Clear `equal` where the column differs; False if an index lies outside its column."""
    words = is_word(left)
    # The largest uint64 has the bits of int64's -1: across the two, a word with the top bit equals nothing.
    signs_differ = words and (left[3] == _UNSIGNED) != (right[3] == _UNSIGNED)
    for pair in range(equal.size):
        if not words and pair + _OFFSET_AHEAD < equal.size:
            _prefetch_offset(right, right_index[pair + _OFFSET_AHEAD], right_length)
            _prefetch_bytes(right, right_index[pair + _BYTES_AHEAD], right_length)
        left_row, right_row = left_index[pair], right_index[pair]
        if left_row < 0 or left_row >= left_length or right_row < 0 or right_row >= right_length:
            return False
        if not equal[pair]:
            continue
        if (left_valid.size and not left_valid[left_row]) or (right_valid.size and not right_valid[right_row]):
            equal[pair] = False
        elif words:
            word = word_at(left, left_row)
            same = word == word_at(right, right_row)
            equal[pair] = same and not (signs_differ and np.int64(word) < 0)
        else:
            left_address, length = range_at(left, left_row)
            right_address, right_size = range_at(right, right_row)
            equal[pair] = length == right_size and equal_bytes(left_address, right_address, length)
    return True
