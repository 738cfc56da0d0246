"""Which segment a key belongs to."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.storage.partitioning import END, Partitioning, one_segment
from etl.storage.ports import keys_of

coordinates = st.integers(0, END - 1)


@given(boundaries=st.sets(coordinates.filter(bool), max_size=20), asked=st.lists(coordinates, max_size=20))
def test_a_segment_begins_at_its_boundary_and_ends_before_the_next(boundaries: set[int], asked: list[int]) -> None:
    firsts = [0, *sorted(boundaries)]
    partitioning = Partitioning("hash", np.array(firsts, np.uint64))
    asked = [*asked, *firsts, *(first - 1 for first in boundaries), END - 1]
    segment = partitioning.segment_at(np.array(asked, np.uint64))
    for coordinate, number in zip(asked, segment.tolist(), strict=True):
        start, end = partitioning.interval(number)
        assert start <= coordinate < end


def test_a_null_key_has_no_segment() -> None:
    keys = keys_of([pa.array([1, None, 3]), pa.array(["a", "b", None])])
    assert one_segment("hash").segment_of(keys).tolist() == [0, -1, -1]
    assert one_segment("range", column=1).segment_of(keys).tolist() == [0, -1, -1]


def test_ranges_follow_the_order_of_the_ranked_column() -> None:
    names = [f"customer {number:06d}" for number in range(1000)]
    keys = keys_of([pa.array(np.arange(1000)[::-1].copy()), pa.array(names)])
    partitioning = one_segment("range", column=1, skip=len("customer "))
    ranks = partitioning.coordinates(keys)
    assert (ranks[1:] > ranks[:-1]).all()
    cut = partitioning.redrawn(np.array([0, ranks[300], ranks[700]], np.uint64))
    assert np.bincount(cut.segment_of(keys)).tolist() == [300, 400, 300]


@pytest.mark.parametrize("boundaries", [[], [1, 2], [0, 5, 5], [0, 7, 6]])
def test_boundaries_that_leave_gaps_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(ValueError, match="start at 0 and ascend"):
        Partitioning("hash", np.array(boundaries, np.uint64))
