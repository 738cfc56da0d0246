"""Merges agree with nested loops over Python integers, which do not overflow."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from etl.kernels.merge import Keys, merge_band, merge_equal
from tests.kernels.pairs import pairs_by_definition, taken

SIGNED = st.one_of(st.integers(-6, 6), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1]))
UNSIGNED = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1]))
REACH = st.one_of(st.integers(0, 4), st.sampled_from([2**62, 2**63, 2**64 - 1, 2**70]))


@given(st.lists(SIGNED, max_size=15), st.lists(SIGNED, max_size=15), REACH, REACH, st.integers(1, 7))
def test_band_of_signed_values(left: list[int], right: list[int], below: int, above: int, limit: int) -> None:
    check_band(np.array(sorted(left), np.int64), np.array(sorted(right), np.int64), below, above, limit)


@given(st.lists(UNSIGNED, max_size=15), st.lists(UNSIGNED, max_size=15), REACH, REACH, st.integers(1, 7))
def test_band_of_unsigned_values(left: list[int], right: list[int], below: int, above: int, limit: int) -> None:
    check_band(np.array(sorted(left), np.uint64), np.array(sorted(right), np.uint64), below, above, limit)


@given(st.lists(SIGNED, max_size=15), st.lists(SIGNED, max_size=15), st.integers(1, 7))
def test_equal_values(left: list[int], right: list[int], limit: int) -> None:
    left, right = sorted(left), sorted(right)
    chunks = merge_equal(np.array(left, np.int64), np.array(right, np.int64), limit)
    assert taken(chunks, limit) == pairs_by_definition(left, right)


def test_a_cross_product_comes_in_bounded_chunks_of_read_only_input() -> None:
    values = np.zeros(700, np.int64)
    values.flags.writeable = False
    sizes = [left.size for left, _ in merge_equal(values, values, limit=4096)]
    assert max(sizes) <= 4096
    assert sum(sizes) == 700 * 700


def test_what_cannot_be_merged_is_refused() -> None:
    signed, unsigned = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    with pytest.raises(TypeError, match="int64 with uint64"):
        merge_equal(signed, unsigned)
    with pytest.raises(TypeError, match="float64"):
        merge_equal(np.zeros(1), np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="left - -1"):
        merge_band(signed, signed, -1, 0)
    with pytest.raises(ValueError, match="limit is 0"):
        merge_equal(signed, signed, limit=0)


def check_band(left: Keys, right: Keys, below: int, above: int, limit: int) -> None:
    chunks = merge_band(left, right, below, above, limit)
    assert taken(chunks, limit) == pairs_by_definition(left.tolist(), right.tolist(), below, above)
