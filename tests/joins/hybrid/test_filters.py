"""Filters in front of a join: a key that the relation does not hold is answered without the disk."""

from __future__ import annotations

from collections import Counter

import pytest

from etl.joins import Progress, RelationVersion, WorkBudget
from etl.storage.partitioning import PartitionKind
from tests.joins.hybrid.lookups import KINDS, Sink, asking, blocks_read, built, named, no_results, numbered, stored

MISSES = range(10_000, 12_000)
JOINS = [*KINDS, "meshjoin"]


def settings_of(kind: str) -> tuple[PartitionKind, str, dict[str, object]]:
    """The relation's partitioning, the join, and what turns its filters on."""
    if kind == "meshjoin":
        return "hash", "meshjoin", {"filter_share": 0.5}
    return ("hash" if kind == "hash" else "range"), "", {}


@pytest.mark.parametrize("kind", JOINS)
def test_a_miss_is_answered_at_once_without_the_disk(kind: str) -> None:
    partition, join, settings = settings_of(kind)
    relation = numbered(1000, 50, partition)
    operator, results = built(relation, join, how="left", memory_bytes=1 << 20, **settings), Sink()
    before = relation.counters
    operator.offer(asking(*MISSES), results.append)
    answers = results.take()
    assert relation.counters == before
    assert len(answers) > 0.95 * len(MISSES), "a filter of ten bits a key lets about one in a hundred through"
    assert all(row[2:] == (None, None, None, 1) for row in answers)
    assert operator.counters.extra["filtered"] == len(answers)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert Counter(row[0] for row in [*answers, *results.take()]) == Counter(MISSES), "the others by a disk probe"


def test_an_inner_join_drops_a_miss_at_once() -> None:
    relation = numbered(1000, 50)
    operator = built(relation)
    operator.offer(asking(*MISSES), no_results)
    assert operator.counters.extra["filtered"] > 0.95 * len(MISSES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_a_newer_version_brings_passes_the_filters(kind: PartitionKind) -> None:
    older = numbered(1000, 50, kind)
    operator, results = built(older, how="left"), Sink()
    newer = older.append(stored(named(MISSES[:500])), "orders/7", highest=0)
    operator.offer(RelationVersion(newer), no_results)
    operator.offer(asking(*MISSES), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    answers = results.take()
    assert Counter(row[0] for row in answers) == Counter(MISSES)
    assert {row[0] for row in answers if row[2] is not None} == set(MISSES[:500])


def test_without_room_for_filters_a_miss_waits_like_any_row() -> None:
    relation = numbered(1000, 50)
    operator, results = built(relation, how="left", filter_share=0.0), Sink()
    operator.offer(asking(*MISSES), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert results.take_numbers() == Counter(MISSES)
    assert blocks_read(relation) == relation.segments


def test_filters_of_some_segments_only_help_those() -> None:
    relation = numbered(1000, 50)
    half = relation.filters(1 << 20).nbytes / 2
    operator, results = built(relation, how="left", memory_bytes=1 << 16, filter_share=half / (1 << 16)), Sink()
    operator.offer(asking(*MISSES), results.append)
    operator.work(WorkBudget(), results.append)
    assert results.take_numbers() == Counter(MISSES)
    filtered = operator.counters.extra["filtered"]
    assert 0.2 * len(MISSES) < filtered < 0.8 * len(MISSES)
