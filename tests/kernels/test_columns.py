"""Views show the rows and nulls of the slice, for every way Arrow or NumPy lays a key column out."""

from datetime import date, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from etl.kernels.columns import ColumnView, Kind, bytes_view, fixed_view, view

EXAMPLES = [
    pa.array([1, None, -3, 4], pa.int8()),
    pa.array([1, None, 3, 4], pa.uint16()),
    pa.array([1, None, -3, 2**31 - 1], pa.int32()),
    pa.array([1, None, -3, 2**63 - 1], pa.int64()),
    pa.array([True, None, False, True]),
    pa.array([date(2020, 1, 1), None, date(1960, 5, 5), date(2001, 2, 3)], pa.date32()),
    pa.array([time(1), None, time(2), time(3)], pa.time64("us")),
    pa.array([1_600_000_000_000_000_001, None, -5, 0], pa.timestamp("ns")),
    pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal(0)], pa.decimal128(38, 2)),
    pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal(0)], pa.decimal256(60, 2)),
    pa.array([b"abc", None, b"xyz", b"\0\0\0"], pa.binary(3)),
    pa.array([b"abcd", None, b"wxyz", b"\0\0\0\0"], pa.binary(4)),
    pa.array(["", None, "streams", "µ"]),
    pa.array(["", None, "streams", "µ"], pa.large_string()),
    pa.array([b"", None, b"\xff\0", b"x"], pa.binary()),
    pa.array(["", None, "streams", "µ"], pa.string_view()),
    pa.array([b"", None, b"\xff\0", b"x"], pa.binary_view()),
    pa.array(["a", None, "b", "a"]).dictionary_encode(),
]


@pytest.mark.parametrize("array", EXAMPLES, ids=lambda array: str(array.type))
@pytest.mark.parametrize("start", [0, 1, 9])
def test_a_slice_shows_its_own_rows(array: pa.Array, start: int) -> None:
    longer = pa.concat_arrays([array] * 4)
    shown = longer.slice(start, 5)
    column = view(shown)
    plain = shown.cast(pa.large_binary()) if column.width == 0 else shown
    assert column.length == 5
    assert column.valid is not None
    assert column.valid.tolist() == [value is not None for value in shown.to_pylist()]
    assert [raw_value(column, row) for row in np.flatnonzero(column.valid).tolist()] == [
        expected_bytes(value) for value in plain if value.is_valid
    ]


def test_a_column_without_nulls_has_no_mask_even_if_its_whole_has() -> None:
    array = pa.array([None, 1, 2])
    assert view(array.slice(1)).valid is None


@pytest.mark.parametrize("array", EXAMPLES, ids=lambda array: str(array.type))
def test_an_empty_array_is_an_empty_view(array: pa.Array) -> None:
    assert view(array.slice(0, 0)).length == 0
    assert view(pa.array([], array.type)).length == 0


def test_a_view_is_read_only_and_leaves_its_source_writeable() -> None:
    values = np.arange(4)
    column = fixed_view(values)
    assert not column.data.flags.writeable
    values[0] = 7
    assert column.data.view(np.int64)[0] == 7


def test_arrow_data_are_not_copied() -> None:
    array = pa.array(range(10))
    assert view(array.slice(2)).data.__array_interface__["data"][0] == array.buffers()[1].address + 16


def test_numpy_columns_have_the_kinds_of_their_values() -> None:
    assert fixed_view(np.zeros(3, np.int32))[2:5] == (4, Kind.SIGNED, 3)
    assert fixed_view(np.zeros(3, np.bool_))[2:5] == (1, Kind.UNSIGNED, 3)
    assert fixed_view(np.zeros(3, "datetime64[us]"))[2:5] == (8, Kind.SIGNED, 3)
    assert fixed_view(np.zeros((3, 16), np.uint8))[2:5] == (16, Kind.FIXED, 3)
    assert bytes_view(np.array([0, 1, 3]), np.zeros(3, np.uint8))[2:5] == (0, Kind.OFFSETS_64, 2)


@pytest.mark.parametrize("array", [pa.array([1.5]), pa.array([[1]]), pa.nulls(1)])
def test_a_type_that_is_no_key_is_refused_by_name(array: pa.Array) -> None:
    with pytest.raises(TypeError, match=str(array.type).split("<")[0]):
        view(array)


def test_numpy_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        fixed_view(np.zeros(3))
    with pytest.raises(ValueError, match="one piece"):
        fixed_view(np.arange(6)[::2])
    with pytest.raises(ValueError, match="2 values for 3 rows"):
        fixed_view(np.arange(3), np.ones(2, np.bool_))
    with pytest.raises(ValueError, match="3 bytes"):
        bytes_view(np.array([0, 4]), np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="1 values for 2 rows"):
        bytes_view(np.array([0, 1, 3]), np.zeros(3, np.uint8), np.ones(1, np.bool_))


def raw_value(column: ColumnView, row: int) -> bytes:
    if column.kind < Kind.OFFSETS_32:
        return column.data[row * column.width : (row + 1) * column.width].tobytes()
    offsets = column.offsets.view(np.int32 if column.kind == Kind.OFFSETS_32 else np.int64)
    return column.data[offsets[row] : offsets[row + 1]].tobytes()


def expected_bytes(scalar: pa.Scalar) -> bytes:
    """The value's little-endian bytes, by way of Python instead of buffers."""
    kind, value = scalar.type, scalar.as_py() if not pa.types.is_temporal(scalar.type) else scalar.value
    if isinstance(value, bytes):
        return value
    if pa.types.is_boolean(kind):
        return bytes([value])
    if pa.types.is_decimal(kind):
        return int(value.scaleb(kind.scale)).to_bytes(kind.byte_width, "little", signed=True)
    return int(value).to_bytes(kind.bit_width // 8, "little", signed=not pa.types.is_unsigned_integer(kind))
