"""Rows that wait for the next load: none is lost, none waits too long, and a load run again lets the same rows wait."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolve import AssignKeys, Carry, Decision, DropDuplicates, Resolution, ResolvedLoad, resolve
from etl.spark.waiting_rows import WAITED
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation

PEOPLE = pa.schema([("number", pa.int64()), ("person_key", pa.int64())])
SALES = pa.schema([("sale", pa.int64())])
ROWS = pa.schema([("sale", pa.int64()), ("buyer", pa.int64())])
KNOWN = 200
DEADLINE = 3
PLAN = Resolution(
    keys=(AssignKeys("people", [("buyer", "number")], "person_key"),),
    carry=Carry(invocation_rows=3, deadline_loads=DEADLINE),
    # Too little for any segment to stay in memory.
    join="hash-partitioned",
    memory_bytes=1 << 11,
)


def people() -> Relation:
    known = pa.record_batch([range(KNOWN), range(1, KNOWN + 1)], schema=PEOPLE)
    return create_memory_relation("people", PEOPLE, ("number",), [known], theta=8, highest=KNOWN)


def load_of(buyers: list[int | None], first_sale: int = 0) -> pa.Table:
    return pa.table([range(first_sale, first_sale + len(buyers)), buyers], schema=ROWS)


def committed(relation: Relation, resolved: ResolvedLoad, load_id: str) -> Relation:
    members = resolved.members["people"]
    return relation.append(members.rows, load_id, members.highest)


buyers = st.lists(st.none() | st.integers(0, KNOWN + 40), max_size=40)


@given(st.lists(buyers, min_size=DEADLINE + 1, max_size=7))
@settings(max_examples=40, deadline=None)
def test_every_row_is_loaded_once_with_its_key_and_in_time(loads: list[list[int | None]]) -> None:
    relation, carried, sale = people(), None, 0
    arrived_in: dict[int, int] = {}
    keys: dict[int, tuple[int | None, int]] = {}
    for number, load in enumerate([*loads, *([[]] * DEADLINE)]):
        arrived_in |= dict.fromkeys(range(sale, sale + len(load)), number)
        resolved = resolve(load_of(load, sale), PLAN, {"people": relation}, f"sales/{number}", carried=carried)
        sale += len(load)
        for row in resolved.rows.to_pylist():
            assert row["sale"] not in keys
            keys[row["sale"]] = row["buyer"], row["person_key"]
            assert number - arrived_in[row["sale"]] <= DEADLINE
        assert resolved.waiting is not None
        carried = resolved.waiting
        assert [number + 1 - arrived_in[row["sale"]] for row in carried.to_pylist()] == carried.column(
            WAITED
        ).to_pylist()
        relation = committed(relation, resolved, f"sales/{number}")
    assert carried is not None
    assert carried.num_rows == 0
    assert sorted(keys) == list(range(sale))
    key_of = {buyer: key for buyer, key in keys.values() if buyer is not None}
    assert all(key == (0 if buyer is None else key_of[buyer]) for buyer, key in keys.values())
    assert all(key == buyer + 1 for buyer, key in key_of.items() if buyer < KNOWN)
    assert sorted(key for key in key_of.values() if key > KNOWN) == list(range(KNOWN + 1, relation.highest + 1))


def test_few_rows_wait_and_many_do_not() -> None:
    relation = people()
    resolved = resolve(load_of([7, 7, 7, 150]), PLAN, {"people": relation}, "sales/0")
    assert resolved.waiting is not None
    assert resolved.waiting.to_pylist() == [{"sale": 3, "buyer": 150, WAITED: 1}]
    assert resolved.rows.column("sale").to_pylist() == [0, 1, 2]
    together = resolve(load_of([150, 150], 4), PLAN, {"people": relation}, "sales/1", carried=resolved.waiting)
    assert together.rows.column("sale").to_pylist() == [3, 4, 5], "with those that waited they are enough"


def test_segments_in_memory_are_not_waited_for() -> None:
    plan, relation = replace(PLAN, memory_bytes=1 << 22), people()
    first = resolve(load_of([7, 7, 7]), plan, {"people": relation}, "sales/0")
    second = resolve(load_of([7, 150]), plan, {"people": relation}, "sales/1", carried=first.waiting)
    assert second.rows.column("buyer").to_pylist() == [7]


@given(buyers, buyers)
@settings(max_examples=30, deadline=None)
def test_a_load_that_is_run_again_waits_for_the_same(first: list[int | None], second: list[int | None]) -> None:
    """Whatever is in memory by then, and although the relation has grown and its segments were cut anew."""
    plan, relation = replace(PLAN, memory_bytes=1 << 16), people()
    carried = resolve(load_of(first), plan, {"people": relation}, "sales/0").waiting
    rows = load_of(second, first_sale=100)
    once = resolve(rows, plan, {"people": relation}, "sales/1", carried=carried)
    assert once.decision is not None
    decision = Decision.from_json(json.loads(json.dumps(once.decision.to_json())))
    PROCESS_MEMORY.forget()
    strangers = pa.table([range(1000, 1400), range(KNOWN + 1, KNOWN + 401)], schema=PEOPLE)
    grown = relation.append(strangers, "other/0", highest=KNOWN + 400).compact()
    assert not grown.same_segments(relation)
    again = resolve(rows, plan, {"people": grown}, "sales/1", carried=carried, decision=decision)
    assert again.rows.column("sale").equals(once.rows.column("sale"))
    assert again.waiting is not None
    assert again.waiting.equals(once.waiting)
    assert again.decision == decision


def test_without_carry_all_that_waited_is_due() -> None:
    relation = people()
    waiting = resolve(load_of([150, 7]), PLAN, {"people": relation}, "sales/0").waiting
    assert waiting is not None
    assert waiting.num_rows == 2
    plan = replace(PLAN, carry=None)
    resolved = resolve(load_of([8], 2), plan, {"people": relation}, "sales/1", carried=waiting)
    assert resolved.rows.column("sale").to_pylist() == [0, 1, 2]
    assert (resolved.waiting, resolved.decision) == (None, None)


def test_a_row_that_waits_is_remembered_nowhere() -> None:
    sales = create_memory_relation("sales", SALES, ("sale",))
    plan = replace(PLAN, duplicates=DropDuplicates("sales", [("sale", "sale")]))
    relations = {"people": people(), "sales": sales}
    resolved = resolve(load_of([1000, 7, 7, 7]), plan, relations, "sales/0")
    assert resolved.members["people"].rows.num_rows == 0
    assert resolved.members["sales"].rows.column("sale").to_pylist() != []
    assert 0 not in resolved.members["sales"].rows.column("sale").to_pylist()


def test_what_cannot_wait_is_named() -> None:
    relations = {"people": people()}
    with pytest.raises(BadInput, match="carried rows have no column '_waited'"):
        resolve(load_of([1]), PLAN, relations, "sales/0", carried=load_of([1]))
    other = pa.table({"sale": ["x"], "buyer": [1], WAITED: [1]})
    with pytest.raises(BadInput, match=r"rows that waited have the columns .* let the pipeline run once without carry"):
        resolve(load_of([1]), PLAN, relations, "sales/0", carried=other)
    with pytest.raises(BadInput, match="invocation_rows=0, deadline_loads=1: both are at least 1"):
        Carry(0, 1)
    with pytest.raises(BadInput, match="rows wait for segments of the first relation with keys, and there is none"):
        Resolution(duplicates=DropDuplicates("sales", [("sale", "sale")]), carry=Carry(1, 1))
