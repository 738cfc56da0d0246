"""What the partitioned joins promise beyond the contract: results, versions, disk probes, and bounded waiting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput
from etl.joins import EndOfSide, Progress, RelationVersion, Rows, Tick, WorkBudget
from etl.storage.memory_relation import create_memory_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.harness.retained import retained_bytes
from tests.joins.hybrid.lookups import (
    KINDS,
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
from tests.oracle import rows_of

WAITING_ONLY: dict[str, object] = {"wait_share": 1.0, "filter_share": 0.0, "cache_share": 0.0}
"""All memory for the wait buffer: no segment stays, nothing is answered before a disk probe."""

each_kind = pytest.mark.parametrize("kind", KINDS)


# Results


@each_kind
def test_an_inner_join_gives_every_row_of_the_relation_with_the_key(kind: PartitionKind) -> None:
    relation = customers([(1, "one"), (2, "two"), (1, "uno")], theta=1, partition=kind)
    assert answered(built(relation), asking(1, 3, None, 2)) == Counter(
        [(1, "row 0", 1, "one", "", 1), (1, "row 0", 1, "uno", "", 1), (2, "row 3", 2, "two", "", 1)]
    )


@each_kind
def test_a_left_join_gives_rows_without_a_match_once_with_nulls(kind: PartitionKind) -> None:
    operator = built(customers([(1, "one"), (1, "uno")], partition=kind), how="left")
    assert answered(operator, asking(1, 3, None)) == Counter(
        [
            (1, "row 0", 1, "one", "", 1),
            (1, "row 0", 1, "uno", "", 1),
            (3, "row 1", None, None, None, 1),
            (None, "row 2", None, None, None, 1),
        ]
    )
    assert operator.plan.result_schema.field("number").nullable, "though the relation's own column is not"


def test_each_row_says_which_load_brought_it_and_which_version_was_seen() -> None:
    relation = customers([(1, "one")]).append(stored([(2, "two"), (1, "uno")]), "orders/7", highest=0)
    operator = built(relation)
    assert operator.plan.result_schema.names == ["nr", "text", "number", "name", "created_by", "relation_version"]
    assert answered(operator, asking(1, 2)) == Counter(
        [
            (1, "row 0", 1, "one", "", 2),
            (1, "row 0", 1, "uno", "orders/7", 2),
            (2, "row 1", 2, "two", "orders/7", 2),
        ]
    )


def test_columns_of_the_stream_that_are_named_like_the_last_two_keep_their_names() -> None:
    stream = pa.schema([("nr", pa.int64()), ("created_by", pa.string()), ("name", pa.string())])
    operator = joins.build("hash-partitioned", sides=[stream], on=[("nr", "number")], relation=customers())
    assert operator.plan.result_schema.names == [
        *("nr", "created_by", "name", "number", "name_1"),
        *("created_by_of_relation", "relation_version"),
    ]


@each_kind
def test_a_key_of_several_columns_is_matched_whatever_the_order_of_on(kind: PartitionKind) -> None:
    schema = pa.schema([("country", pa.string()), ("number", pa.int32())])
    rows = pa.record_batch([pa.array(["se", "no", "se"]), pa.array([1, 1, 2], pa.int32())], schema=schema)
    relation = create_memory_relation("customers", schema, ("country", "number"), [rows], partition=kind, theta=1)
    stream = pa.schema([("nr", pa.int32()), ("land", pa.string())])
    asked = pa.record_batch([pa.array([1, 2, 2, 1], pa.int32()), pa.array(["se", "no", "se", None])], schema=stream)
    on = [("nr", "number"), ("land", "country")]
    operator = joins.build(f"{kind}-partitioned", sides=[stream], on=on, relation=relation)
    assert answered(operator, Rows(0, asked)) == Counter([(1, "se", "se", 1, "", 1), (2, "se", "se", 2, "", 1)])


def test_dictionaries_that_differ_between_batches_may_come_along() -> None:
    stream = pa.schema([("nr", pa.int64()), ("colour", pa.dictionary(pa.int32(), pa.string()))])
    batches = [
        pa.record_batch([pa.array([1, 1]), pa.array(colours).dictionary_encode()], schema=stream)
        for colours in (["red", "green"], ["blue", "red"])
    ]
    operator = joins.build("hash-partitioned", sides=[stream], on=[("nr", "number")], relation=customers([(1, "one")]))
    found = answered(operator, *(Rows(0, batch) for batch in batches))
    assert Counter(row[1] for row in found.elements()) == Counter(["red", "green", "blue", "red"])


def test_a_hot_key_comes_out_in_bounded_batches() -> None:
    operator, results = built(customers([(1, f"name {number}") for number in range(30)]), result_rows=7), Sink()
    operator.offer(asking(*[1] * 20), results.append)
    operator.work(WorkBudget(), results.append)
    assert max(batch.num_rows for batch in results) == 7
    assert len(results.take()) == 600


@pytest.mark.parametrize("how", ["inner", "left"])
@each_kind
def test_an_empty_relation_matches_nothing_and_needs_no_disk(kind: PartitionKind, how: str) -> None:
    operator, results = built(customers(partition=kind), how=how), Sink()
    operator.offer(asking(1, None), results.append)
    unmatched = [(1, "row 0", None, None, None, 1), (None, "row 1", None, None, None, 1)]
    assert Counter(results.take()) == Counter(unmatched if how == "left" else [])


def test_keys_without_a_value_never_wait() -> None:
    operator = built(customers([(1, "one")]), **WAITING_ONLY)
    operator.offer(asking(*[None] * 1000), no_results)
    assert operator.counters.memory_bytes == 0
    assert operator.work(WorkBudget(), no_results) is Progress.IDLE


@each_kind
def test_a_join_of_the_other_kind_is_refused(kind: PartitionKind) -> None:
    other = "range" if kind == "hash" else "hash"
    with pytest.raises(
        BadInput, match=f"{other}-partitioned needs a relation that is partitioned by {other}; relation"
    ):
        built(customers(partition=kind), f"{other}-partitioned")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("invocation_rows", 0),
        ("freed_share", 0.0),
        ("rho", -0.1),
        ("decay", 0.0),
        ("deadline", -2),
        ("low_mark", 0.9),
        ("wait_share", 0.0),
        ("wait_share", 0.9),
        ("frequent_after", 0),
    ],
)
def test_a_setting_that_is_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"hash-partitioned: setting {setting} is {value}, which is out of range"):
        built(customers(), **{setting: value})


# Versions


def test_rows_that_wait_are_answered_from_a_newer_version_whole() -> None:
    older = customers([(1, "one"), (2, "dos")])
    newer = older.append(stored([(1, "uno"), (2, "two")]), "orders/7", highest=0)
    assert answered(built(older), asking(1, 2), RelationVersion(newer)) == Counter(
        [
            (1, "row 0", 1, "one", "", 2),
            (1, "row 0", 1, "uno", "orders/7", 2),
            (2, "row 1", 2, "dos", "", 2),
            (2, "row 1", 2, "two", "orders/7", 2),
        ]
    )


def test_rows_that_were_answered_are_not_answered_again() -> None:
    older = customers([(1, "one")])
    newer = older.append(stored([(2, "two")]), "orders/7", highest=0)
    operator, results = built(older, how="left"), Sink()
    operator.offer(asking(1, 2), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    operator.offer(RelationVersion(newer), results.append)
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(results.take()) == Counter([(1, "row 0", 1, "one", "", 1), (2, "row 1", None, None, None, 1)])


def test_a_version_may_come_while_it_cleans_up_and_through_a_snapshot() -> None:
    older = customers([(1, "one"), (2, "dos")])
    newer = older.append(stored([(2, "two")]), "orders/7", highest=0)
    operator = built(older)
    for event in (asking(2, 2), EndOfSide(0), RelationVersion(newer)):
        operator.offer(event, no_results)
    restored = joins.restore(joins.Snapshot.from_bytes(operator.snapshot().to_bytes()), relation=newer)
    results = Sink()
    assert restored.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(row[3:] for row in results.take()) == Counter([("dos", "", 2), ("two", "orders/7", 2)] * 2)


def test_without_an_event_the_version_stays_whatever_is_committed() -> None:
    older = customers([(1, "one")])
    operator = built(older)
    older.append(stored([(1, "uno")]), "orders/7", highest=0)
    assert answered(operator, asking(1)) == Counter([(1, "row 0", 1, "one", "", 1)])


@each_kind
def test_a_segment_in_memory_grows_with_the_relation(kind: PartitionKind) -> None:
    older = numbered(100, 10, kind)
    operator, results = built(older), Sink()
    operator.offer(asking(*range(100)), results.append)
    operator.work(WorkBudget(), results.append)
    results.clear()
    newer = older.append(stored([(7, "another")]), "orders/7", highest=0)
    operator.offer(RelationVersion(newer), no_results)
    before = blocks_read(newer)
    operator.offer(asking(7), results.append)
    assert Counter(row[3:] for row in results.take()) == Counter([("name 7", "", 2), ("another", "orders/7", 2)])
    assert blocks_read(newer) == before


@each_kind
def test_segments_may_be_split_while_rows_wait(kind: PartitionKind) -> None:
    older = numbered(40, 10, kind)
    operator = built(older, deadline=3, how="left", **WAITING_ONLY)
    operator.offer(asking(*range(40)), no_results)
    operator.offer(Tick(2), no_results)
    operator.offer(asking(*range(35, 60)), no_results)
    newer = older.append(stored(named(range(40, 400))), "orders/7", highest=0).compact()
    assert newer.segments > 2 * older.segments
    operator.offer(RelationVersion(newer), no_results)
    results = Sink()
    operator.offer(Tick(3), results.append)
    early = Counter(row[0] for row in rows_of(results))
    assert set(range(40)) <= set(early), "rows keep the instant of their arrival"
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    answers = results.take()
    assert Counter(row[0] for row in answers) == Counter([*range(40), *range(35, 60)])
    assert all(row[2] == row[0] and row[5] == newer.version for row in answers)


# Disk probes


@each_kind
def test_nothing_is_read_while_rows_fit_into_memory(kind: PartitionKind) -> None:
    relation = numbered(100, 10, kind)
    operator = built(relation)
    operator.offer(asking(*range(100)), no_results)
    assert blocks_read(relation) == 0
    assert operator.counters.memory_bytes > 0


@each_kind
def test_one_disk_probe_serves_all_rows_of_a_segment(kind: PartitionKind) -> None:
    relation = numbered(100, 15, kind)
    operator, results = built(relation), Sink()
    for number in range(100):
        operator.offer(asking(number), no_results)
    calls = 0
    while operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE:
        calls += 1
        assert operator.counters.blocks_read == blocks_read(relation) == calls
    assert blocks_read(relation) == relation.segments
    assert operator.counters.rows_compared == 100
    assert operator.counters.extra["disk_probes"] == relation.segments


@each_kind
def test_the_segment_with_the_most_waiting_rows_comes_first(kind: PartitionKind) -> None:
    relation = numbered(40, 10, kind)
    one_of_segment = {segment: numbers[0] for segment, numbers in by_segment(relation, range(40)).items()}
    assert len(one_of_segment) > 2
    for fullest in one_of_segment:
        operator, results = built(relation), Sink()
        asked = [number for segment, number in one_of_segment.items() for _ in range(50 if segment == fullest else 1)]
        operator.offer(asking(*asked), no_results)
        assert operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE
        assert results.take_numbers() == Counter({one_of_segment[fullest]: 50})


@each_kind
def test_a_segment_that_was_read_answers_from_memory_as_long_as_it_is_in_demand(kind: PartitionKind) -> None:
    relation = numbered(100, 10, kind)
    operator, results = built(relation, filter_share=0.0, cache_share=0.0), Sink()
    operator.offer(asking(*range(100)), no_results)
    operator.work(WorkBudget(), results.append)
    results.clear()
    before = blocks_read(relation)
    operator.offer(asking(*range(100)), results.append)
    assert results.take_numbers() == Counter(range(100))
    assert blocks_read(relation) == before
    assert operator.counters.extra["memory_hits"] == 100


def test_after_the_end_no_segment_is_copied_into_memory() -> None:
    """Nobody will ask for it any more; a lookup of one batch once paid for copies of all it had read."""
    relation = numbered(100, 10)
    operator, results = built(relation, filter_share=0.0, cache_share=0.0), Sink()
    operator.offer(asking(*range(100)), no_results)
    waiting = operator.counters.memory_bytes
    operator.offer(EndOfSide(0), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert results.take_numbers() == Counter(range(100))
    assert operator.counters.memory_bytes == 0
    assert operator.counters.peak_memory_bytes == waiting


# The invocation threshold


@each_kind
def test_idle_time_is_spent_on_segments_with_enough_waiting_rows(kind: PartitionKind) -> None:
    relation = numbered(40, 10, kind)
    first, second, *_ = by_segment(relation, range(40)).values()
    operator, results = built(relation, invocation_rows=5), Sink()
    operator.offer(asking(*[first[0]] * 4, *[second[0]] * 5), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert results.take_numbers() == Counter({second[0]: 5})
    assert operator.work(WorkBudget(), no_results) is Progress.IDLE
    operator.offer(asking(first[0]), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    assert results.take_numbers() == Counter({first[0]: 5})


def test_at_the_end_of_the_stream_no_threshold_holds() -> None:
    relation = numbered(40, 10)
    operator, results = built(relation, invocation_rows=1000), Sink()
    operator.offer(asking(1, 2, 3), no_results)
    assert operator.work(WorkBudget(), no_results) is Progress.IDLE
    operator.offer(EndOfSide(0), no_results)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert results.take_numbers() == Counter([1, 2, 3])


# Deadlines


@each_kind
def test_a_row_waits_no_longer_than_its_deadline(kind: PartitionKind) -> None:
    relation = numbered(40, 10, kind)
    first, second, *_ = by_segment(relation, range(40)).values()
    operator, results = built(relation, invocation_rows=1000, deadline=3), Sink()
    operator.offer(Tick(10), no_results)
    operator.offer(asking(first[0]), no_results)
    operator.offer(Tick(11), no_results)
    operator.offer(asking(second[0]), no_results)
    operator.offer(Tick(12), no_results)
    assert operator.work(WorkBudget(), no_results) is Progress.IDLE
    operator.offer(Tick(13), results.append)
    assert results.take_numbers() == Counter([first[0]])
    operator.offer(Tick(14), results.append)
    assert results.take_numbers() == Counter([second[0]])
    assert operator.counters.blocks_read == blocks_read(relation) == 2
    operator.offer(Tick(100), no_results)


def test_a_row_that_is_due_takes_the_younger_ones_of_its_segment_along() -> None:
    relation = numbered(40, 100)
    operator, results = built(relation, invocation_rows=1000, deadline=3), Sink()
    operator.offer(asking(1), no_results)
    operator.offer(Tick(2), no_results)
    operator.offer(asking(2), no_results)
    operator.offer(Tick(3), results.append)
    assert results.take_numbers() == Counter([1, 2])


def test_deadlines_survive_a_snapshot() -> None:
    relation = numbered(40, 10)
    operator = built(relation, invocation_rows=1000, deadline=3)
    operator.offer(Tick(5), no_results)
    operator.offer(asking(1), no_results)
    restored, results = joins.restore(operator.snapshot(), relation=relation), Sink()
    restored.offer(asking(2), no_results)
    restored.offer(Tick(7), no_results)
    restored.offer(Tick(8), results.append)
    assert results.take_numbers() == Counter([1, 2]), "it goes on at the instant that it had"


def test_a_tick_that_goes_back_makes_nothing_due_later() -> None:
    operator, results = built(numbered(40, 10), invocation_rows=1000, deadline=3), Sink()
    operator.offer(Tick(5), no_results)
    operator.offer(Tick(2), no_results)
    operator.offer(asking(1), no_results)
    operator.offer(Tick(7), no_results)
    operator.offer(Tick(8), results.append)
    assert results.take_numbers() == Counter([1])


def test_without_a_deadline_ticks_change_nothing() -> None:
    operator = built(numbered(40, 10), invocation_rows=1000)
    operator.offer(asking(1), no_results)
    operator.offer(Tick(10**9), no_results)


# A full wait buffer


@pytest.mark.parametrize("freed", [0.2, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("cut", [40, 1000], ids=["many batches", "one batch"])
def test_a_full_wait_buffer_frees_its_share_by_the_largest_segments(freed: float, cut: int) -> None:
    """Not more: once the room of taken rows was not given back, and a full buffer was emptied whole."""
    relation = numbered(400, 20)
    segments = by_segment(relation, range(400))
    asked = [numbers[0] for rank, numbers in enumerate(segments.values()) for _ in range(5 + 4 * rank)]
    assert len(asked) < 1000
    batches = [asked[start : start + cut] for start in range(0, len(asked), cut)]
    holds = _bytes_waiting(relation, batches)
    operator = built(relation, memory_bytes=holds, block_bytes=1024, freed_share=freed, **WAITING_ONLY)
    for batch in batches:
        operator.offer(asking(*batch), no_results)
    results = Sink()
    last = next(iter(segments.values()))[0]
    operator.offer(asking(last), results.append)
    rows = Counter[int | None]([*asked, last])
    answers = results.take_numbers()
    largest_first = sorted(rows.values(), reverse=True)
    enough = int(np.searchsorted(np.cumsum(largest_first), freed * rows.total())) + 1
    assert sorted(answers.values(), reverse=True) == largest_first[:enough]
    assert all(answers[number] == rows[number] for number in answers), "a segment is answered whole"
    assert operator.counters.blocks_read == blocks_read(relation) == enough


def _bytes_waiting(relation: Relation, batches: list[list[int]]) -> int:
    """What the wait buffer holds after these batches."""
    operator = built(relation, **WAITING_ONLY)
    for batch in batches:
        operator.offer(asking(*batch), no_results)
    return operator.counters.memory_bytes


def test_rows_that_overflow_the_buffer_at_once_are_answered_at_once() -> None:
    operator, results = built(numbered(400, 20), memory_bytes=1024, block_bytes=64, **WAITING_ONLY), Sink()
    operator.offer(asking(*range(400)), results.append)
    assert operator.counters.memory_bytes <= 1024
    operator.offer(EndOfSide(0), results.append)
    operator.work(WorkBudget(), results.append)
    assert results.take_numbers() == Counter(range(400))


# Block and row granularity


def test_a_busy_join_gathers_blocks_and_a_quiet_one_answers_rows() -> None:
    """One segment is in memory, the other fills the wait buffer past its high mark."""
    relation = numbered(200, 50)
    here, away, *_ = by_segment(relation, range(200)).values()
    for_segments = relation.block_table().index_bytes + int(relation.segment_bytes.max()) + 8
    operator = built(
        relation,
        memory_bytes=2 * for_segments,
        block_bytes=512,
        **(WAITING_ONLY | {"wait_share": 0.5, "rho": 1000.0, "high_mark": 0.5, "low_mark": 0.3}),
    )
    results = Sink()
    operator.offer(asking(*here[:10]), no_results)
    operator.work(WorkBudget(), results.append)
    results.clear()
    before = blocks_read(relation)
    operator.offer(asking(*here[:3]), results.append)
    assert results.take_numbers() == Counter(here[:3]), "rows of a segment in memory are answered at once"
    operator.offer(asking(*away[:40] * 3), no_results)
    operator.offer(asking(*here[:3]), no_results)
    operator.offer(asking(*here[:40]), results.append)
    assert results.take_numbers() == Counter([*here[:3], *here[:40]]), "a block is together"
    assert blocks_read(relation) == before
    operator.offer(asking(*here[5:7]), no_results)
    assert operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE
    assert results.take_numbers() == Counter(away[:40] * 3)
    operator.offer(asking(here[8]), results.append)
    assert results.take_numbers() == Counter([*here[5:7], here[8]]), "below the low mark all of them are answered"
    before = operator.counters.memory_bytes
    while operator.counters.memory_bytes - before < 0.35 * for_segments:
        operator.offer(asking(*away[:5]), no_results)
    operator.offer(asking(here[9]), results.append)
    assert results.take_numbers() == Counter([here[9]]), "between the marks it stays as it is"


@each_kind
@pytest.mark.parametrize("how", ["inner", "left"])
def test_switching_to_and_fro_loses_nothing(kind: PartitionKind, how: str) -> None:
    known = named(range(0, 300, 2))
    relation = customers(known, 20, kind)
    operator = built(
        relation,
        how=how,
        memory_bytes=16_000,
        block_bytes=256,
        high_mark=0.3,
        low_mark=0.1,
        wait_share=0.2,
        filter_share=0.0,
        cache_share=0.0,
    )
    random = np.random.default_rng(7)
    events, results = list[Rows](), Sink()
    for number in range(60):
        events.append(asking(*random.integers(0, 300, random.integers(1, 60)).tolist()))
        operator.offer(events[-1], results.append)
        if number % 7 == 0:
            operator.work(WorkBudget(blocks=int(random.integers(1, 5))), results.append)
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(results.take()) == owed(events, known, version=1, how=how)


# Memory is one number


@each_kind
@pytest.mark.parametrize("memory_bytes", [1 << 13, 1 << 15, 1 << 16, 1 << 18])
def test_all_parts_together_stay_within_the_memory(kind: PartitionKind, memory_bytes: int) -> None:
    """Join memory, wait buffer, filters and cache, with a block as large as the memory."""
    relation = numbered(5000, 50, kind)
    operator = built(relation, memory_bytes=memory_bytes, block_bytes=min(memory_bytes, 1 << 16), frequent_after=2)
    random = np.random.default_rng(3)
    results, largest = Sink(), 0
    for step in range(60):
        numbers = (5000 * random.random(200) ** 3).astype(int).tolist()
        event = asking(*numbers)
        # A batch that waits is its rows and at most nine bytes a row that say where they are.
        largest = max(largest, event.batch.get_total_buffer_size() + 9 * 200 + 4)
        operator.offer(event, results.append)
        if step % 5 == 0:
            operator.work(WorkBudget(blocks=20), results.append)
        if step % 20 == 19:
            relation = relation.append(stored(named(range(5000 + step, 5100 + step))), f"load {step}", highest=0)
            operator.offer(RelationVersion(relation), results.append)
        assert operator.counters.memory_bytes <= memory_bytes + largest
        assert retained_bytes(operator) <= memory_bytes + largest + 4096
    assert operator.counters.peak_memory_bytes <= memory_bytes + largest
    extra = operator.counters.extra
    if memory_bytes == 1 << 18:
        assert min(extra[part] for part in ("memory_hits", "cache_hits", "disk_probes")) > 0, "all parts were used"
    operator.offer(EndOfSide(0), results.append)
    operator.work(WorkBudget(), results.append)
    assert len(results.take()) == 60 * 200
