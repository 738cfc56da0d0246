"""Chains of blocks against a plain list: the same entries, the same pairs, no block lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.kernels.block_chains import BlockChains, Entries
from etl.kernels.compiling import Int32s

BUCKETS = 3
Stored = tuple[int, int, int, int]
"""Bucket, hash, event time, number."""


def entries_of(rows: list[tuple[int, int, int]], first: int) -> tuple[Int32s, Entries]:
    buckets = np.array([bucket for bucket, _, _ in rows], np.int32)
    hashes = np.array([key for _, key, _ in rows], np.uint64)
    times = np.array([time for _, _, time in rows], np.int64)
    return buckets, Entries(hashes, times, np.arange(first, first + len(rows)))


def pairs_of(
    chains: BlockChains, rows: list[tuple[int, int, int]], slack: int, first: int, limit: int
) -> list[tuple[int, int]]:
    buckets, entries = entries_of(rows, 0)
    reach = entries.times - slack, entries.times + slack
    chunks = list(chains.scan(buckets, entries.hashes, reach, first, limit))
    assert all(1 <= len(left) <= limit for left, _ in chunks)
    return sorted(pair for left, right in chunks for pair in zip(left.tolist(), right.tolist(), strict=True))


ROWS = st.lists(st.tuples(st.integers(0, BUCKETS - 1), st.integers(0, 3), st.integers(-5, 5)), max_size=20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("scan"), ROWS),
        st.tuples(st.just("drain"), st.integers(0, BUCKETS - 1)),
        st.tuples(st.just("expire"), st.integers(0, 10)),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(steps=STEPS, capacity=st.integers(1, 4), slack=st.integers(0, 4), limit=st.sampled_from([1, 3, 100]))
def test_chains_hold_what_a_list_holds(steps: list[tuple[str, object]], capacity: int, slack: int, limit: int) -> None:
    chains = BlockChains(capacity, BUCKETS)
    held: list[Stored] = []
    number, first = 0, 0
    for action, given_ in steps:
        if action == "append":
            rows: list[tuple[int, int, int]] = given_  # type: ignore[assignment]
            buckets, entries = entries_of(rows, number)
            announced = chains.bytes_after(chains.blocks_for(buckets))
            assert chains.blocks_for(buckets) <= chains.most_blocks_for(len(rows))
            chains.append(buckets, entries)
            assert chains.nbytes <= announced
            held += [(*row, number + place) for place, row in enumerate(rows)]
            number += len(rows)
        elif action == "scan":
            asked: list[tuple[int, int, int]] = given_  # type: ignore[assignment]
            assert pairs_of(chains, asked, slack, first, limit) == sorted(
                (row, stored)
                for row, (bucket, key, time) in enumerate(asked)
                for other, other_key, other_time, stored in held
                if (bucket, key) == (other, other_key) and abs(time - other_time) <= slack and stored >= first
            )
        elif action == "drain":
            bucket = int(given_)  # type: ignore[call-overload]
            drained = chains.drain(bucket)
            numbers = drained.numbers.tolist()
            assert numbers == sorted(numbers)
            mine = [row for row in held if row[0] == bucket and row[3] >= first]
            assert [row for row in zip(*(field.tolist() for field in drained), strict=True) if row[2] >= first] == [
                row[1:] for row in mine
            ]
            held = [row for row in held if row[0] != bucket]
            assert chains.sizes[bucket] == 0
        else:
            first = max(first, number - int(given_))  # type: ignore[call-overload]
            chains.expire(first)
            held = [row for row in held if row[3] >= first]
        live = np.bincount([row[0] for row in held], minlength=BUCKETS)
        assert (chains.sizes >= live).all()
        assert (chains.sizes <= live + (capacity - 1 if first else 0)).all()


def test_blocks_are_used_again() -> None:
    chains = BlockChains(4)
    held = []
    for round_ in range(50):
        chains.append(*entries_of([(0, 1, 0)] * 40, 40 * round_))
        chains.expire(40 * (round_ + 1))
        held.append(chains.nbytes)
    assert len(set(held[1:])) == 1


def test_more_buckets_may_come() -> None:
    chains = BlockChains(2)
    chains.append(*entries_of([(0, 1, 0)], 0))
    chains.make_buckets(8)
    chains.append(*entries_of([(7, 1, 0)], 1))
    assert chains.sizes.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    assert pairs_of(chains, [(7, 1, 0), (3, 1, 0)], 0, 0, 10) == [(0, 1)]


def test_a_block_holds_at_least_one_entry() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        BlockChains(0)
