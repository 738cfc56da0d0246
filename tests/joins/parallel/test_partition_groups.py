"""Groups of keys and their placement on slots."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.joins.parallel.partition_groups import Placement, group_of
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns


def test_the_group_of_a_key_is_the_same_in_every_release() -> None:
    keys = hash_columns([view(pa.array([0, 1, 2, -1, 10**12, None], pa.int64()))])
    assert group_of(keys, 60).tolist() == [52, 33, 35, 53, 56, 0]


def test_groups_get_equal_shares_of_the_keys() -> None:
    keys = hash_columns([view(pa.array(np.arange(60_000)))])
    counts = np.bincount(group_of(keys, 60), minlength=60)
    assert counts.min() > 850
    assert counts.max() < 1_150


def test_the_low_bits_of_the_hash_stay_free_inside_a_group() -> None:
    keys = hash_columns([view(pa.array(np.arange(60_000)))])
    inside = keys.hashes[group_of(keys, 60) == 7]
    assert np.bincount((inside & np.uint64(7)).astype(np.int64), minlength=8).min() > 90


@settings(deadline=None)
@given(groups=st.integers(1, 200), slots=st.integers(1, 50))
def test_an_even_placement_differs_by_one_group_at_most_and_survives_json(groups: int, slots: int) -> None:
    placement = Placement.even(groups, slots)
    held = [len(placement.groups_on(slot)) for slot in range(slots)]
    assert sum(held) == groups
    assert max(held) - min(held) <= 1
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement


def test_moving_a_group_changes_that_group_only() -> None:
    before = Placement.even(6, 3)
    after = before.moved(4, 0)
    assert after.slot_of == (0, 1, 2, 0, 0, 2)
    assert before.slot_of == (0, 1, 2, 0, 1, 2)
    assert after.groups_on(0) == (0, 3, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Placement(2, 2, (0, 2)), "group 1 is on slot 2: slots are 0 to 1"),
        (lambda: Placement(2, 2, (0,)), "names slots for 1 groups of 2"),
        (lambda: Placement.even(2, 0), "2 groups on 0 slots"),
        (lambda: Placement.even(2, 2).moved(2, 0), "there is no group 2"),
        (lambda: Placement.even(2, 2).moved(0, -1), "group 0 is on slot -1"),
        (lambda: group_of(hash_columns([view(pa.array([1]))]), 0), "groups is 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(BadInput, match=message):
        make()
