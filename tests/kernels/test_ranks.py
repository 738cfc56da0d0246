"""Ranks keep the order of the values, and slots lead to the segment that the boundaries say."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from etl.kernels.columns import view
from etl.kernels.ranks import common_prefix, rank, segment_of_rank, slot_array

BYTES = st.one_of(st.binary(max_size=12), st.text("ab\0", max_size=10).map(str.encode))
ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal64(18, 2): st.decimals(-1000, 1000, places=2),
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.string(): st.text(max_size=10),
}


@pytest.mark.parametrize("column_type", ORDERED, ids=str)
def test_a_greater_value_never_has_a_smaller_rank(column_type: pa.DataType) -> None:
    @settings(max_examples=50)
    @given(st.lists(ORDERED[column_type], max_size=12), st.integers(0, 3))
    def in_order(values: list[Any], skipped: int) -> None:
        key = (lambda text: text.encode()) if column_type == pa.string() else None
        ordered = sorted(values, key=key)
        array = pa.array(ordered[:1] * skipped + ordered, column_type).slice(skipped * bool(ordered))
        ranks = rank(view(array))
        assert ranks.dtype == np.uint64
        assert ranks.tolist() == sorted(ranks.tolist())
        assert rank(view(pa.array(values, column_type))).size == len(values)

    in_order()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_different_integers_have_different_ranks(values: list[int]) -> None:
    ranks = rank(view(pa.array(values, pa.int64())))
    assert ranks.tolist() == [value + 2**63 for value in values]


def test_equal_values_rank_alike_in_any_container() -> None:
    for value in (0, 5, 127):
        containers = (pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64(), pa.date32())
        found = {int(rank(view(pa.array([value], container)))[0]) for container in containers}
        assert found == {value + 2**63}
    assert rank(view(pa.array(["abc"], pa.large_string()))) == rank(view(pa.array([b"abc"])))


def test_large_unsigned_integers_share_the_highest_rank() -> None:
    ranks = rank(view(pa.array([2**63 - 1, 2**63, 2**64 - 1], pa.uint64())))
    assert ranks.tolist() == [2**64 - 1] * 3


@given(st.lists(st.one_of(st.none(), BYTES), max_size=8), st.integers(0, 14))
def test_bytes_rank_by_eight_bytes_after_those_skipped(values: list[bytes | None], skip: int) -> None:
    expected = [0 if v is None else int.from_bytes(v[skip : skip + 8].ljust(8, b"\0"), "big") for v in values]
    assert rank(view(pa.array(values, pa.binary())), skip).tolist() == expected


def test_what_lies_under_a_null_does_not_show() -> None:
    bits = pa.py_buffer(b"\x02")
    numbers = pa.Array.from_buffers(pa.int64(), 2, [bits, pa.py_buffer(np.array([77, 5]))])
    assert rank(view(numbers)).tolist() == [0, 5 + 2**63]


@given(st.lists(st.one_of(st.none(), BYTES.map(lambda value: b"customer"[: len(value)] + value)), max_size=6))
def test_the_common_prefix_agrees_with_python(values: list[bytes | None]) -> None:
    array = pa.array([b"other", *values], pa.binary()).slice(1)
    present = [value for value in values if value is not None]
    starts = [{value[:size] for value in present if len(value) >= size} for size in range(1, 30)]
    is_shared = [len(start) == 1 and all(len(v) > size for v in present) for size, start in enumerate(starts)]
    assert common_prefix(view(array)) == is_shared.index(False)


def test_integers_have_no_common_prefix() -> None:
    assert common_prefix(view(pa.array([5, 5]))) == 0
    assert common_prefix(view(pa.array([b"abcde", b"abxyz"], pa.binary(5)))) == 2


RANKS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20), st.integers(2**64 - 20, 2**64 - 1))


@given(st.lists(RANKS, min_size=1, max_size=30, unique=True), st.lists(RANKS), st.sampled_from([None, 1, 4, 9]))
def test_slots_lead_to_the_segment_by_definition(firsts: list[int], ranks: list[int], bits: int | None) -> None:
    boundaries = sorted(firsts)
    asked = [*ranks, *boundaries, *(first - 1 for first in boundaries if first), 0, 2**64 - 1]
    found = segment_of_rank(*slot_array(np.array(boundaries, np.uint64), bits), np.array(asked, np.uint64))
    assert found.dtype == np.int32
    assert found.tolist() == [max(sum(first <= one for first in boundaries) - 1, 0) for one in asked]


def test_slots_grow_with_the_segments() -> None:
    boundaries = np.arange(0, 2**64, 2**54, dtype=np.uint64)
    slots = slot_array(boundaries)
    assert slots.slots.size - 1 == 2 * boundaries.size
    assert np.diff(slots.slots).max() <= 1


def test_boundaries_and_slots_that_lead_astray_are_refused() -> None:
    boundaries, ranks = np.array([0, 10, 20], np.uint64), np.array([15], np.uint64)
    slots = slot_array(boundaries, 2)
    with pytest.raises(ValueError, match="there are no boundaries"):
        slot_array(boundaries[:0])
    with pytest.raises(ValueError, match="the boundaries must ascend"):
        slot_array(boundaries[::-1])
    for bits in (0, 21):
        with pytest.raises(ValueError, match="give 1 to 20 bits"):
            slot_array(boundaries, bits)
    with pytest.raises(ValueError, match="the slots must run from segment 0 to the last, 1"):
        segment_of_rank(slots.slots, boundaries[:2], slots.low, slots.shift, ranks)
    with pytest.raises(ValueError, match="the shift is 64"):
        segment_of_rank(slots.slots, boundaries, slots.low, 64, ranks)
    for astray in ([0, 3, 2], [0, -1, 2]):
        with pytest.raises(ValueError, match="descend or name no segment"):
            segment_of_rank(np.array(astray, np.int32), boundaries, 0, 4, np.array([0, 17], np.uint64))
    with pytest.raises(ValueError, match="skip is -1"):
        rank(view(pa.array(["a"])), -1)
