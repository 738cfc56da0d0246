"""Candidate pairs are judged by their values: across containers, in slices, with nulls."""

from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from etl.kernels.columns import bytes_view, fixed_view, view
from etl.kernels.compare import equal_rows
from etl.kernels.compiling import Int64s

Values = list[Any]

COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.one_of(st.none(), st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1)),
    pa.int16(): st.one_of(st.none(), st.integers(-2, 2)),
    pa.bool_(): st.one_of(st.none(), st.booleans()),
    pa.string(): st.one_of(st.none(), st.text("ab", max_size=3), st.text("ab", min_size=7, max_size=18)),
    pa.large_binary(): st.one_of(st.none(), st.binary(max_size=2)),
    pa.binary(3): st.one_of(st.none(), st.sampled_from([b"abc", b"abd", b"\0\0\0"])),
    pa.decimal128(5, 1): st.one_of(st.none(), st.decimals(-1, 1, places=1)),
}


@pytest.mark.parametrize("column_type", COLUMNS, ids=str)
def test_all_pairs_agree_with_python(column_type: pa.DataType) -> None:
    @given(
        st.lists(COLUMNS[column_type], max_size=8),
        st.lists(COLUMNS[column_type], max_size=8),
        st.integers(0, 3),
    )
    def agree(left: Values, right: Values, skipped: int) -> None:
        left_column = view(pa.array([None] * skipped + left, column_type).slice(skipped))
        right_column = view(pa.array(right, column_type))
        left_index, right_index = all_pairs(left, right)
        found = equal_rows([left_column], left_index, [right_column], right_index)
        assert found.dtype == np.bool_
        assert found.tolist() == [one is not None and one == other for one in left for other in right]

    agree()


def test_every_column_of_the_key_must_agree() -> None:
    numbers, texts = view(pa.array([1, 1, 2, None])), view(pa.array(["a", "b", "a", "a"]))
    index = np.arange(4)
    assert equal_rows([numbers, texts], index, [numbers, texts], index).tolist() == [True, True, True, False]
    other = np.array([1, 0, 0, 3])
    assert equal_rows([numbers, texts], index, [numbers, texts], other).tolist() == [False] * 4


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 40])
def test_a_difference_at_any_byte_is_seen(length: int) -> None:
    data = np.zeros(2 * length, np.uint8)
    column = bytes_view(np.array([0, length, 2 * length]), data)
    first, second = np.array([0]), np.array([1])
    assert equal_rows([column], first, [column], second).tolist() == [True]
    for place in range(length):
        data[place] = 1
        assert equal_rows([column], first, [column], second).tolist() == [False]
        data[place] = 0


def test_values_are_compared_across_containers() -> None:
    assert equal("int8", [5, -5], "int64", [5, -5]) == [True, True]
    assert equal("uint8", [200], "int16", [200]) == [True]
    assert equal("uint64", [2**64 - 1, 7], "int64", [-1, 7]) == [False, True]
    assert equal("uint32", [2**32 - 1], "int32", [-1]) == [False]
    assert equal("string", ["", "abc"], "large_string", ["", "abc"]) == [True, True]
    decimals = view(pa.array([Decimal(-1)], pa.decimal128(38)))
    words = fixed_view(np.array([[-1, -1]]))
    assert equal_rows([decimals], np.array([0]), [words], np.array([0])).tolist() == [True]


def test_no_pairs_and_no_rows() -> None:
    column, nothing = view(pa.array([], pa.string())), np.empty(0, np.int64)
    assert equal_rows([column], nothing, [column], nothing).tolist() == []


def test_misuse_is_named() -> None:
    numbers, texts = view(pa.array([1, 2])), view(pa.array(["a", "b"]))
    zero = np.array([0])
    with pytest.raises(TypeError, match="key column 0 holds integers on the left and variable-width values"):
        equal_rows([numbers], zero, [texts], zero)
    with pytest.raises(ValueError, match="left key has 1 columns, the right key has 2"):
        equal_rows([numbers], zero, [numbers, numbers], zero)
    with pytest.raises(ValueError, match="not 1 and 2"):
        equal_rows([numbers], zero, [numbers], np.array([0, 1]))
    for outside in (-1, 2):
        with pytest.raises(IndexError, match="outside key column 0: it has 2 rows"):
            equal_rows([numbers], zero, [numbers], np.array([outside]))


def equal(left_type: str, left: Values, right_type: str, right: Values) -> list[bool]:
    left_column, right_column = view(pa.array(left, left_type)), view(pa.array(right, right_type))
    index = np.arange(len(left))
    return [bool(same) for same in equal_rows([left_column], index, [right_column], index)]


def all_pairs(left: Values, right: Values) -> tuple[Int64s, Int64s]:
    left_index, right_index = np.divmod(np.arange(len(left) * len(right)), max(len(right), 1))
    return left_index, right_index
