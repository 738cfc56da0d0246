"""Buckets between theta and 2 * theta, whatever comes and goes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.joins.parallel.extendible_directory import ExtendibleDirectory
from etl.kernels.compiling import Int64s, UInt64s


def hashes(*values: int) -> UInt64s:
    return np.array(values, np.uint64)


def sizes_of(directory: ExtendibleDirectory, keys: UInt64s) -> Int64s:
    return np.bincount(directory.bucket_of(keys), minlength=directory.numbers)


def tune(directory: ExtendibleDirectory, keys: UInt64s) -> None:
    """As a user of the directory does it: split what is too large, then merge what is too small."""
    while large := directory.overfull(sizes_of(directory, keys)):
        directory.split(large[0])
    while (pair := directory.next_merge(sizes_of(directory, keys))) is not None:
        directory.merge(*pair)


def assert_sound(directory: ExtendibleDirectory) -> None:
    """Every entry names a bucket whose low bits it has; the directory is as deep as its deepest bucket."""
    entries = directory.bucket_of(np.arange(2**directory.depth, dtype=np.uint64))
    assert set(entries.tolist()) == set(directory.buckets)
    for bucket in directory.buckets:
        mine = np.flatnonzero(entries == bucket)
        local = directory.local_depth(bucket)
        assert len(mine) == 2 ** (directory.depth - local)
        assert len(set((mine % 2**local).tolist())) == 1
    assert directory.depth == max(directory.local_depth(bucket) for bucket in directory.buckets)


def test_a_split_doubles_the_directory_only_when_it_must() -> None:
    directory = ExtendibleDirectory(theta=1)
    first = directory.split(0)
    second = directory.split(0)
    assert directory.depth == 2
    third = directory.split(first)
    assert directory.depth == 2
    assert directory.bucket_of(hashes(0, 1, 2, 3, 4)).tolist() == [0, first, second, third, 0]


def test_the_buddy_differs_in_the_last_of_the_local_bits() -> None:
    """The thesis' formula is for directories whose buckets are neighbours: with low bits it names a stranger."""
    directory = ExtendibleDirectory(theta=1)
    odd = directory.split(0)
    even_upper = directory.split(0)
    assert directory.buddy(0) == even_upper
    assert directory.buddy(odd) is None  # its buddy has been split further
    directory.merge(0, even_upper)
    assert directory.buddy(odd) == 0
    assert directory.depth == 1


def test_merging_strangers_is_refused() -> None:
    directory = ExtendibleDirectory(theta=1)
    odd = directory.split(0)
    directory.split(0)
    with pytest.raises(BadInput, match="no buddies"):
        directory.merge(0, odd)


def test_equal_hashes_do_not_split_for_ever() -> None:
    directory = ExtendibleDirectory(theta=2, most_depth=5)
    tune(directory, hashes(*[7] * 100))
    assert directory.depth == 5
    with pytest.raises(BadInput, match="cannot be split"):
        directory.split(int(directory.bucket_of(hashes(7))[0]))


def test_what_shrinks_comes_back_to_one_bucket() -> None:
    directory = ExtendibleDirectory(theta=4)
    keys = np.random.default_rng(5).integers(0, 2**63, 1000).astype(np.uint64)
    tune(directory, keys)
    assert len(directory.buckets) > 100
    tune(directory, keys[:3])
    assert (len(directory.buckets), directory.depth) == (1, 0)


KEYS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1)), max_size=120)


@settings(deadline=None)
@given(rounds=st.lists(KEYS, max_size=5), theta=st.integers(1, 6))
def test_sizes_stay_within_theta_and_twice_theta(rounds: list[list[int]], theta: int) -> None:
    directory = ExtendibleDirectory(theta, most_depth=10)
    for values in rounds:
        keys = hashes(*values)
        tune(directory, keys)
        assert_sound(directory)
        sizes = sizes_of(directory, keys)
        for bucket in directory.buckets:
            assert sizes[bucket] <= 2 * theta or directory.local_depth(bucket) == 10
            buddy = directory.buddy(bucket)
            assert sizes[bucket] >= theta or buddy is None or sizes[bucket] + sizes[buddy] >= 2 * theta
        copy = ExtendibleDirectory.from_json(json.loads(json.dumps(directory.to_json())))
        assert_sound(copy)
        assert copy.to_json() == directory.to_json()
        together = {(int(a), int(b)) for a, b in zip(directory.bucket_of(keys), copy.bucket_of(keys), strict=True)}
        assert len(together) == len({a for a, _ in together}) == len({b for _, b in together})


@settings(deadline=None)
@given(keys=KEYS)
def test_memory_announced_before_a_split_covers_it(keys: list[int]) -> None:
    directory = ExtendibleDirectory(1, most_depth=10)
    while large := directory.overfull(sizes_of(directory, hashes(*keys))):
        announced = directory.bytes_after_split(large[-1])
        directory.split(large[-1])
        assert directory.nbytes <= announced


@pytest.mark.parametrize(("theta", "most_depth"), [(0, 5), (1, 31), (1, -1)])
def test_what_does_not_fit_is_refused(theta: int, most_depth: int) -> None:
    with pytest.raises(BadInput):
        ExtendibleDirectory(theta, most_depth)


def test_a_stored_directory_with_holes_is_refused() -> None:
    with pytest.raises(BadInput, match="keys without a bucket"):
        ExtendibleDirectory.from_json({"theta": 1, "most_depth": 5, "buckets": [[0, 1]]})
