"""MESHJOIN: every queue segment meets every relation segment exactly once, and one read serves the whole queue."""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput
from etl.joins import EndOfSide, Operator, Progress, RelationVersion, Rows, WorkBudget
from etl.storage.relation import Relation
from tests.harness.retained import retained_bytes
from tests.joins.hybrid.lookups import (
    Sink,
    answered,
    asking,
    blocks_read,
    built,
    by_segment,
    customers,
    named,
    no_results,
    numbered,
    owed,
    stored,
)

QUEUE_ROWS = 4


def driven_by_rows(relation: Relation, **settings: object) -> Operator:
    """As printed: a full queue segment, and nothing else, drives the scan on."""
    return built(relation, "meshjoin", queue_rows=QUEUE_ROWS, scan_when_idle=False, **settings)


def one_a_segment(relation: Relation) -> list[int]:
    """A number from each segment, in the order of the scan."""
    segments = by_segment(relation, range(relation.rows))
    return [segments[segment][0] for segment in range(relation.segments)]


def full_queue_segment(number: int) -> Rows:
    return asking(*[number] * QUEUE_ROWS)


# The scan and the queue


def test_a_full_queue_segment_costs_one_read() -> None:
    relation = numbered(60, 10)
    operator, results = driven_by_rows(relation), Sink()
    for count in range(1, 3 * relation.segments):
        operator.offer(asking(*range(QUEUE_ROWS - 1)), results.append)
        assert blocks_read(relation) == count - 1, "nothing before the queue segment is full"
        operator.offer(asking(0), results.append)
        assert blocks_read(relation) == operator.counters.blocks_read == count


def test_a_queue_segment_meets_the_segments_one_after_the_other_and_each_once() -> None:
    """A row is answered by the read of its own segment, wherever in its cycle the scan is."""
    relation = numbered(60, 10)
    places = one_a_segment(relation)
    count = relation.segments
    assert count >= 3
    for start in range(count):
        operator, results = driven_by_rows(relation), Sink()
        for _ in range(start):
            operator.offer(full_queue_segment(1000), no_results)
        asked = places[:QUEUE_ROWS]
        operator.offer(asking(*asked), results.append)
        answers = [results.take_numbers()]
        for _ in range(count + 1):
            operator.offer(full_queue_segment(1000), results.append)
            answers.append(results.take_numbers())
        for place, number in enumerate(asked):
            came_at = (place - start) % count
            assert [answer[number] for answer in answers] == [int(step == came_at) for step in range(count + 2)]


def test_one_read_serves_the_whole_queue() -> None:
    relation = numbered(60, 10)
    last = one_a_segment(relation)[-1]
    operator, results = driven_by_rows(relation), Sink()
    for _ in range(relation.segments - 1):
        operator.offer(full_queue_segment(last), no_results)
    before = blocks_read(relation)
    operator.offer(full_queue_segment(last), results.append)
    assert results.take_numbers() == Counter({last: QUEUE_ROWS * relation.segments})
    assert blocks_read(relation) == before + 1


def test_rows_leave_after_a_full_cycle() -> None:
    """A left join owes an answer for a row without a match when it has met all segments, not before."""
    relation = numbered(60, 10)
    operator, results = driven_by_rows(relation, how="left"), Sink()
    for number in range(1000, 1000 + relation.segments - 1):
        operator.offer(full_queue_segment(number), no_results)
    held = operator.counters.memory_bytes
    for number in range(1000, 1020):
        operator.offer(full_queue_segment(number + relation.segments - 1), results.append)
        assert results.take_numbers() == Counter({number: QUEUE_ROWS}), "the oldest, and only it"
        assert operator.counters.memory_bytes == held


def test_equal_keys_of_the_stream_are_all_served() -> None:
    known = [(1, "one"), (1, "uno"), (2, "two"), *named(range(10, 60))]
    relation = customers(known, theta=10)
    events = [asking(1, 1, 2, None), asking(1, 3), asking(2, 1)]
    for how in ("inner", "left"):
        operator = driven_by_rows(relation, how=how)
        assert answered(operator, *events) == owed(events, known, version=1, how=how)


def test_idle_time_drives_the_scan_on_within_its_budget() -> None:
    relation = numbered(60, 10)
    operator, results = built(relation, "meshjoin"), Sink()
    operator.offer(asking(*range(60)), no_results)
    for count in range(1, relation.segments):
        assert operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE
        assert blocks_read(relation) == count
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert blocks_read(relation) == relation.segments, "one cycle answers everything"
    assert results.take_numbers() == Counter(range(60))
    assert operator.counters.memory_bytes == 0


def test_when_it_is_driven_by_rows_idle_time_does_nothing_before_the_end() -> None:
    relation = numbered(60, 10)
    operator, results = driven_by_rows(relation), Sink()
    operator.offer(asking(1), no_results)
    assert operator.work(WorkBudget(), no_results) is Progress.IDLE
    operator.offer(EndOfSide(0), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert results.take_numbers() == Counter([1])


@pytest.mark.parametrize("memory_bytes", [2000, 20_000])
def test_the_queue_keeps_to_the_memory(memory_bytes: int) -> None:
    """Without a number given, the memory is divided by the number of relation segments."""
    relation = numbered(60, 10)
    operator = built(relation, "meshjoin", memory_bytes=memory_bytes, block_bytes=512, scan_when_idle=False)
    results, random, asked = Sink(), np.random.default_rng(5), Counter[int | None]()
    for _ in range(100):
        event = asking(*random.integers(0, 60, 20).tolist())
        asked.update(event.batch.column("nr").to_pylist())
        operator.offer(event, results.append)
        assert operator.counters.memory_bytes <= memory_bytes
        assert retained_bytes(operator) <= memory_bytes + 1024
    assert (
        operator.counters.peak_memory_bytes <= memory_bytes + asking(*range(20)).batch.get_total_buffer_size() + 9 * 20
    )
    assert operator.counters.peak_memory_bytes > memory_bytes / 2, "it is used"
    operator.offer(EndOfSide(0), results.append)
    operator.work(WorkBudget(), results.append)
    assert results.take_numbers() == asked


def test_a_range_partitioned_relation_is_scanned_as_well() -> None:
    known = named(range(60))
    events = [asking(*range(0, 90, 7)), asking(3, 3)]
    assert answered(built(customers(known, 10, "range"), "meshjoin"), *events) == owed(events, known, version=1)


@pytest.mark.parametrize(("setting", "value"), [("queue_rows", -1), ("filter_share", 0.6), ("frequent_after", 0)])
def test_a_setting_that_is_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"meshjoin: setting {setting} is {value}, which is out of range"):
        built(customers(), "meshjoin", **{setting: value})


# Versions


def half_way(older: Relation) -> tuple[Operator, Relation, Sink]:
    """Number 60 was asked for two steps ago; since then version 2, which knows it, was offered and asked again."""
    operator, results = driven_by_rows(older, how="left"), Sink()
    operator.offer(full_queue_segment(60), no_results)
    operator.offer(full_queue_segment(61), no_results)
    newer = older.append(stored([(60, "new"), (61, "new")]), "orders/7", highest=0)
    operator.offer(RelationVersion(newer), no_results)
    operator.offer(full_queue_segment(60), results.append)
    return operator, newer, results


def test_a_newer_version_is_taken_up_at_the_end_of_the_cycle() -> None:
    older = numbered(60, 10)
    operator, _, results = half_way(older)
    for _ in range(older.segments - 3):
        operator.offer(full_queue_segment(62), results.append)
    assert results.take() == [(60, f"row {row}", None, None, None, 1) for row in range(QUEUE_ROWS)]
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    answers = Counter((row[0], row[3], row[5]) for row in results.take())
    expected = {(61, None, 1): QUEUE_ROWS, (60, "new", 2): QUEUE_ROWS}
    if older.segments > 3:
        expected[62, None, 2] = QUEUE_ROWS * (older.segments - 3)
    assert answers == Counter(expected)


def test_rows_that_have_met_nothing_yet_move_to_the_newer_version() -> None:
    older = numbered(60, 10)
    newer = older.append(stored([(60, "new")]), "orders/7", highest=0)
    operator = driven_by_rows(older)
    operator.offer(asking(60), no_results)
    assert answered(operator, RelationVersion(newer)) == Counter([(60, "row 0", 60, "new", "orders/7", 2)])


def test_versions_may_come_faster_than_cycles() -> None:
    relation = numbered(60, 10)
    operator, results = driven_by_rows(relation, how="left"), Sink()
    arrived: dict[int, int] = {}
    for number in range(100, 100 + 4 * relation.segments):
        arrived[number] = relation.version
        operator.offer(full_queue_segment(number), results.append)
        relation = relation.append(stored([(number, "now"), (number + 1, "early")]), f"load {number}", highest=0)
        operator.offer(RelationVersion(relation), results.append)
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    answers: dict[tuple[int, str, int], set[object]] = {}
    for row in results.take():
        answers.setdefault(cast(tuple[int, str, int], (row[0], row[1], row[5])), set()).add(row[3])
    assert len(answers) == QUEUE_ROWS * len(arrived), "each row is answered from one version"
    for (asked, _, seen), names in answers.items():
        assert seen >= arrived[asked]
        due = [*["early"] * (asked != 100), *["now"] * (seen > arrived[asked])]
        assert names == (set(due) if due else {None})


def test_it_is_restored_half_way_through_an_old_version() -> None:
    older = numbered(60, 10)
    operator, newer, _ = half_way(older)
    newest = newer.append(stored([(62, "newest")]), "orders/8", highest=0).compact()
    snapshot = joins.Snapshot.from_bytes(operator.snapshot().to_bytes())
    for relation in (newer, newest):
        restored, results = joins.restore(snapshot, relation=relation), Sink()
        restored.offer(EndOfSide(0), results.append)
        assert restored.work(WorkBudget(), results.append) is Progress.DONE
        assert Counter((row[0], row[3], row[5]) for row in results.take()) == Counter(
            {(60, None, 1): QUEUE_ROWS, (61, None, 1): QUEUE_ROWS, (60, "new", relation.version): QUEUE_ROWS}
        )


def test_what_a_snapshot_holds_has_not_matched_twice() -> None:
    """The half of the answers that came before the snapshot does not come again after it."""
    relation = numbered(60, 10)
    places = one_a_segment(relation)
    operator, early = driven_by_rows(relation, how="left"), Sink()
    operator.offer(asking(places[0], places[-1], 1000, 1001, None), early.append)
    assert early.take_numbers() == Counter([places[0], None])
    restored, late = joins.restore(operator.snapshot(), relation=relation), Sink()
    restored.offer(EndOfSide(0), late.append)
    assert restored.work(WorkBudget(), late.append) is Progress.DONE
    assert late.take_numbers() == Counter([places[-1], 1000, 1001])


def test_columns_named_like_its_own_do_not_disturb_a_snapshot() -> None:
    stream = pa.schema([("nr", pa.int64()), ("_matched", pa.string())])
    relation = numbered(60, 10)
    operator = joins.build("meshjoin", sides=[stream], on=[("nr", "number")], relation=relation, queue_rows=1)
    results = Sink()
    operator.offer(Rows(0, pa.record_batch([[one_a_segment(relation)[-1]], ["mine"]], schema=stream)), no_results)
    restored = joins.restore(operator.snapshot(), relation=relation)
    restored.offer(EndOfSide(0), results.append)
    assert restored.work(WorkBudget(), results.append) is Progress.DONE
    assert [row[1] for row in results.take()] == ["mine"]
