"""Building a result column from rows that lie in many blocks.

Variable-width values take two passes: one finds where each value lies and where it goes, the other copies.
"""

# ruff: noqa: ANN401 - the compiler's own objects (contexts, builders, values) have no types to name

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from etl.kernels.block_columns import (
    BLOCK_COLUMN,
    BlockColumn,
    Places,
    RawBlockColumn,
    bit_at,
    block_layout,
    checked_places,
    is_valid_at,
    is_within,
    misplaced,
    offset_address,
    places_of,
    stored_range_at,
    value_address,
)
from etl.kernels.columns import Kind
from etl.kernels.compiling import (
    EVERY_ROW,
    Bools,
    Bytes,
    Int32s,
    Int64s,
    helper,
    input_of,
    kernel,
    output_of,
    signed,
    tuple_of,
)
from etl.kernels.intrinsics import prefetch

__all__ = ["gather_from_blocks"]


def gather_from_blocks(column: BlockColumn, type: pa.DataType, block: Int32s, row: Int64s) -> pa.Array:
    """The values at row `row[i]` of `block[i]` as one new array of the blocks' type; block -1 gives a null.

    `ArrowCapacityError` past the 2 GiB of a plain string column. The caller holds the stored arrays.
    """
    if block_layout(type) != (column.width, column.kind):
        raise TypeError(f"the blocks do not hold {type}: name the type that the block column was made of")
    block, row = checked_places(column, block, row)
    may_be_null = bool(column.validity.any()) or bool((block < 0).any())
    valid: Bools = np.empty(block.size, dtype=np.bool_) if may_be_null else EVERY_ROW
    if column.kind >= Kind.OFFSETS_32:
        buffers = _gather_variable(column, type, block, row, valid)
    elif column.width == 0:
        bits: Bools = np.empty(block.size, dtype=np.bool_)
        _check(_gather_bits(column[:], block, row, bits, valid), column, block, row)
        buffers = [_packed(bits)]
    else:
        # Arrow leaves the bytes under a null undefined; zeros give the same file for the same rows.
        values: Bytes = (np.zeros if may_be_null else np.empty)(block.size * column.width, dtype=np.uint8)
        _check(_gather_fixed(column[:], block, row, values, valid), column, block, row)
        buffers = [pa.py_buffer(values)]
    validity = _packed(valid) if valid.size and not valid.all() else None
    return pa.Array.from_buffers(type, block.size, [validity, *buffers])


def _gather_variable(
    column: BlockColumn, arrow_type: pa.DataType, block: Int32s, row: Int64s, valid: Bools
) -> list[pa.Buffer]:
    sources: Int64s = np.empty(block.size, dtype=np.int64)
    offsets: _Offsets = np.empty(block.size + 1, dtype=np.int32 if column.kind == Kind.OFFSETS_32 else np.int64)
    culprit, size = _locate(column[:], block, row, sources, offsets, valid)
    _check(culprit, column, block, row)
    if size > np.iinfo(offsets.dtype).max:
        raise pa.ArrowCapacityError(f"{size} bytes are too many for one {arrow_type} array: gather fewer rows at once")
    values: Bytes = np.empty(size, dtype=np.uint8)
    _copy(sources, offsets, values)
    return [pa.py_buffer(offsets), pa.py_buffer(values)]


def _check(culprit: int, column: BlockColumn, block: Int32s, row: Int64s) -> None:
    if culprit >= 0:
        raise misplaced(column, block, row, culprit)


def _packed(flags: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


_Offsets = npt.NDArray[np.signedinteger[Any]]

_AHEAD = 24
_NO_BLOCK = -1


def _copy_bytes(_typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """Copy bytes between two places that do not overlap."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2]]
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), generate


copy_bytes = cast(Callable[[int, int, int], None], intrinsic(_copy_bytes))


@helper
def _note_validity(places: Places, block: int, row: int, valid: Bools, pair: int) -> bool:
    """Whether there is a value to take; only an array that may hold nulls has room for the answer."""
    if valid.size == 0:
        return True
    valid[pair] = block != _NO_BLOCK and is_valid_at(places, block, row)
    return bool(valid[pair])


@helper
def _is_astray(places: Places, block: int, row: int) -> bool:
    return block != _NO_BLOCK and not is_within(places, block, row)


_PLACES = input_of(types.int32), input_of(types.int64)


@kernel(types.int64(BLOCK_COLUMN, *_PLACES, output_of(types.uint8), output_of(types.boolean)))
def _gather_fixed(column: RawBlockColumn, blocks: Int32s, rows: Int64s, values: Bytes, valid: Bools) -> int:
    """Returns the first pair that is not there, or -1."""
    places, width = places_of(column), column[4]
    target = signed(np.uintp(values.ctypes.data))
    for pair in range(blocks.size):
        ahead = pair + _AHEAD
        if ahead < blocks.size and is_within(places, blocks[ahead], rows[ahead]):
            prefetch(value_address(places, blocks[ahead], rows[ahead]))
        block, row = blocks[pair], rows[pair]
        if _is_astray(places, block, row):
            return pair
        if _note_validity(places, block, row, valid, pair):
            source = value_address(places, block, row)
            # A width that the compiler knows becomes a move instead of a call.
            if width == 8:
                copy_bytes(target + 8 * pair, source, 8)
            elif width == 4:
                copy_bytes(target + 4 * pair, source, 4)
            else:
                copy_bytes(target + width * pair, source, width)
    return -1


@kernel(types.int64(BLOCK_COLUMN, *_PLACES, output_of(types.boolean), output_of(types.boolean)))
def _gather_bits(column: RawBlockColumn, blocks: Int32s, rows: Int64s, values: Bools, valid: Bools) -> int:
    """Returns the first pair that is not there, or -1."""
    places = places_of(column)
    for pair in range(blocks.size):
        block, row = blocks[pair], rows[pair]
        if _is_astray(places, block, row):
            return pair
        exists = _note_validity(places, block, row, valid, pair)
        values[pair] = exists and bit_at(places, block, row)
    return -1


def _locating(offset: types.Type) -> Signature:
    result = tuple_of(types.int64, types.int64)
    return result(BLOCK_COLUMN, *_PLACES, output_of(types.int64), output_of(offset), output_of(types.boolean))


@kernel(_locating(types.int32), _locating(types.int64))
def _locate(
    column: RawBlockColumn, blocks: Int32s, rows: Int64s, sources: Int64s, offsets: _Offsets, valid: Bools
) -> tuple[int, int]:
    """Where each value lies and where it goes. Returns the first pair that is not there, or -1; and the bytes.

    If those are more than an offset can count, the offsets are not to be used.
    """
    places = places_of(column)
    end = 0
    offsets[0] = 0
    for pair in range(blocks.size):
        ahead = pair + _AHEAD
        if ahead < blocks.size and is_within(places, blocks[ahead], rows[ahead]):
            prefetch(offset_address(places, blocks[ahead], rows[ahead]))
        block, row = blocks[pair], rows[pair]
        if _is_astray(places, block, row):
            return pair, 0
        address, length = 0, 0
        if _note_validity(places, block, row, valid, pair):
            address, length = stored_range_at(places, block, row)
        sources[pair] = address
        end += length
        offsets[pair + 1] = end
    return -1, end


@kernel(
    *(
        types.void(input_of(types.int64), input_of(offset), output_of(types.uint8))
        for offset in (types.int32, types.int64)
    )
)
def _copy(sources: Int64s, offsets: _Offsets, values: Bytes) -> None:
    target = signed(np.uintp(values.ctypes.data))
    for pair in range(sources.size):
        if pair + _AHEAD < sources.size:
            prefetch(sources[pair + _AHEAD])
        start = signed(offsets[pair])
        copy_bytes(target + start, sources[pair], signed(offsets[pair + 1]) - start)
