"""What the hash-partitioned join promises beyond the contract: versions, disk probes, and bounded waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from etl import joins
from etl.joins import EndOfSide, Operator, Progress, RelationVersion, Rows, WorkBudget
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from tests.oracle import Row, rows_of

STREAM = pa.schema([("nr", pa.int64()), ("text", pa.string())])
CUSTOMERS = pa.schema([pa.field("number", pa.int64(), nullable=False), ("name", pa.string())])


def customers(rows: Sequence[tuple[int, str]] = (), segments: int = 4) -> Relation:
    return create_memory_relation("customers", CUSTOMERS, ("number",), segments=segments, batches=[stored(rows)])


def stored(rows: Sequence[tuple[int, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"number": number, "name": name} for number, name in rows], CUSTOMERS)


def asking(*numbers: int | None) -> Rows:
    """A row a number, its text saying where it stands."""
    texts = [f"row {position}" for position in range(len(numbers))]
    return Rows(0, pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts)], schema=STREAM))


def built(relation: Relation, **arguments: object) -> Operator:
    return joins.build(
        "hash-partitioned",
        sides=[STREAM],
        on=[("nr", "number")],
        relation=relation,
        **arguments,  # type: ignore[arg-type]
    )


def answered(operator: Operator, *events: joins.Event) -> Counter[Row]:
    """All results after these events and the end of the stream."""
    results: list[pa.RecordBatch] = []
    for event in (*events, EndOfSide(0)):
        operator.offer(event, results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    return Counter(rows_of(results))


# Results


def test_an_inner_join_gives_every_row_of_the_relation_with_the_key() -> None:
    relation = customers([(1, "one"), (2, "two"), (1, "uno")])
    assert answered(built(relation), asking(1, 3, None, 2)) == Counter(
        [(1, "row 0", 1, "one", "", 1), (1, "row 0", 1, "uno", "", 1), (2, "row 3", 2, "two", "", 1)]
    )


def test_a_left_join_gives_rows_without_a_match_once_with_nulls() -> None:
    relation = customers([(1, "one"), (1, "uno")])
    operator = built(relation, how="left")
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


def test_a_key_of_several_columns_is_matched_whatever_the_order_of_on() -> None:
    schema = pa.schema([("country", pa.string()), ("number", pa.int32())])
    rows = pa.record_batch([pa.array(["se", "no", "se"]), pa.array([1, 1, 2], pa.int32())], schema=schema)
    relation = create_memory_relation("customers", schema, ("country", "number"), batches=[rows])
    stream = pa.schema([("nr", pa.int32()), ("land", pa.string())])
    asked = pa.record_batch([pa.array([1, 2, 2, 1], pa.int32()), pa.array(["se", "no", "se", None])], schema=stream)
    operator = joins.build(
        "hash-partitioned", sides=[stream], on=[("nr", "number"), ("land", "country")], relation=relation
    )
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
    operator = built(customers([(1, f"name {number}") for number in range(30)], segments=1), result_rows=7)
    sizes: list[int] = []
    operator.offer(asking(*[1] * 20), lambda batch: sizes.append(batch.num_rows))
    operator.work(WorkBudget(), lambda batch: sizes.append(batch.num_rows))
    assert sum(sizes) == 600
    assert max(sizes) == 7


# Versions


def test_rows_that_wait_are_answered_from_a_newer_version_whole() -> None:
    older = customers([(1, "one")])
    newer = older.append(stored([(1, "uno"), (2, "two")]), "orders/7", highest=0)
    assert answered(built(older), asking(1, 2), RelationVersion(newer)) == Counter(
        [
            (1, "row 0", 1, "one", "", 2),
            (1, "row 0", 1, "uno", "orders/7", 2),
            (2, "row 1", 2, "two", "orders/7", 2),
        ]
    )


def test_rows_that_were_answered_are_not_answered_again() -> None:
    older = customers([(1, "one")])
    newer = older.append(stored([(2, "two")]), "orders/7", highest=0)
    operator, results = built(older, how="left"), list[pa.RecordBatch]()
    operator.offer(asking(1, 2), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.IDLE
    operator.offer(RelationVersion(newer), results.append)
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(rows_of(results)) == Counter([(1, "row 0", 1, "one", "", 1), (2, "row 1", None, None, None, 1)])


def test_a_version_may_come_while_it_cleans_up_and_through_a_snapshot() -> None:
    older = customers([(1, "one")], segments=4)
    newer = older.append(stored([(2, "two")]), "orders/7", highest=0)
    operator = built(older)
    operator.offer(asking(2, 2), _no_results)
    operator.offer(EndOfSide(0), _no_results)
    operator.offer(RelationVersion(newer), _no_results)
    restored = joins.restore(joins.Snapshot.from_bytes(operator.snapshot().to_bytes()), relation=newer)
    results: list[pa.RecordBatch] = []
    assert restored.work(WorkBudget(), results.append) is Progress.DONE
    assert [row[2:] for row in rows_of(results)] == [(2, "two", "orders/7", 2)] * 2


def test_without_an_event_the_version_stays_whatever_is_committed() -> None:
    older = customers([(1, "one")])
    operator = built(older)
    older.append(stored([(1, "uno")]), "orders/7", highest=0)
    assert answered(operator, asking(1)) == Counter([(1, "row 0", 1, "one", "", 1)])


# Disk probes and memory


def test_nothing_is_read_while_rows_fit_into_memory() -> None:
    relation = customers([(number, "name") for number in range(100)])
    operator = built(relation)
    operator.offer(asking(*range(100)), _no_results)
    assert relation.counters.blocks_read == 0
    assert operator.counters.memory_bytes > 0


def test_a_full_memory_is_emptied_by_disk_probes_of_the_fullest_segments() -> None:
    relation = customers([(number, f"name {number}") for number in range(1000)])
    operator, results = built(relation, memory_bytes=8192, block_bytes=1024), list[pa.RecordBatch]()
    for start in range(0, 1000, 50):
        operator.offer(asking(*range(start, start + 50)), results.append)
        assert operator.counters.memory_bytes <= 8192
    early = sum(batch.num_rows for batch in results)
    assert early > 500, "most rows were answered while rows came"
    assert 0 < relation.counters.blocks_read < 20 * relation.segments, "one probe serves the rows of several batches"
    operator.offer(EndOfSide(0), results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    assert Counter(row[0] for row in rows_of(results)) == Counter(range(1000))
    assert operator.counters.memory_bytes == 0


def test_one_disk_probe_serves_all_rows_of_a_segment() -> None:
    relation = customers([(number, "name") for number in range(100)], segments=4)
    operator = built(relation)
    for number in range(100):
        operator.offer(asking(number), _no_results)
    results: list[pa.RecordBatch] = []
    calls = 0
    while operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE:
        calls += 1
        assert operator.counters.blocks_read == relation.counters.blocks_read == calls
    assert relation.counters.blocks_read == 4
    assert operator.counters.rows_compared == 100


def test_the_segment_with_the_most_waiting_rows_comes_first() -> None:
    relation = customers([(number, "name") for number in range(20)], segments=4)
    hashes = hash_columns([view(pa.array(range(20)))]).hashes
    one_of_segment = {int(segment): number for number, segment in enumerate(relation.segment_of(hashes))}
    assert len(one_of_segment) == 4
    for fullest in range(4):
        operator, results = built(relation), list[pa.RecordBatch]()
        asked = [number for segment, number in one_of_segment.items() for _ in range(50 if segment == fullest else 1)]
        operator.offer(asking(*asked), _no_results)
        assert operator.work(WorkBudget(blocks=1), results.append) is Progress.MORE
        assert [row[0] for row in rows_of(results)] == [one_of_segment[fullest]] * 50


def test_keys_without_a_value_never_wait() -> None:
    operator = built(customers([(1, "one")]))
    operator.offer(asking(*[None] * 1000), _no_results)
    assert operator.counters.memory_bytes == 0
    assert operator.work(WorkBudget(), _no_results) is Progress.IDLE


@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_empty_relation_matches_nothing(how: str) -> None:
    found = answered(built(customers(), how=how), asking(1, None))
    unmatched = [(1, "row 0", None, None, None, 1), (None, "row 1", None, None, None, 1)]
    assert found == Counter(unmatched if how == "left" else [])


def _no_results(batch: pa.RecordBatch) -> None:
    raise AssertionError(f"{batch.num_rows} results where none is due")
