"""Reading one value of a column from inside a kernel.

A kernel takes a column as the tuple `ColumnView[:4]` = (data, offsets, width, kind). Values are either words
(integers of at most 8 bytes, widened to 64 bits) or byte ranges.
"""

import numpy as np
from numba import types

from etl.kernels.columns import Kind
from etl.kernels.compiling import Bytes, helper, input_of, signed, tuple_of
from etl.kernels.intrinsics import load_8, load_16, load_32, load_64

__all__ = ["COLUMN", "RawColumn", "is_word", "word_at", "range_at"]

RawColumn = tuple[Bytes, Bytes, int, int]

COLUMN = tuple_of(input_of(types.uint8), input_of(types.uint8), types.int64, types.int64)

_SIGNED, _FIXED, _OFFSETS_32 = Kind.SIGNED, Kind.FIXED, Kind.OFFSETS_32


@helper
def is_word(column: RawColumn) -> bool:
    """Whether the values fit a 64-bit word and are compared as numbers."""
    return column[3] <= _SIGNED


@helper
def word_at(column: RawColumn, row: int) -> np.uint64:
    """The value as 64 bits, widened with its sign if its type has one."""
    width, signed = column[2], column[3] == _SIGNED
    address = column[0].ctypes.data + row * width
    if width == 8:
        return load_64(address)
    if width == 4:
        word = load_32(address)
    elif width == 2:
        word = load_16(address)
    else:
        word = load_8(address)
    if signed:
        unused = np.uint64(64 - 8 * width)
        return np.uint64(np.int64(word << unused) >> np.int64(unused))
    return word


@helper
def range_at(column: RawColumn, row: int) -> tuple[int, int]:
    """Address and length of a value that is compared as bytes."""
    data, offsets, width, kind = column
    address = data.ctypes.data
    if kind == _FIXED:
        return address + row * width, width
    if kind == _OFFSETS_32:
        place = offsets.ctypes.data + 4 * row
        start, end = signed(load_32(place)), signed(load_32(place + 4))
    else:
        place = offsets.ctypes.data + 8 * row
        start, end = signed(load_64(place)), signed(load_64(place + 8))
    return address + start, end - start
