"""Several queries over one relation: each gets its own answers, and one read serves them all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import BadInput
from etl.joins import EndOfSide, Progress, RelationVersion, Rows, SharedScan, WorkBudget
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.joins.hybrid.lookups import (
    KINDS,
    ON,
    STREAM,
    Sink,
    asking,
    blocks_read,
    by_segment,
    customers,
    named,
    no_results,
    numbered,
    stored,
)
from tests.oracle import Row, inner_join, rows_of

RETURNS = pa.schema([("at", pa.timestamp("us")), ("customer", pa.int64())])
VISITS = pa.schema([("customer", pa.int64())])


def returned(*numbers: int | None) -> Rows:
    return Rows(0, pa.record_batch([list(range(len(numbers))), pa.array(numbers, pa.int64())], schema=RETURNS))


def visited(*numbers: int | None) -> Rows:
    return Rows(0, pa.record_batch([pa.array(numbers, pa.int64())], schema=VISITS))


def two_queries(relation: Relation, memory_bytes: int = 1 << 22) -> tuple[SharedScan, Sink, Sink]:
    shared, orders, returns = SharedScan(relation, memory_bytes), Sink(), Sink()
    assert shared.query(STREAM, ON, orders.append, filter_share=0.0, cache_share=0.0) == 0
    assert (
        shared.query(RETURNS, [("customer", "number")], returns.append, how="left", filter_share=0.0, cache_share=0.0)
        == 1
    )
    return shared, orders, returns


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory_bytes", [20_000, 1 << 22])
def test_each_query_gets_the_answers_of_its_own_join(kind: PartitionKind, memory_bytes: int) -> None:
    known = [*named(range(0, 400, 2)), *named(range(0, 40, 4))]
    relation = customers(known, 20, kind)
    shared = SharedScan(relation, memory_bytes, queries=3)
    sinks = Sink(), Sink(), Sink()
    shared.query(STREAM, ON, sinks[0].append)
    shared.query(RETURNS, [("customer", "number")], sinks[1].append, how="left", frequent_after=2)
    shared.query(VISITS, [("customer", "number")], sinks[2].append, deadline=3)
    random = np.random.default_rng(11)
    makers = (asking, returned, visited)
    offered: tuple[list[Row], ...] = ([], [], [])
    for step in range(60):
        query = int(random.integers(0, 3))
        event = makers[query](*random.integers(0, 400, random.integers(1, 40)).tolist(), None)
        offered[query].extend(rows_of([event.batch]))
        shared.offer(query, event)
        if step % 9 == 0:
            shared.work(WorkBudget(blocks=3))
        assert shared.memory_bytes <= memory_bytes + 4096
    for query in range(3):
        shared.offer(query, EndOfSide(0))
    assert shared.work(WorkBudget()) is Progress.DONE
    related: list[Row] = [(*customer, "", 1) for customer in known]
    for query, (key, how) in enumerate([(0, "inner"), (1, "left"), (0, "inner")]):
        expected = inner_join(offered[query], related, on=[(key, 0)])
        if how == "left":
            numbers = {number for number, _ in known}
            expected.update((*row, None, None, None, 1) for row in offered[query] if row[key] not in numbers)
        assert Counter(sinks[query].take()) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_one_read_serves_the_waiting_rows_of_all_queries(kind: PartitionKind) -> None:
    relation = numbered(100, 10, kind)
    shared, orders, returns = two_queries(relation)
    shared.offer(0, asking(*range(100)))
    shared.offer(1, returned(*range(100)))
    assert blocks_read(relation) == 0
    assert shared.work(WorkBudget()) is Progress.IDLE
    assert blocks_read(relation) == relation.segments
    assert orders.take_numbers() == Counter(range(100))
    assert Counter(row[1] for row in returns.take()) == Counter(range(100))


def test_the_segment_that_most_rows_of_all_queries_wait_for_comes_first() -> None:
    relation = numbered(100, 10)
    first, second, third, *_ = by_segment(relation, range(100)).values()
    shared, orders, returns = two_queries(relation)
    shared.offer(0, asking(*[first[0]] * 5, *[second[0]] * 4))
    shared.offer(1, returned(*[third[0]] * 6, *[second[0]] * 4))
    assert shared.work(WorkBudget(blocks=1)) is Progress.MORE
    assert orders.take_numbers() == Counter({second[0]: 4})
    assert Counter(row[1] for row in returns.take()) == Counter({second[0]: 4})


def test_a_segment_that_one_query_brought_in_serves_the_other_from_memory() -> None:
    relation = numbered(100, 10)
    shared, orders, returns = two_queries(relation)
    shared.offer(0, asking(*range(100)))
    shared.work(WorkBudget())
    before = blocks_read(relation)
    shared.offer(1, returned(*range(100)))
    assert Counter(row[1] for row in returns.take()) == Counter(range(100))
    assert blocks_read(relation) == before
    assert len(orders.take()) == 100


def test_what_is_shared_is_counted_once() -> None:
    relation = numbered(1000, 50)
    shared, *_ = two_queries(relation)
    assert shared.memory_bytes == 0
    for query, event in enumerate((asking(*range(1000)), returned(*range(1000)))):
        shared.offer(query, event)
        shared.work(WorkBudget())
        held = int(relation.segment_bytes.sum()) + relation.block_table().index_bytes
        assert 0.9 * held <= shared.memory_bytes <= 1.1 * held
    shared.close()
    assert shared.memory_bytes == 0


def test_all_queries_move_to_a_newer_version_together() -> None:
    older = customers([(1, "one"), (2, "two")])
    shared, orders, returns = two_queries(older)
    shared.offer(0, asking(1))
    shared.offer(1, returned(1, 3))
    newer = older.append(stored([(1, "uno"), (3, "three")]), "orders/7", highest=0)
    shared.adopt(newer)
    assert shared.work(WorkBudget()) is Progress.IDLE
    assert Counter(row[2:] for row in orders.take()) == Counter([(1, "one", "", 2), (1, "uno", "orders/7", 2)])
    assert Counter(row[2:] for row in returns.take()) == Counter(
        [(1, "one", "", 2), (1, "uno", "orders/7", 2), (3, "three", "orders/7", 2)]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_segments_may_be_split_while_rows_of_all_queries_wait(kind: PartitionKind) -> None:
    older = numbered(40, 10, kind)
    shared, orders, returns = two_queries(older)
    shared.offer(0, asking(*range(60)))
    shared.offer(1, returned(*range(60)))
    newer = older.append(stored(named(range(40, 400))), "orders/7", highest=0).compact()
    shared.adopt(newer)
    shared.offer(0, asking(*range(60, 100)))
    shared.work(WorkBudget())
    assert orders.take_numbers() == Counter(range(100))
    assert Counter(row[2] for row in returns.take()) == Counter(range(60))


def test_a_query_that_is_done_does_not_disturb_the_others() -> None:
    """Once its empty wait buffer kept the old number of segments, and the next work failed."""
    older = numbered(40, 10)
    shared, orders, returns = two_queries(older)
    shared.offer(0, asking(1))
    shared.offer(0, EndOfSide(0))
    assert shared.work(WorkBudget()) is Progress.IDLE
    assert orders.take_numbers() == Counter([1])
    newer = older.append(stored(named(range(40, 400))), "orders/7", highest=0).compact()
    shared.adopt(newer)
    shared.offer(1, returned(390, 500))
    shared.offer(1, EndOfSide(0))
    shared.work(WorkBudget())
    assert shared.work(WorkBudget()) is Progress.DONE
    assert Counter(row[2] for row in returns.take()) == Counter([390, None])


def test_a_query_that_comes_later_sees_the_version_in_use() -> None:
    older = numbered(40, 10)
    shared, orders = SharedScan(older, 1 << 20), Sink()
    shared.adopt(older.append(stored([(99, "new")]), "orders/7", highest=0))
    shared.query(STREAM, ON, orders.append)
    shared.offer(0, asking(99))
    shared.work(WorkBudget())
    assert [row[3:] for row in orders.take()] == [("new", "orders/7", 2)]


# Refusals


def test_another_relation_or_an_older_version_changes_nothing() -> None:
    older = numbered(40, 10)
    newer = older.append(stored([(99, "new")]), "orders/7", highest=0)
    shared, orders, _ = two_queries(newer)
    shared.offer(0, asking(99))
    with pytest.raises(BadInput, match="version 1 of relation customers is older than version 2"):
        shared.adopt(older)
    with pytest.raises(BadInput, match="the event brings another one named customers"):
        shared.adopt(numbered(40, 10, "range"))
    shared.work(WorkBudget())
    assert [row[3:] for row in orders.take()] == [("new", "orders/7", 2)]


def test_a_version_is_for_all_queries_and_their_number_is_fixed() -> None:
    relation = numbered(40, 10)
    shared, *_ = two_queries(relation)
    with pytest.raises(BadInput, match=r"a relation version is for all queries: give it to adopt\(\)"):
        shared.offer(0, RelationVersion(relation))
    with pytest.raises(BadInput, match="the shared scan of relation customers was made for 2 queries"):
        shared.query(STREAM, ON, no_results)
    with pytest.raises(BadInput, match="a shared scan of relation customers for 0 queries: it has at least one"):
        SharedScan(relation, 1 << 20, queries=0)
