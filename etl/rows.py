"""Rows in memory: growable columns that are appended in batches and gathered by row number.

A `RowBuffer` holds the rows of one schema. Fixed-width columns are NumPy arrays, strings and binaries are one array of
offsets and one of bytes; both double when they are full, so appending costs a copy of the batch and gathering is one
indexed read per column. Types that the kernels do not know (lists, structs, dictionaries, ...) stay in Arrow.

Rows are never changed or removed: a view of the first n rows stays true while more are appended, which is what makes a
snapshot of the buffer free of copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.errors import BadInput
from etl.kernels.columns import ColumnView, bytes_view, fixed_view, unpack_bits
from etl.kernels.gather import gather_bytes, gathered_bytes

Index = NDArray[np.int64]
Item = TypeVar("Item", bound=np.generic)

_SMALLEST = 16
_INT32_BYTES = 2**31 - 1


def join_schema(schemas: Sequence[pa.Schema], suffixes: Sequence[str]) -> pa.Schema:
    """All columns of input 0, then of input 1, ...; a name that repeats gets its input's suffix."""
    fields: list[pa.Field] = []
    taken: set[str] = set()
    for schema, suffix in zip(schemas, suffixes, strict=True):
        for field in schema:
            name = field.name + suffix if field.name in taken else field.name
            if name in taken:
                raise BadInput(f"result column {name!r} repeats: choose other suffixes than {list(suffixes)!r}")
            taken.add(name)
            fields.append(field.with_name(name))
    return pa.schema(fields)


class RowBuffer:
    """Append-only rows of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._columns = [_column_for(field.type) for field in schema]
        self._rows = 0
        self._nbytes = sum(column.nbytes for column in self._columns)

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes held, spare capacity included."""
        return self._nbytes

    def bytes_after(self, batch: pa.RecordBatch) -> int:
        """Bytes held at the peak of appending this batch: a growing array stands beside the old one for a moment."""
        held = 0
        largest_old = 0
        for column, array in zip(self._columns, batch.columns, strict=True):
            after, old = column.growth(array)
            held += after
            largest_old = max(largest_old, old)
        return held + largest_old

    def append(self, batch: pa.RecordBatch) -> None:
        for column, array in zip(self._columns, batch.columns, strict=True):
            if column.append(array):
                self._nbytes = sum(held.nbytes for held in self._columns)
        self._rows += batch.num_rows

    def take(self, index: Index) -> list[pa.Array]:
        """The rows at these positions by column; `ArrowCapacityError` past the 2 GiB of a plain string column."""
        return [column.take(index) for column in self._columns]

    def views(self, columns: Sequence[int]) -> list[ColumnView]:
        """Key columns as the kernels see them."""
        return [self._columns[position].view() for position in columns]

    def to_batches(self) -> list[pa.RecordBatch]:
        """All rows; one batch without copying the fixed-width columns, unless strings pass 2 GiB."""
        if all(column.fits_one_array for column in self._columns):
            arrays = [column.to_array() for column in self._columns]
            return [pa.RecordBatch.from_arrays(arrays, schema=self.schema)]
        pieces = self._pieces(np.arange(self._rows, dtype=np.int64))
        return [pa.RecordBatch.from_arrays(self.take(piece), schema=self.schema) for piece in pieces]

    def _pieces(self, index: Index) -> Iterator[Index]:
        """The index cut so that `take` fits the 2 GiB of a plain string column."""
        widest = max((column.taken_bytes(index) for column in self._columns), default=0)
        if widest <= _INT32_BYTES or len(index) == 1:
            yield index
        else:
            for half in np.array_split(index, 2):
                yield from self._pieces(half)


class _Column(Protocol):
    @property
    def fits_one_array(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def growth(self, array: pa.Array) -> tuple[int, int]:
        """(bytes held after appending the array, bytes of the old arrays while they are being replaced)"""

    def append(self, array: pa.Array) -> bool:
        """Whether it holds more memory now."""

    def take(self, index: Index) -> pa.Array: ...
    def taken_bytes(self, index: Index) -> int: ...
    def view(self) -> ColumnView: ...
    def to_array(self) -> pa.Array: ...


def _column_for(type_: pa.DataType) -> _Column:
    if pa.types.is_boolean(type_):
        return _FixedColumn(type_, 1)
    if _is_fixed(type_):
        return _FixedColumn(type_, type_.bit_width // 8)
    if _offset_type(type_) is not None:
        return _BytesColumn(type_)
    return _ArrowColumn(type_)


class _Growing(Generic[Item]):
    """A one-dimensional array that doubles when it is full."""

    __slots__ = ("length", "values")

    def __init__(self, dtype: np.dtype[Item]) -> None:
        self.values: NDArray[Item] = np.empty(0, dtype)
        self.length = 0

    @property
    def filled(self) -> NDArray[Item]:
        return self.values[: self.length]

    def growth(self, more: int) -> tuple[int, int]:
        capacity = self._capacity_for(more)
        item = self.values.itemsize
        return capacity * item, self.values.nbytes if capacity > len(self.values) else 0

    def extend(self, more: NDArray[Item]) -> bool:
        """Whether it had to grow."""
        start = self.length
        self.length = end = start + len(more)
        grows = end > len(self.values)
        if grows:
            grown = np.empty(max(end, 2 * len(self.values), _SMALLEST), self.values.dtype)
            grown[:start] = self.values[:start]
            self.values = grown
        self.values[start:end] = more
        return grows

    def _capacity_for(self, more: int) -> int:
        capacity = len(self.values)
        needed = self.length + more
        return capacity if needed <= capacity else max(needed, 2 * capacity, _SMALLEST)


class _Validity:
    """Which rows are not null; holds nothing until the first null comes."""

    def __init__(self) -> None:
        self._flags: _Growing[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._flags is None else self._flags.values.nbytes

    def growth(self, rows_before: int, array: pa.Array) -> tuple[int, int]:
        if self._flags is not None:
            return self._flags.growth(len(array))
        return (max(rows_before + len(array), _SMALLEST), 0) if array.null_count else (0, 0)

    def append(self, rows_before: int, array: pa.Array) -> bool:
        if self._flags is None and not array.null_count:
            return False
        bitmap = array.buffers()[0]
        rows = len(array)
        flags = np.ones(rows, np.bool_) if bitmap is None else unpack_bits(bitmap, array.offset, rows)
        if self._flags is not None:
            return self._flags.extend(flags)
        # As much as `growth` announced, at once: the flags of all rows before come with the first null.
        self._flags = _Growing(np.dtype(np.bool_))
        self._flags.values = np.ones(max(rows_before + rows, _SMALLEST), np.bool_)
        self._flags.length = rows_before
        self._flags.extend(flags)
        return True

    def flags(self) -> NDArray[np.bool_] | None:
        return None if self._flags is None else self._flags.filled

    def bitmap(self, index: Index | None = None) -> pa.Buffer | None:
        flags = self.flags()
        if flags is None:
            return None
        return _packed(flags if index is None else flags.take(index))


class _FixedColumn:
    fits_one_array = True

    def __init__(self, type_: pa.DataType, width: int) -> None:
        self._type = type_
        self._packed_bits = pa.types.is_boolean(type_)
        self._dtype = _dtype_for(type_, width)
        self._values = _Growing(self._dtype)
        self._valid = _Validity()

    @property
    def nbytes(self) -> int:
        return self._values.values.nbytes + self._valid.nbytes

    def growth(self, array: pa.Array) -> tuple[int, int]:
        return _added(self._values.growth(len(array)), self._valid.growth(self._values.length, array))

    def append(self, array: pa.Array) -> bool:
        rows = len(array)
        if rows == 0:
            return False
        grew = self._valid.append(self._values.length, array)
        buffer = array.buffers()[1]
        if self._packed_bits:
            values: NDArray[np.generic] = unpack_bits(buffer, array.offset, rows)
        else:
            values = np.frombuffer(buffer, self._dtype, rows, array.offset * self._dtype.itemsize)
        return self._values.extend(values) or grew

    def take(self, index: Index) -> pa.Array:
        return self._array(self._values.values.take(index), self._valid.bitmap(index))

    def taken_bytes(self, index: Index) -> int:
        return 0

    def view(self) -> ColumnView:
        values = self._values.filled
        if self._dtype.kind == "V":
            values = values.view(np.uint8).reshape(len(values), self._dtype.itemsize)
        return fixed_view(values, self._valid.flags())

    def to_array(self) -> pa.Array:
        return self._array(self._values.filled, self._valid.bitmap())

    def _array(self, values: NDArray[np.generic], bitmap: pa.Buffer | None) -> pa.Array:
        data = _packed(values) if self._packed_bits else pa.py_buffer(values)
        return pa.Array.from_buffers(self._type, len(values), [bitmap, data])


class _BytesColumn:
    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        offset_type = _offset_type(type_)
        assert offset_type is not None
        self._offset_type = offset_type
        self._ends = _Growing(np.dtype(np.int64))
        self._ends.extend(np.zeros(1, np.int64))
        self._data = _Growing(np.dtype(np.uint8))
        self._valid = _Validity()

    @property
    def nbytes(self) -> int:
        return self._ends.values.nbytes + self._data.values.nbytes + self._valid.nbytes

    def growth(self, array: pa.Array) -> tuple[int, int]:
        start, end = self._span(array)
        grown = _added(self._ends.growth(len(array)), self._data.growth(end - start))
        return _added(grown, self._valid.growth(self._ends.length - 1, array))

    def append(self, array: pa.Array) -> bool:
        rows = len(array)
        if rows == 0:
            return False
        grew = self._valid.append(self._ends.length - 1, array)
        offsets = self._offsets(array)
        start, end = int(offsets[0]), int(offsets[rows])
        shifted = offsets[1:].astype(np.int64)
        shifted += self._data.length - start
        grew |= self._ends.extend(shifted)
        if end > start:
            grew |= self._data.extend(np.frombuffer(array.buffers()[2], np.uint8, end - start, start))
        return grew

    @property
    def fits_one_array(self) -> bool:
        return self._data.length <= _INT32_BYTES or self._offset_type == np.int64

    def take(self, index: Index) -> pa.Array:
        size = self.taken_bytes(index)
        if size > _INT32_BYTES and self._offset_type == np.int32:
            raise pa.ArrowCapacityError(f"{size} bytes are too many for one {self._type} array")
        offsets = np.empty(len(index) + 1, self._offset_type)
        data = np.empty(size, np.uint8)
        gather_bytes(self._ends.values, self._data.values, index, offsets, data)
        buffers = [self._valid.bitmap(index), pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(self._type, len(index), buffers)

    def taken_bytes(self, index: Index) -> int:
        return int(gathered_bytes(self._ends.values, index))

    def view(self) -> ColumnView:
        return bytes_view(self._ends.filled, self._data.filled, self._valid.flags())

    def to_array(self) -> pa.Array:
        offsets = self._ends.filled.astype(self._offset_type)
        buffers = [self._valid.bitmap(), pa.py_buffer(offsets), pa.py_buffer(self._data.filled)]
        return pa.Array.from_buffers(self._type, self._ends.length - 1, buffers)

    def _offsets(self, array: pa.Array) -> NDArray[np.generic]:
        item = self._offset_type.itemsize
        return np.frombuffer(array.buffers()[1], self._offset_type, len(array) + 1, array.offset * item)

    def _span(self, array: pa.Array) -> tuple[int, int]:
        if len(array) == 0:
            return 0, 0
        offsets = self._offsets(array)
        return int(offsets[0]), int(offsets[-1])


class _ArrowColumn:
    """Any other type: Arrow chunks, neighbours of like size joined so that their number stays logarithmic."""

    fits_one_array = True

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._chunks: list[pa.Array] = []

    @property
    def nbytes(self) -> int:
        return sum(chunk.get_total_buffer_size() for chunk in self._chunks)

    def growth(self, array: pa.Array) -> tuple[int, int]:
        # Joining chunks makes the joined one beside its parts, the new rows among them.
        after = self.nbytes + array.nbytes
        return after, after

    def append(self, array: pa.Array) -> bool:
        if len(array) == 0:
            return False
        # A copy: a slice would keep the whole batch alive, and the caller may reuse its memory.
        self._chunks.append(pa.concat_arrays([array, array.slice(0, 0)]))
        while len(self._chunks) > 1 and len(self._chunks[-2]) <= 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [pa.concat_arrays(self._chunks[-2:])]
        return True

    def take(self, index: Index) -> pa.Array:
        taken = pa.chunked_array(self._chunks, type=self._type).take(pa.array(index)).combine_chunks()
        return taken if isinstance(taken, pa.Array) else pa.concat_arrays(taken.chunks)

    def taken_bytes(self, index: Index) -> int:
        return 0

    def view(self) -> ColumnView:
        raise BadInput(f"a column of type {self._type} cannot be a key")

    def to_array(self) -> pa.Array:
        return pa.concat_arrays(self._chunks) if self._chunks else pa.array([], self._type)


def _is_fixed(type_: pa.DataType) -> bool:
    if pa.types.is_fixed_size_binary(type_):
        return bool(type_.byte_width > 0)
    return bool(pa.types.is_primitive(type_) or pa.types.is_decimal(type_))


def _dtype_for(type_: pa.DataType, width: int) -> np.dtype[np.generic]:
    """Only bytes are moved, so the width decides; keys are compared by the kernels, which need an integer's sign."""
    if width not in (1, 2, 4, 8):
        return np.dtype(f"V{width}")
    signless = pa.types.is_boolean(type_) or pa.types.is_fixed_size_binary(type_)
    unsigned = signless or pa.types.is_unsigned_integer(type_)
    return np.dtype(f"u{width}" if unsigned else f"i{width}")


def _offset_type(type_: pa.DataType) -> np.dtype[np.signedinteger] | None:
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return np.dtype(np.int32)
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return np.dtype(np.int64)
    return None


def _added(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return first[0] + second[0], first[1] + second[1]


def _packed(flags: NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.view(np.bool_), bitorder="little"))
