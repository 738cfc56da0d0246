"""Exact comparison of the stream's keys with stored ones, the candidate pairs of `probe_blocks`.

The rules are those of `compare`: values count, not containers; null equals nothing.
"""

from collections.abc import Sequence

import numpy as np
from numba import types

from etl.kernels.block_columns import (
    BLOCK_COLUMN,
    BlockColumn,
    Places,
    RawBlockColumn,
    checked_places,
    is_valid_at,
    is_within,
    misplaced,
    offset_address,
    places_of,
    stored_range_at,
    stored_word_at,
    value_address,
)
from etl.kernels.cells import COLUMN, RawColumn, is_word, range_at, word_at
from etl.kernels.columns import ColumnView, Kind
from etl.kernels.compare import equal_bytes as equal_bytes
from etl.kernels.compiling import Bools, Int32s, Int64s, helper, input_of, kernel, output_of, validity
from etl.kernels.intrinsics import prefetch

__all__ = ["equal_in_blocks"]


def equal_in_blocks(
    views: Sequence[ColumnView], positions: Int64s, columns: Sequence[BlockColumn], block: Int32s, row: Int64s
) -> Bools:
    """For each pair: does the stream's key at `positions[i]` equal the stored key at row `row[i]` of `block[i]`?

    `views` and `columns` are the key columns of both, in the same order. The caller holds the stored arrays.
    """
    if not views or len(views) != len(columns):
        raise ValueError(f"the stream's key has {len(views)} columns, the stored key has {len(columns)}")
    if positions.size != block.size:
        raise ValueError(f"there are {positions.size} positions for {block.size} stored rows: give one each")
    positions = np.ascontiguousarray(positions, dtype=np.int64)
    equal: Bools = np.ones(positions.size, dtype=np.bool_)
    for number, (key, column) in enumerate(zip(views, columns, strict=True)):
        _check_comparable(number, key, column)
        block, row = checked_places(column, block, row)
        if positions.size and not 0 <= positions.min() <= positions.max() < key.length:
            raise IndexError(f"a position lies outside key column {number} of the stream: it has {key.length} rows")
        culprit = _compare_column(key[:4], validity(key.valid, key.length), positions, column[:], block, row, equal)
        if culprit >= 0:
            raise misplaced(column, block, row, culprit)
    return equal


def _check_comparable(number: int, key: ColumnView, column: BlockColumn) -> None:
    key_family, stored_family = _family(key), _family(column)
    if key_family != stored_family:
        raise TypeError(
            f"key column {number} holds {key_family} in the stream and {stored_family} in the blocks: "
            "cast the stream's column before the join"
        )


def _family(column: ColumnView | BlockColumn) -> str:
    if column.kind <= Kind.SIGNED:
        return "integers"
    return f"values of {column.width} bytes" if column.kind == Kind.FIXED else "variable-width values"


_UNSIGNED, _FIXED = Kind.UNSIGNED, Kind.FIXED

# Stored rows lie far apart: each is asked for before it is needed, its offset earlier still.
_OFFSET_AHEAD, _VALUE_AHEAD = 96, 32


@helper
def _prefetch_offset(places: Places, block: int, row: int) -> None:
    if places[5] > _FIXED and is_within(places, block, row):
        prefetch(offset_address(places, block, row))


@helper
def _prefetch_value(places: Places, block: int, row: int) -> None:
    """Both ends, for a value may lie across two cache lines."""
    if not is_within(places, block, row):
        return
    if places[5] < _FIXED:
        prefetch(value_address(places, block, row))
        return
    address, length = stored_range_at(places, block, row)
    prefetch(address)
    prefetch(address + length - 1)


@kernel(
    types.int64(
        COLUMN,
        input_of(types.boolean),
        input_of(types.int64),
        BLOCK_COLUMN,
        input_of(types.int32),
        input_of(types.int64),
        output_of(types.boolean),
    )
)
def _compare_column(
    key: RawColumn,
    key_valid: Bools,
    positions: Int64s,
    column: RawBlockColumn,
    blocks: Int32s,
    rows: Int64s,
    equal: Bools,
) -> int:
    """Clear `equal` where the column differs. Returns the first pair whose stored row is not there, or -1."""
    places = places_of(column)
    words = is_word(key)
    # The largest uint64 has the bits of int64's -1: across the two, a word with the top bit equals nothing.
    signs_differ = words and (key[3] == _UNSIGNED) != (column[5] == _UNSIGNED)
    for pair in range(min(_OFFSET_AHEAD, equal.size)):
        _prefetch_offset(places, blocks[pair], rows[pair])
    for pair in range(equal.size):
        if pair + _OFFSET_AHEAD < equal.size:
            _prefetch_offset(places, blocks[pair + _OFFSET_AHEAD], rows[pair + _OFFSET_AHEAD])
        if pair + _VALUE_AHEAD < equal.size:
            _prefetch_value(places, blocks[pair + _VALUE_AHEAD], rows[pair + _VALUE_AHEAD])
        position, block, row = positions[pair], blocks[pair], rows[pair]
        if not is_within(places, block, row):
            return pair
        if not equal[pair]:
            continue
        if (key_valid.size and not key_valid[position]) or not is_valid_at(places, block, row):
            equal[pair] = False
        elif words:
            word = word_at(key, position)
            same = word == stored_word_at(places, block, row)
            equal[pair] = same and not (signs_differ and np.int64(word) < 0)
        else:
            address, length = range_at(key, position)
            stored_address, stored_length = stored_range_at(places, block, row)
            equal[pair] = length == stored_length and equal_bytes(address, stored_address, length)
    return -1
