"""Key columns are bound once, and what cannot be a key is refused with its name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from etl.errors import BadInput
from etl.kernels.columns import view
from etl.keys import bind_keys, is_key_type

KEY_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("us", "UTC")),
]
OTHER_TYPES = [
    *(pa.null(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
    *(pa.dictionary(pa.int8(), pa.string()), pa.month_day_nano_interval(), pa.string_view()),
]
FLOAT_TYPES = [pa.float16(), pa.float32(), pa.float64()]
LEFT = pa.schema([("id", pa.int64()), ("country", pa.string()), ("price", pa.float64())])
RIGHT = pa.schema([("country", pa.string()), ("number", pa.int64()), ("small", pa.int32())])
NAMES = ["side 0", "relation customer"]


def test_columns_are_found_in_the_order_of_on() -> None:
    assert bind_keys([LEFT, RIGHT], NAMES, [("country", "country"), ("id", "number")]) == ((1, 0), (0, 1))


def test_any_number_of_inputs_is_bound() -> None:
    assert bind_keys([LEFT, RIGHT, LEFT], ["a", "b", "c"], [("id", "number", "id")]) == ((0,), (1,), (0,))


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
def test_every_key_type_is_bound_and_known_to_the_kernels(type_: pa.DataType) -> None:
    assert is_key_type(type_)
    schema = pa.schema([("key", type_)])
    assert bind_keys([schema, schema], NAMES, [("key", "key")]) == ((0,), (0,))
    assert view(pa.array([], type_)).length == 0


@pytest.mark.parametrize("type_", FLOAT_TYPES, ids=str)
def test_floats_are_refused_with_the_reason(type_: pa.DataType) -> None:
    schema = pa.schema([("price", type_)])
    assert not is_key_type(type_)
    with pytest.raises(BadInput, match=f"side 0 key column 'price' is {type_}: floats do not compare exactly, cast"):
        bind_keys([schema, schema], NAMES, [("price", "price")])


@pytest.mark.parametrize("type_", OTHER_TYPES, ids=str)
def test_other_types_are_refused(type_: pa.DataType) -> None:
    schemas = [pa.schema([("key", pa.int64())]), pa.schema([("strange", type_)])]
    with pytest.raises(BadInput, match=r"relation customer key column 'strange' is .*, which cannot be a key"):
        bind_keys(schemas, NAMES, [("key", "strange")])


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ([], "on is empty: name at least one pair"),
        ([("id", "code")], "relation customer has no key column 'code': it has 'country', 'number', 'small'"),
        ([("nr", "number")], "side 0 has no key column 'nr': it has 'id', 'country', 'price'"),
        ([("id",)], r"on\[0\] is \('id',\): it names 1 columns for 2 inputs"),
        ([("country", "country"), ("id", "number", "id")], r"on\[1\] .* names 3 columns for 2 inputs"),
        (
            [("id", "small")],
            "different types: side 0 column 'id' is int64, relation customer column 'small' is int32: cast one",
        ),
        ([("id", "country")], "side 0 column 'id' is int64, relation customer column 'country' is string"),
    ],
)
def test_what_does_not_fit_is_named(on: list[tuple[str, ...]], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        bind_keys([LEFT, RIGHT], NAMES, on)


def test_types_that_differ_only_in_unit_or_scale_do_not_fit() -> None:
    """Their values would be compared as bare numbers: 1 s would equal 1 us."""
    for one, other in [
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.uint64(), pa.int64()),
    ]:
        with pytest.raises(BadInput, match="key columns of different types"):
            bind_keys([pa.schema([("k", one)]), pa.schema([("k", other)])], NAMES, [("k", "k")])


def test_a_name_that_stands_for_two_columns_is_refused() -> None:
    twice = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(BadInput, match="relation customer has 2 columns named 'id': rename all but one"):
        bind_keys([LEFT, twice], NAMES, [("id", "id")])
