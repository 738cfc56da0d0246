"""Duplicates are found against all loads before and inside the load, and a load that is run again finds the same."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.duplicate_detection import Deduplicated, drop_duplicates
from etl.transforms.lookups import Lookups
from tests.transforms.relations import JOINS

ORDER = pa.schema([("system", pa.string()), ("order_no", pa.int64())])
STREAM = pa.schema([("source", pa.string()), ("nr", pa.int64()), ("sent_at", pa.int64()), ("amount", pa.int64())])
ON = [("source", "system"), ("nr", "order_no")]
Order = tuple[str | None, int | None, int, int]


def orders() -> Relation:
    return create_memory_relation("loaded_order", ORDER, ("system", "order_no"), theta=2)


def load_of(rows: list[Order]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(STREAM.names, row, strict=True)) for row in rows], STREAM)


def dropped(rows: list[Order], relation: Relation, load_id: str = "load 1") -> Deduplicated:
    return drop_duplicates(load_of(rows), relation, ON, load_id, prefer=["sent_at"])


def kept(answer: Deduplicated) -> Counter[tuple[object, ...]]:
    return Counter(zip(*answer.first.to_pydict().values(), strict=True))


given_orders = st.tuples(
    st.none() | st.sampled_from(["shop", "web"]), st.none() | st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)
)
loads = st.lists(given_orders, max_size=15)


def test_inside_a_load_the_preferred_row_wins() -> None:
    rows: list[Order] = [("shop", 1, 9, 100), ("shop", 1, 3, 500), ("web", 1, 5, 7), ("shop", 1, 3, 200)]
    answer = dropped(rows, orders())
    assert kept(answer) == Counter([("shop", 1, 3, 200), ("web", 1, 5, 7)])
    assert answer.duplicates == 2
    assert sorted(answer.members.to_pylist(), key=str) == [
        {"system": "shop", "order_no": 1},
        {"system": "web", "order_no": 1},
    ]


def test_keys_that_another_load_brought_are_duplicates() -> None:
    relation = orders().append(pa.table([["shop"], [1]], schema=ORDER), "load 1", highest=0)
    answer = dropped([("shop", 1, 0, 0), ("shop", 2, 0, 0)], relation, "load 2")
    assert kept(answer) == Counter([("shop", 2, 0, 0)])
    assert (answer.duplicates, answer.members.to_pylist()) == (1, [{"system": "shop", "order_no": 2}])


def test_rows_without_a_key_are_kept_and_not_remembered() -> None:
    rows: list[Order] = [(None, 1, 0, 0), (None, 1, 0, 0), ("shop", None, 0, 0)]
    answer = dropped(rows, orders())
    assert kept(answer) == Counter(rows)
    assert (answer.duplicates, answer.members.num_rows) == (0, 0)


@given(st.lists(loads, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_key_is_loaded_once_over_all_loads(all_loads: list[list[Order]]) -> None:
    relation = orders()
    seen: set[tuple[str | None, int | None]] = set()
    for number, rows in enumerate(all_loads):
        answer = dropped(rows, relation, f"load {number}")
        expected = _first_by_definition(rows, seen)
        assert kept(answer) == Counter(expected)
        assert answer.duplicates == len(rows) - len(expected)
        assert answer.members.num_rows == len({row[:2] for row in expected if None not in row[:2]})
        seen |= {row[:2] for row in rows}
        relation = relation.append(answer.members, f"load {number}", highest=0).compact()


@given(loads, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_winner_does_not_depend_on_the_order_of_the_rows(rows: list[Order], shuffler: random.Random) -> None:
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    one, other = dropped(rows, orders()), dropped(shuffled, orders())
    assert kept(one) == kept(other)
    assert one.members.equals(other.members)


@given(loads, loads)
@settings(max_examples=40, deadline=None)
def test_a_load_that_has_committed_finds_the_same_duplicates_again(first: list[Order], second: list[Order]) -> None:
    empty = orders()
    one = dropped(first, empty, "load 1")
    after_first = empty.append(one.members, "load 1", highest=0)
    two = dropped(second, after_first, "load 2")
    after_second = after_first.append(two.members, "load 2", highest=0)
    for rows, load_id, answer, relation in [
        (first, "load 1", one, after_first),
        (first, "load 1", one, after_second),
        (second, "load 2", two, after_second),
    ]:
        again = dropped(rows, relation, load_id)
        assert kept(again) == kept(answer)
        assert again.duplicates == answer.duplicates
        assert again.members.num_rows == 0


def test_a_load_without_rows_has_no_duplicates() -> None:
    answer = dropped([], orders())
    assert (answer.first.num_rows, answer.members.num_rows, answer.duplicates) == (0, 0, 0)


@pytest.mark.parametrize("join", JOINS)
def test_every_join_finds_the_same_duplicates_in_little_memory(join: str) -> None:
    known = load_of([("shop", number, 0, 0) for number in range(0, 1000, 2)]).select(["source", "nr"])
    relation = orders().append(known.rename_columns(ORDER.names), "load 0", highest=0).compact()
    rows: list[Order] = [("shop", number % 1000, number, 0) for number in range(2000)]
    answer = drop_duplicates(load_of(rows), relation, ON, "load 1", lookups=Lookups(join, 1 << 16))
    assert kept(answer) == Counter(("shop", number, number, 0) for number in range(1, 1000, 2))
    assert answer.duplicates == 1500


def test_the_relation_remembers_attributes_of_the_row_that_won() -> None:
    schema = pa.schema([*ORDER, ("amount", pa.int64()), ("note", pa.string())])
    relation = create_memory_relation("loaded_order", schema, ("system", "order_no"))
    rows = load_of([("shop", 1, 9, 100), ("shop", 1, 3, 500), ("web", None, 1, 1)])
    answer = drop_duplicates(rows, relation, ON, "load 1", ["sent_at"], attributes=[("amount", "amount")])
    assert answer.members.schema == schema
    assert answer.members.to_pylist() == [{"system": "shop", "order_no": 1, "amount": 500, "note": None}]
    assert answer.duplicates == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([["b"], ["a"], None]),
        pa.array([{"x": 2}, {"x": 1}, None]),
        pa.array(["b", "a", None]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_that_arrow_does_not_order_decide_as_well(values: pa.Array) -> None:
    columns = {"source": ["shop"] * 3, "nr": [1] * 3, "sent_at": [1] * 3, "extra": values}
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        answer = drop_duplicates(pa.table(columns).take(order), orders(), ON, "load 1")
        assert answer.first.column("extra").to_pylist() == [values[1].as_py()]


def _first_by_definition(rows: list[Order], seen: set[tuple[str | None, int | None]]) -> list[Order]:
    """Rows without a key, and of each key that was not seen the row with the least (sent_at, amount)."""
    least: dict[tuple[str | None, int | None], Order] = {}
    for row in rows:
        key = row[:2]
        if None not in key and key not in seen:
            least[key] = min(row, least.get(key, row), key=lambda order: order[2:])
    return [row for row in rows if None in row[:2]] + list(least.values())
