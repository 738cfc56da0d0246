"""Partitions are even shares of the hash range, and scattering keeps the order of the rows."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from etl.kernels.scatter import partition_of, scatter


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(1, 2**31 - 1))
def test_the_partition_is_the_share_of_the_high_bits(hashes: list[int], partitions: int) -> None:
    found = partition_of(np.array(hashes, np.uint64), partitions)
    assert found.dtype == np.int32
    assert found.tolist() == [((key_hash >> 32) * partitions) >> 32 for key_hash in hashes]


@pytest.mark.parametrize("partitions", [1, 2, 3, 60, 1000])
def test_every_partition_gets_its_share(partitions: int) -> None:
    hashes = np.random.default_rng(5).integers(0, 2**64 - 1, 100 * partitions, dtype=np.uint64)
    counts = np.bincount(partition_of(hashes, partitions), minlength=partitions)
    assert counts.size == partitions
    assert counts.min() > 50
    assert counts.max() < 150


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=40))))
def test_scatter_is_a_stable_sort(example: tuple[int, list[int]]) -> None:
    partitions, numbers = example
    partition = np.array(numbers, np.int32)
    partition.flags.writeable = False
    order, offsets = scatter(partition, partitions)
    assert order.tolist() == np.argsort(partition, kind="stable").tolist()
    assert offsets.tolist() == [sum(number < p for number in numbers) for p in range(partitions + 1)]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 is in partition 3, but there are 3"):
        scatter(np.array([0, 3], np.int32), 3)
    with pytest.raises(ValueError, match="row 0 is in partition -1"):
        scatter(np.array([-1], np.int32), 3)
    with pytest.raises(ValueError, match="0 partitions"):
        partition_of(np.array([1], np.uint64), 0)
    with pytest.raises(ValueError, match="from 1 to 2147483647"):
        scatter(np.array([1], np.int32), 2**31)
