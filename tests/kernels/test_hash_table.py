"""The table finds every pair of equal hashes, in bounded chunks, and says honestly what memory it takes."""

import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from etl.kernels.compiling import Bools, UInt64s
from etl.kernels.hash_table import HashTable, build
from tests.kernels.pairs import pairs_by_definition, taken

Batch = list[tuple[int, bool]]

# Few different hashes, some that share a slot (low bits), some a tag (high bits), some both.
HASHES = st.sampled_from([0, 1, 32, 2**32, 2**33, 2**63, 2**63 + 32, 2**64 - 1])
BATCH = st.lists(st.tuples(HASHES, st.booleans()), max_size=12)


@given(st.lists(BATCH, max_size=6), BATCH, st.integers(1, 7))
def test_probe_finds_the_pairs_by_definition(batches: list[Batch], probe: Batch, limit: int) -> None:
    table = HashTable()
    for batch in batches:
        table.insert(*arrays(batch))
    rows = [row for batch in batches for row in batch]
    expected = [
        (position, row)
        for position, row in pairs_by_definition(keys(probe), keys(rows))
        if probe[position][1] and rows[row][1]
    ]
    hashes, valid = arrays(probe)
    assert taken(table.probe(hashes, valid, limit), limit) == expected
    assert len(table) == len(rows)
    assert table.hashes.tolist() == keys(rows)


@given(st.lists(BATCH, max_size=4), st.integers(1, 7))
def test_built_at_once_or_grown_the_table_answers_alike(batches: list[Batch], limit: int) -> None:
    rows = [row for batch in batches for row in batch]
    grown, built = HashTable(), build(*arrays(rows))
    for batch in batches:
        grown.insert(*arrays(batch))
    probe = np.unique(arrays(rows)[0])
    assert taken(grown.probe(probe, limit=limit), limit) == taken(built.probe(probe, limit=limit), limit)


@pytest.mark.parametrize("batch_rows", [1, 1000, 60_000])
def test_many_rows_through_growth_and_prefetching(batch_rows: int) -> None:
    generator = np.random.default_rng(7)
    rows = min(60_000, 3000 * batch_rows)
    hashes = generator.integers(0, 2**64 - 1, rows, dtype=np.uint64)
    hashes[generator.integers(0, rows, rows // 3)] = hashes[0]
    valid = generator.random(rows) < 0.9
    table = HashTable()
    for start in range(0, rows, batch_rows):
        table.insert(hashes[start : start + batch_rows], valid[start : start + batch_rows])
    probe = np.concatenate([np.unique(hashes), np.arange(1000, dtype=np.uint64)])
    chunks = list(table.probe(probe))
    positions, found = (np.concatenate(part) for part in zip(*chunks, strict=True))
    assert max(part.size for part, _ in chunks) <= 65536
    assert np.array_equal(probe[positions], hashes[found])
    assert np.array_equal(np.sort(found), np.flatnonzero(valid))
    assert np.array_equal(np.lexsort((found, positions)), np.arange(found.size))


def test_rows_that_share_a_hash_are_all_found_after_growth() -> None:
    table = HashTable()
    twins = np.repeat(np.random.default_rng(2).integers(0, 2**64 - 1, 5, dtype=np.uint64), 2)
    table.insert(twins)
    before = table.nbytes
    table.insert(np.random.default_rng(3).integers(0, 2**64 - 1, 1000, dtype=np.uint64))
    assert table.nbytes > 10 * before
    assert taken(table.probe(twins[::2]), 65536) == [(row // 2, row) for row in range(10)]


def test_one_hot_hash_is_cut_into_chunks_inside_one_probe_row() -> None:
    table = build(np.full(200_000, 5, np.uint64))
    chunks = table.probe(np.array([5, 5], np.uint64), limit=1000)
    first_positions, first_rows = next(chunks)
    assert first_rows.size <= 1000
    assert first_positions.max() == 0
    assert first_rows.size + sum(rows.size for _, rows in chunks) == 400_000


def test_a_hot_hash_takes_one_entry() -> None:
    distinct, hot = HashTable(), HashTable()
    for start in range(0, 50_000, 500):
        distinct.insert(np.random.default_rng(start).integers(0, 2**64 - 1, 500, dtype=np.uint64))
        hot.insert(np.full(500, 5, np.uint64))
    assert hot.nbytes < distinct.nbytes / 2


def test_an_empty_table_is_small_and_matches_nothing() -> None:
    table = HashTable()
    assert len(table) == 0
    assert table.nbytes < 1024
    assert list(table.probe(np.arange(3, dtype=np.uint64))) == []
    table.insert(np.empty(0, np.uint64))
    assert list(table.probe(np.empty(0, np.uint64))) == []
    assert len(build(np.empty(0, np.uint64))) == 0


def test_read_only_input_is_welcome() -> None:
    hashes = np.arange(5, dtype=np.uint64)
    hashes.flags.writeable = False
    valid = np.ones(5, np.bool_)
    valid.flags.writeable = False
    pairs = taken(build(hashes, valid).probe(hashes, valid), 65536)
    assert pairs == [(row, row) for row in range(5)]


def test_the_hashes_cannot_be_overwritten_from_outside() -> None:
    with pytest.raises(ValueError, match="read-only"):
        build(np.arange(5, dtype=np.uint64)).hashes[0] = 1


@pytest.mark.parametrize("already", [0, 16, 1000, 40_000])
@pytest.mark.parametrize("more", [0, 1, 17, 1000, 100_000])
def test_the_announced_memory_is_what_an_insertion_takes_at_most(already: int, more: int) -> None:
    generator = np.random.default_rng(already)
    hashes = generator.integers(0, 2**64 - 1, already + more, dtype=np.uint64)
    table = HashTable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = build(hashes[:already])
        held = table.nbytes
        announced = table.bytes_after(more)
        tracemalloc.reset_peak()
        table.insert(hashes[already:])
        measured = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert announced >= max(held, table.nbytes)
    # Python's own small objects (views, numbers) come on top; the arrays themselves fit exactly.
    assert announced - 1024 <= measured <= announced + 4096


def test_asking_for_the_announcement_changes_nothing() -> None:
    table = build(np.arange(100, dtype=np.uint64))
    held = table.nbytes
    table.bytes_after(1_000_000)
    assert table.nbytes == held


def test_a_built_table_has_no_spare_rows() -> None:
    table = build(np.random.default_rng(1).integers(0, 2**64 - 1, 1000, dtype=np.uint64))
    assert table.nbytes == 1000 * (8 + 4) + 2048 * 8


def test_misuse_is_named() -> None:
    table = build(np.arange(5, dtype=np.uint64))
    with pytest.raises(ValueError, match="limit is 0"):
        table.probe(np.arange(5, dtype=np.uint64), limit=0)
    with pytest.raises(ValueError, match="2 values for 5 rows"):
        table.insert(np.arange(5, dtype=np.uint64), np.ones(2, np.bool_))
    assert len(table) == 5
    chunks = table.probe(np.arange(5, dtype=np.uint64), limit=2)
    next(chunks)
    table.insert(np.arange(5, dtype=np.uint64))
    with pytest.raises(RuntimeError, match="rows were inserted"):
        next(chunks)


def arrays(batch: Batch) -> tuple[UInt64s, Bools]:
    return np.array(keys(batch), np.uint64), np.array([valid for _, valid in batch], np.bool_)


def keys(batch: Batch) -> list[int]:
    return [key_hash for key_hash, _ in batch]
