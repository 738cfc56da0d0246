"""One key column as the kernels see it: raw bytes, how to cut them into values, and which values are null.

A view copies nothing but what Arrow packs into bits: the validity of a column that has nulls, and boolean
values. It holds on to the buffers it looks at, and all its arrays are read-only. It shows the rows of the
array's slice only.

Limits: little-endian machines; floating-point keys are refused, because equality on them is not what people
expect.
"""

import sys
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as arrow_types

from etl.kernels.compiling import Bools, Bytes, Int32s, Int64s

__all__ = ["Kind", "ColumnView", "view", "fixed_view", "bytes_view", "unpack_bits"]

if sys.byteorder != "little":
    raise ImportError("etl.kernels reads buffers as little-endian: this machine is big-endian and not supported")


class Kind:
    """How the kernels cut the bytes of a column into values. Not an enum: it slows a call by 30 us."""

    UNSIGNED: Final = 0  # integers of 1, 2, 4 or 8 bytes
    SIGNED: Final = 1  # the same, widened with their sign
    FIXED: Final = 2  # any other number of bytes each, compared as bytes
    OFFSETS_32: Final = 3  # variable, found through 32-bit offsets
    OFFSETS_64: Final = 4  # variable, found through 64-bit offsets


class ColumnView(NamedTuple):
    """A look at one column. The first four fields are what every kernel takes: `column[:4]`."""

    data: Bytes
    offsets: Bytes
    width: int
    kind: int
    length: int
    valid: Bools | None


def view(array: pa.Array) -> ColumnView:
    """Look at the buffers of an Arrow array; dictionary and view types are decoded to a plain type first."""
    layout = _layout_of(array.type)
    if layout is None:
        return view(array.cast(_plain_type(array.type)))
    width, kind = layout
    length, start = len(array), array.offset
    validity_bits, *buffers = array.buffers()
    valid = None if array.null_count == 0 else unpack_bits(validity_bits, start, length)
    if kind >= Kind.OFFSETS_32:
        offsets_buffer, data_buffer = buffers
        offsets = _slice_of(offsets_buffer, start * width, (length + 1) * width) if length else _NOTHING
        data = _NOTHING if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
        return ColumnView(_read_only(data), offsets, 0, kind, length, valid)
    if width == 0:
        values = unpack_bits(buffers[0], start, length).view(np.uint8)
        return ColumnView(_read_only(values), _NOTHING, 1, Kind.UNSIGNED, length, valid)
    values = _slice_of(buffers[0], start * width, length * width)
    return ColumnView(values, _NOTHING, width, kind, length, valid)


def fixed_view(values: npt.NDArray[np.generic], valid: Bools | None = None) -> ColumnView:
    """Look at a NumPy column: integers, booleans, dates; or two-dimensional, the bytes of one value a row.

    The signedness comes from the type, so bytes stand for the same bytes but not for signed integers.
    """
    kind = values.dtype.kind
    if kind not in "iubmM":
        raise TypeError(f"key column of type {values.dtype}: keys are integers, booleans, dates, times or bytes")
    if not values.flags.c_contiguous:
        raise ValueError("a key column must lie in one piece (C-contiguous): copy it with numpy.ascontiguousarray")
    length = values.shape[0]
    _check_mask(valid, length)
    width = values.itemsize if values.ndim == 1 else values.itemsize * values.shape[1]
    word_kind = Kind.SIGNED if kind in "imM" else Kind.UNSIGNED
    value_kind = word_kind if width in _WORD_WIDTHS else Kind.FIXED
    data = (values if values.ndim == 1 else values.reshape(-1)).view(np.uint8)
    return ColumnView(_read_only(data), _NOTHING, width, value_kind, length, valid)


def bytes_view(offsets: Int32s | Int64s, data: Bytes, valid: Bools | None = None) -> ColumnView:
    """Look at NumPy columns of variable-width values: row i is `data[offsets[i]:offsets[i + 1]]`."""
    length = max(offsets.size - 1, 0)
    if length and not 0 <= offsets[0] <= offsets[-1] <= data.size:
        raise ValueError(f"offsets run from {offsets[0]} to {offsets[-1]}, but there are {data.size} bytes of data")
    _check_mask(valid, length)
    kind = Kind.OFFSETS_64 if offsets.itemsize == 8 else Kind.OFFSETS_32
    return ColumnView(_read_only(data.view()), _read_only(offsets.view(np.uint8)), 0, kind, length, valid)


_NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_NOTHING.flags.writeable = False
_WORD_WIDTHS = (1, 2, 4, 8)

_Layout = tuple[int, int]
# The width is that of a value, or of an offset; booleans have width 0 because Arrow packs them into bits.
_LAYOUTS: dict[int, _Layout] = {
    pa.bool_().id: (0, Kind.UNSIGNED),
    **{t.id: (t.bit_width // 8, Kind.UNSIGNED) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{t.id: (t.bit_width // 8, Kind.SIGNED) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{t.id: (t.bit_width // 8, Kind.SIGNED) for t in (pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"))},
    **{t.id: (t.bit_width // 8, Kind.SIGNED) for t in (pa.timestamp("us"), pa.duration("us"))},
    **{t.id: (t.bit_width // 8, Kind.SIGNED) for t in (pa.decimal32(9), pa.decimal64(18))},
    **{t.id: (t.bit_width // 8, Kind.FIXED) for t in (pa.decimal128(38), pa.decimal256(76))},
    **{t.id: (4, Kind.OFFSETS_32) for t in (pa.string(), pa.binary())},
    **{t.id: (8, Kind.OFFSETS_64) for t in (pa.large_string(), pa.large_binary())},
}


def _layout_of(arrow_type: pa.DataType) -> _Layout | None:
    """How the type lies in memory; None when it has to be decoded first."""
    layout = _LAYOUTS.get(arrow_type.id)
    if layout is None and arrow_types.is_fixed_size_binary(arrow_type) and arrow_type.byte_width > 0:
        width = arrow_type.byte_width
        return width, Kind.UNSIGNED if width in _WORD_WIDTHS else Kind.FIXED
    return layout


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    if arrow_types.is_dictionary(arrow_type):
        return arrow_type.value_type
    if arrow_type.id == pa.string_view().id:
        return pa.large_string()
    if arrow_type.id == pa.binary_view().id:
        return pa.large_binary()
    raise TypeError(
        f"key column of type {arrow_type}: keys are integers, strings, binary, decimals, dates, times, "
        "timestamps or booleans; cast the column (a float to a decimal or an integer) before the join"
    )


def unpack_bits(bits: pa.Buffer, start: int, length: int) -> Bools:
    """One boolean per row from a bitmap that is cut at any bit."""
    if length == 0:
        return np.empty(0, dtype=np.bool_)
    first, skipped = divmod(start, 8)
    packed = np.frombuffer(bits, np.uint8, (skipped + length + 7) // 8, first)
    return np.unpackbits(packed, count=skipped + length, bitorder="little")[skipped:].view(np.bool_)


def _slice_of(buffer: pa.Buffer | None, start: int, size: int) -> Bytes:
    if buffer is None or size == 0:
        return _NOTHING
    return _read_only(np.frombuffer(buffer, np.uint8, size, start))


def _read_only(array: Bytes) -> Bytes:
    array.flags.writeable = False
    return array


def _check_mask(valid: Bools | None, length: int) -> None:
    if valid is not None and valid.size != length:
        raise ValueError(f"the validity mask has {valid.size} values for {length} rows: give one per row, or None")
