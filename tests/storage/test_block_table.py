"""Block tables: probes through copies in memory, columns of every type, filters."""

import ctypes
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.ports import keys_of
from etl.storage.relation import Relation
from tests.storage.relations import KEY, SCHEMA, keys_in, numbered, probe_all


def grown(partition: PartitionKind = "hash") -> Relation:
    """A base and three deltas."""
    rows = [numbered(range(500))]
    relation = create_memory_relation("customers", SCHEMA, KEY, rows, partition=partition, theta=20)
    for load in range(3):
        relation = relation.append(numbered(range(1000 + 50 * load, 1050 + 50 * load)), f"load {load}", 0)
    return relation


PROBES = keys_in(numbered([*range(0, 600, 3), *range(1000, 1200, 2)]))


@given(st.lists(st.sets(st.integers(0, 15)), max_size=4))
@settings(max_examples=30, deadline=None)
def test_a_probe_finds_the_same_in_copies_and_in_files(pinnings: list[set[int]]) -> None:
    relation = grown()
    table = relation.block_table()
    expected = probe_all(relation, PROBES)
    assert len(expected) == 167 + 75
    for pinned in pinnings:
        table = table.pinned(sorted(pinned))
        assert probe_all(relation, PROBES, table) == expected
        copied = table.pinned_bytes - (table.index_bytes if pinned else 0)
        most = relation.segment_bytes[sorted(pinned)].sum()
        assert 0.5 * most <= copied <= most


def test_copies_move_on_to_the_next_version() -> None:
    relation = grown()
    pinned = relation.block_table().pinned([0, 3, 5])
    newer = relation.append(numbered(range(2000, 2100)), "load 9", 0)
    table = newer.block_table().pinned([0, 3], previous=pinned)
    old_copies = {id(copy.rows) for copy in pinned._pinned.values()}
    kept = [copy for copy in table._pinned.values() if id(copy.rows) in old_copies]
    assert len(kept) == relation.segment_blocks[[0, 3]].sum(), "only the new delta's blocks were copied"
    probes = keys_in(numbered([*range(600), *range(2000, 2100)]))
    assert probe_all(newer, probes, table) == probe_all(newer, probes)


def test_a_copy_does_not_look_at_the_file_any_more() -> None:
    relation = grown()
    every = range(relation.segments)
    table = relation.block_table().pinned(every)
    expected = probe_all(relation, PROBES)
    for run in relation._version._runs.values():
        for block in run.blocks:
            hashes = block.column("_hash").buffers()[1]
            ctypes.memset(hashes.address, 0, hashes.size)
    assert probe_all(relation, PROBES, table) == expected
    assert probe_all(relation, PROBES) != expected, "the premise: the original was destroyed"


def test_a_segment_that_is_not_there_cannot_be_pinned() -> None:
    with pytest.raises(BadInput, match="customers has no segment 99"):
        grown().block_table().pinned([99])


def test_columns_of_every_kind_come_back_with_their_nulls() -> None:
    columns = {
        "key": pa.array(range(40)),
        "flag": pa.array([None, True, False, True] * 10),
        "float": pa.array([None, 1.5] * 20),
        "decimal": pa.array([Decimal("1.10"), None] * 20, pa.decimal128(20, 2)),
        "text": pa.array([None, "", "ünï", "x" * 40] * 10),
        "large": pa.array(["a", None] * 20, pa.large_string()),
        "bytes": pa.array([b"\x00", None, b"", b"abc"] * 10),
        "fixed": pa.array([b"12345", None] * 20, pa.binary(5)),
        "day": pa.array([None, 1] * 20, pa.date32()),
    }
    rows = pa.table(columns)
    relation = create_memory_relation("wide", rows.schema, ("key",), rows.slice(0, 20).to_batches(), theta=3)
    relation = relation.append(rows.slice(20), "load 1", 0)
    for table in (relation.block_table(), relation.block_table().pinned(range(relation.segments))):
        keys = keys_of([columns["key"]])
        (pairs,) = table.probe(relation.segment_of(keys), keys)
        found = pa.table(table.take(list(columns), pairs), names=list(columns))
        assert found.take(pa.array(np.argsort(pairs.positions))).equals(rows)


# --- filters


@pytest.mark.parametrize("partition", ["hash", "range"])
def test_filters_know_every_key_that_is_there_and_few_others(partition: PartitionKind) -> None:
    relation = grown(partition)
    filters = relation.filters(1 << 20)
    assert filters.segments == relation.segments
    here = keys_of(keys_in(numbered([*range(500), *range(1000, 1150)])))
    assert filters.may_hold(relation.segment_of(here), here).all()
    absent = keys_of(keys_in(numbered(range(10_000, 20_000))))
    assert filters.may_hold(relation.segment_of(absent), absent).mean() < 0.1


def test_filters_keep_to_their_limit_and_let_pass_what_they_do_not_hold() -> None:
    relation = grown()
    whole = relation.filters(1 << 20)
    half = relation.filters(whole.nbytes - 500, order=range(relation.segments)[::-1])
    assert half.nbytes <= whole.nbytes - 500
    assert 0 < half.segments < relation.segments
    absent = keys_of(keys_in(numbered(range(10_000, 20_000))))
    segment = relation.segment_of(absent)
    passed = half.may_hold(segment, absent)
    unfiltered = segment < relation.segments - half.segments
    assert passed[unfiltered].all()
    assert passed[~unfiltered].mean() < 0.1
    none = relation.filters(0)
    assert none.segments == 0
    assert none.may_hold(segment, absent).all()


def test_the_filters_of_the_next_version_copy_only_what_is_new() -> None:
    relation = grown()
    before = relation.filters(1 << 20)
    after = relation.append(numbered(range(2000, 2100)), "load 9", 0).filters(1 << 20, previous=before)
    shared = [name for name, words in after._held.items() if before._held.get(name) is words]
    assert len(shared) == len(before._held)
    assert len(after._held) == len(before._held) + 1
