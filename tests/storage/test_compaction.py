"""Compaction: deltas merged, segments split and joined, while others read, append and compact."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from etl.storage.compaction_planning import needy_stretches
from etl.storage.memory_relation import create_memory_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from etl.storage.relation_version import OpenVersion
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered

PARTITIONS: tuple[PartitionKind, ...] = ("hash", "range")


def created(numbers: Iterable[int], theta: int = 20, partition: PartitionKind = "hash") -> Relation:
    return create_memory_relation("customers", SCHEMA, KEY, [numbered(numbers)], partition=partition, theta=theta)


def assert_tidy(relation: Relation) -> None:
    relation.verify()
    rows = relation.segment_rows
    assert relation.theta <= rows.min() <= rows.max() <= 2 * relation.theta
    assert (relation.describe().delta_files, needy_stretches(relation._version)) == (0, [])


@pytest.mark.parametrize("partition", PARTITIONS)
def test_compaction_merges_deltas_and_splits_segments(partition: PartitionKind) -> None:
    relation = created(range(100), partition=partition)
    for load in range(20):
        relation = relation.append(numbered(range(1000 + 50 * load, 1050 + 50 * load)), f"load {load}", 0)
    before = all_rows(relation)
    compacted = relation.compact()
    assert_tidy(compacted)
    assert compacted.segments > 2 * relation.segments
    assert not compacted.same_segments(relation)
    assert all_rows(compacted) == before == all_rows(relation)
    assert compacted.version == relation.version + 1
    assert compacted.compact().version == compacted.version, "nothing is left to do"


@pytest.mark.parametrize("partition", PARTITIONS)
def test_an_empty_relation_grows_into_segments(partition: PartitionKind) -> None:
    empty = created([], partition=partition)
    assert empty.compact().version == 1
    relation = empty.append(numbered(range(500)), "load 1", 0)
    assert relation.segments == 1
    compacted = relation.compact()
    assert_tidy(compacted)
    assert compacted.segments > 10


def test_small_neighbours_are_joined() -> None:
    """Nothing is ever deleted from a relation, so only another theta makes its segments too small."""
    relation = created(range(1000), theta=10)
    assert relation.segments > 50
    state = relation._version.state
    larger_theta = replace(state, shape=replace(state.shape, theta=200))
    joined = Relation(OpenVersion(relation._version.parts, larger_theta)).compact()
    assert_tidy(joined)
    assert joined.segments < 6
    assert all_rows(joined) == all_rows(relation)


def test_only_the_stretches_in_need_are_rewritten() -> None:
    relation = created(range(2000), partition="range")
    loaded = relation.append(numbered(range(2000, 2015)), "load 1", 0)
    written = loaded.counters.blocks_written
    compacted = loaded.compact()
    assert compacted.counters.blocks_written - written <= 4, "the new keys are all at one end"
    assert_tidy(compacted)
    assert compacted.describe().files == 2, "the old file stays, with one stretch dead"
    assert len(all_rows(compacted)) == 2015


def test_a_file_that_is_mostly_dead_is_left() -> None:
    relation = created(range(2000), partition="range")
    for load in range(12):
        numbers = range(150 * load, 150 * load + 150)
        rows = pa.record_batch([pa.array([f"new {n}" for n in numbers]), pa.array(numbers, pa.int32()),
                                pa.array(numbers, pa.int64())], schema=SCHEMA)  # fmt: skip
        relation = relation.append(rows, f"load {load}", 0).compact()
        assert_tidy(relation)
    assert len(all_rows(relation)) == relation.rows == 3800
    for file in relation._version.state.files:
        run, live = relation._version.slices(file)
        assert 2 * run.rows[live].sum() >= file.run.rows


def test_ranges_that_tell_too_little_apart_are_drawn_from_other_bytes() -> None:
    """An empty relation knows no common prefix; with the keys it finds one."""
    schema = pa.schema([("name", pa.string())])
    names = pa.array([f"customer-number-{number:08d}" for number in range(1000)])
    relation = create_memory_relation("names", schema, ("name",), partition="range", theta=20)
    relation = relation.append(pa.record_batch([names], schema=schema), "load 1", 0)
    compacted = relation.compact()
    assert_tidy(compacted)
    assert compacted.segments > 20
    assert sorted(row[0] for row in all_rows(compacted)) == names.to_pylist()


def test_a_key_with_very_many_rows_stays_in_one_segment_and_is_left_alone() -> None:
    relation = created([7] * 500, theta=20)
    loaded = relation.append(numbered(range(100, 200)), "load 1", 0)
    compacted = loaded.compact()
    compacted.verify()
    assert compacted.segment_rows.max() >= 500
    assert compacted.compact().version == compacted.version


@pytest.mark.parametrize("partition", PARTITIONS)
def test_loads_that_commit_during_a_compaction_are_taken_along(partition: PartitionKind) -> None:
    relation = created(range(300), partition=partition)
    for load in range(7):
        relation = relation.append(numbered(range(1000 + 30 * load, 1030 + 30 * load)), f"early {load}", 0)
    appended = iter(range(12))

    def meanwhile(work: str, done: int, total: int) -> None:
        """Others append while the compaction writes, so often that they fold its deltas into theirs."""
        for number in appended:
            relation.at().append(numbered(range(5000 + 10 * number, 5010 + 10 * number)), f"late {number}", 0)

    compacted = relation.compact(progress=meanwhile)
    compacted.verify()
    assert compacted.version == relation.version + 13
    expected = {**dict.fromkeys(range(300), ""), **{1000 + n: f"early {n // 30}" for n in range(210)},
                **{5000 + n: f"late {n // 10}" for n in range(120)}}  # fmt: skip
    rows = all_rows(compacted)
    assert len(rows) == len(expected)
    assert {row[1]: row[3] for row in rows} == expected
    assert compacted.find("late 11") == relation.version + 12
    assert compacted.brought("late 3").num_rows == 10


def test_of_two_compactions_one_wins_and_the_other_finds_nothing_to_do() -> None:
    relation = created(range(300)).append(numbered(range(1000, 1100)), "load 1", 0)
    others: list[Relation] = []

    def meanwhile(work: str, done: int, total: int) -> None:
        if not others:
            others.append(relation.at().compact())

    mine = relation.compact(progress=meanwhile)
    assert mine.version == others[0].version == 3
    assert_tidy(mine)
    mine.drop_versions(keep=1)
    files = {file.run.name for file in mine._version.state.files}
    assert {run for run in mine._version.parts.runs.runs() if not run.startswith("loads.")} == files


def test_deltas_are_folded_so_that_a_probe_meets_few_blocks() -> None:
    relation = created(range(1000))
    most, written = 0, relation.counters.bytes_written
    for load in range(200):
        relation = relation.append(numbered(range(1000 + 5 * load, 1005 + 5 * load)), f"load {load}", 0)
        most = max(most, len(relation._version.state.deltas))
    assert most == 8
    assert len(all_rows(relation)) == 2000
    alone = created([]).append(numbered(range(5)), "load", 0).counters.bytes_written
    assert relation.counters.bytes_written - written < 200 * alone * np.log2(200), "a row is rewritten a few times"
