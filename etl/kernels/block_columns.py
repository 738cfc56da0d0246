"""One column as it lies in all blocks: addresses, and how to read a value at one of them from inside a kernel.

The kinds of `columns.view` decide, so a key of the stream and a stored key are cut and compared alike. Unlike
a view, a block column may hold any fixed-width values (floats too: a result needs them, a key does not), and
leaves booleans and nulls packed into bits, since unpacking would touch the whole block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as arrow_types
from numba import types

from etl.kernels.columns import Kind, view
from etl.kernels.compiling import Int32s, Int64s, UInt64s, helper, input_of, signed, tuple_of
from etl.kernels.intrinsics import load_8, load_16, load_32, load_64

__all__ = [
    "BlockColumn",
    "block_column",
    "block_layout",
    "checked_places",
    "misplaced",
    "BLOCK_COLUMN",
    "RawBlockColumn",
    "Places",
    "places_of",
    "is_within",
    "is_valid_at",
    "bit_at",
    "value_address",
    "stored_word_at",
    "offset_address",
    "stored_range_at",
]


class BlockColumn(NamedTuple):
    """Where a column lies in each block. The addresses are good while the caller holds the arrays."""

    values: UInt64s
    """Address of the first value; for variable-width values of the bytes that offsets count from; of the bitmap
    for booleans."""
    offsets: UInt64s
    """Address of the first row's offset; 0 for fixed-width values."""
    validity: UInt64s
    """Address of the validity bitmap; 0 for a block without nulls."""
    bit_offset: Int64s
    """Where the first row stands in the bitmaps."""
    width: int
    """Bytes of a value; of variable-width ones, of an offset; 0 for booleans, which are bits."""
    kind: int
    rows: Int64s


def block_column(arrays: Sequence[pa.Array], type: pa.DataType | None = None) -> BlockColumn:
    """Look at the buffers of one array per block, all of one type; `type` says which if there may be no block."""
    if type is None:
        if not arrays:
            raise ValueError("a column of no blocks has no type of its own: give the type")
        type = arrays[0].type
    width, kind = block_layout(type)
    addresses: UInt64s = np.zeros((3, len(arrays)), dtype=np.uint64)
    lengths: Int64s = np.empty((2, len(arrays)), dtype=np.int64)
    for block, array in enumerate(arrays):
        if array.type != type:
            raise TypeError(f"block {block} holds {array.type} where the column is {type}: cast it before it is stored")
        addresses[:, block] = _addresses(array, width, kind)
        lengths[:, block] = array.offset, len(array)
    values, offsets, validity = addresses
    return BlockColumn(values, offsets, validity, lengths[0], width, kind, lengths[1])


def block_layout(arrow_type: pa.DataType) -> tuple[int, int]:
    """Width and kind of a column of this type; refuses one that has no plain layout."""
    if arrow_types.is_boolean(arrow_type):
        return 0, Kind.UNSIGNED
    if arrow_types.is_floating(arrow_type) or arrow_types.is_interval(arrow_type):
        return arrow_type.bit_width // 8, Kind.FIXED
    if arrow_type.id in _DECODED or arrow_types.is_nested(arrow_type) or arrow_types.is_null(arrow_type):
        raise TypeError(
            f"a block column of type {arrow_type}: stored columns are numbers, booleans, strings, binary, decimals, "
            "dates or times; cast a dictionary or a view to the plain type, and take the storage of an extension type"
        )
    kind = view(pa.nulls(0, arrow_type)).kind
    if kind >= Kind.OFFSETS_32:
        return 4 if kind == Kind.OFFSETS_32 else 8, kind
    return arrow_type.bit_width // 8, kind


def checked_places(column: BlockColumn, block: Int32s, row: Int64s) -> tuple[Int32s, Int64s]:
    """Stored rows as a kernel takes them: a block number and a row number each."""
    if block.size != row.size:
        raise ValueError(f"stored rows need a block and a row each, not {block.size} blocks and {row.size} rows")
    if len({part.size for part in (*column[:4], column.rows)}) != 1:
        raise ValueError("the arrays of a block column must have one entry per block: make it with block_column")
    return np.ascontiguousarray(block, dtype=np.int32), np.ascontiguousarray(row, dtype=np.int64)


def misplaced(column: BlockColumn, block: Int32s, row: Int64s, culprit: int) -> IndexError:
    """What to raise for a stored row that is not there."""
    number, blocks = int(block[culprit]), column.rows.size
    there = f"it has {column.rows[number]} rows" if 0 <= number < blocks else f"there are {blocks} blocks"
    return IndexError(f"pair {culprit} names row {row[culprit]} of block {number}, but {there}")


_DECODED = {pa.dictionary(pa.int8(), pa.int8()).id, pa.string_view().id, pa.binary_view().id, pa.uuid().id}


def _addresses(array: pa.Array, width: int, kind: int) -> tuple[int, int, int]:
    validity, *buffers = array.buffers()
    nulls = validity.address if array.null_count else 0
    if len(array) == 0:
        return 0, 0, 0
    values = buffers[-1].address if buffers[-1] is not None else 0
    if kind >= Kind.OFFSETS_32:
        return values, buffers[0].address + array.offset * width, nulls
    return values + array.offset * width, 0, nulls


RawBlockColumn = tuple[UInt64s, UInt64s, UInt64s, Int64s, int, int, Int64s]

_NUMBERS, _ADDRESSES = input_of(types.int64), input_of(types.uint64)
BLOCK_COLUMN = tuple_of(_ADDRESSES, _ADDRESSES, _ADDRESSES, _NUMBERS, types.int64, types.int64, _NUMBERS)

Places = tuple[int, int, int, int, int, int, int, int]

_SIGNED, _FIXED = Kind.SIGNED, Kind.FIXED


@helper
def places_of(column: RawBlockColumn) -> Places:
    """The column as bare numbers, where each of its arrays starts, and how many blocks there are.

    An array handed to a helper has its references counted, by locked instructions, at every call; with five
    arrays that took ten times as long as the reading itself. A kernel that holds the arrays calls this once.
    """
    values, offsets, validity, bit_offset, width, kind, rows = column
    return (
        signed(np.uintp(values.ctypes.data)),
        signed(np.uintp(offsets.ctypes.data)),
        signed(np.uintp(validity.ctypes.data)),
        signed(np.uintp(bit_offset.ctypes.data)),
        width,
        kind,
        signed(np.uintp(rows.ctypes.data)),
        rows.size,
    )


@helper
def _entry(start: int, block: int) -> int:
    return signed(load_64(start + 8 * block))


@helper
def is_within(places: Places, block: int, row: int) -> bool:
    """Whether there is such a row."""
    return 0 <= block < places[7] and 0 <= row < _entry(places[6], block)


@helper
def is_valid_at(places: Places, block: int, row: int) -> bool:
    """Whether the value is not null."""
    bitmap = _entry(places[2], block)
    return bitmap == 0 or _bit(bitmap, _entry(places[3], block) + row)


@helper
def bit_at(places: Places, block: int, row: int) -> bool:
    """A boolean value."""
    return _bit(_entry(places[0], block), _entry(places[3], block) + row)


@helper
def _bit(bitmap: int, place: int) -> bool:
    return bool((load_8(bitmap + (place >> 3)) >> np.uint64(place & 7)) & np.uint64(1))


@helper
def value_address(places: Places, block: int, row: int) -> int:
    """Where a fixed-width value lies (near it, if it is a bit)."""
    return _entry(places[0], block) + row * places[4]


@helper
def stored_word_at(places: Places, block: int, row: int) -> np.uint64:
    """The value as 64 bits, widened with its sign if its type has one; see `cells.word_at`."""
    width = places[4]
    if width == 0:
        return np.uint64(bit_at(places, block, row))
    address = value_address(places, block, row)
    if width == 8:
        return load_64(address)
    if width == 4:
        word = load_32(address)
    elif width == 2:
        word = load_16(address)
    else:
        word = load_8(address)
    if places[5] == _SIGNED:
        unused = np.uint64(64 - 8 * width)
        return np.uint64(np.int64(word << unused) >> np.int64(unused))
    return word


@helper
def offset_address(places: Places, block: int, row: int) -> int:
    """Where the offset of a variable-width value lies."""
    return _entry(places[1], block) + row * places[4]


@helper
def stored_range_at(places: Places, block: int, row: int) -> tuple[int, int]:
    """Address and length of a value that is compared as bytes."""
    width = places[4]
    if places[5] == _FIXED:
        return value_address(places, block, row), width
    place = offset_address(places, block, row)
    if width == 4:
        start, end = signed(load_32(place)), signed(load_32(place + 4))
    else:
        start, end = signed(load_64(place)), signed(load_64(place + 8))
    return _entry(places[0], block) + start, end - start
