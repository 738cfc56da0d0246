"""Looking up keeps the rows as they are, and new keys come in an order that depends on nothing but themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.ports import keys_of
from etl.storage.relation import Relation
from etl.transforms.lookups import Lookups
from etl.transforms.new_rows import as_relation_rows, identify_new, new_members
from tests.transforms.relations import CUSTOMER, ON, NaturalKey, customers, load_of

natural_keys = st.tuples(st.none() | st.sampled_from(["shop", "web", ""]), st.none() | st.integers(-3, 12))
loads = st.lists(natural_keys, max_size=30)


def known_customers() -> Relation:
    first = pa.table([["shop", "web"], [1, 1], [1, 2]], schema=CUSTOMER)
    second = pa.table([["shop"], [2], [3]], schema=CUSTOMER)
    return customers().append(first, "load 1", highest=2).append(second, "load 2", highest=3)


# New rows


@given(loads, st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_row_is_new_known_or_without_a_key(keys: list[NaturalKey], cuts: list[int]) -> None:
    rows = load_of(keys, cuts)
    for load_id, before in [("load 1", {("shop", 2)}), ("load 2", {("shop", 1), ("web", 1)})]:
        found = identify_new(rows, known_customers(), ON, load_id)
        kinds = ["without" if None in key else "known" if key in before else "new" for key in keys]
        assert [kinds[amount] for amount in _amounts(found.new)] == ["new"] * kinds.count("new")
        assert [kinds[amount] for amount in _amounts(found.known)] == ["known"] * kinds.count("known")
        assert [kinds[amount] for amount in _amounts(found.without_key)] == ["without"] * kinds.count("without")
        own = {("shop", 1), ("web", 1), ("shop", 2)} - before
        assert found.brought.to_pylist() == [keys[amount] in own for amount in _amounts(found.new)]


def _amounts(rows: pa.Table) -> list[int]:
    """The amount of a row is its place in the load; a table keeps the load's order."""
    amounts: list[int] = rows.column("amount").to_pylist()
    assert amounts == sorted(amounts)
    return amounts


@given(loads, st.lists(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_new_keys_come_by_segment_hash_and_key(
    keys: list[NaturalKey], cuts: list[int], shuffler: random.Random, others: int
) -> None:
    relation = customers(others)
    expected = _ranked({key for key in keys if None not in key}, relation)
    shuffled = list(keys)
    shuffler.shuffle(shuffled)
    for rows in (load_of(keys), load_of(shuffled, cuts)):
        nothing_known = pa.chunked_array([pa.array([False] * len(keys), pa.bool_())])
        found = new_members(rows, nothing_known, ON, relation)
        assert found.column_names == ["system", "number"]
        assert list(zip(*found.to_pydict().values(), strict=True)) == expected


def test_the_relation_of_the_test_above_has_many_segments() -> None:
    assert customers(12).segments > 5


def test_known_keys_are_not_new() -> None:
    rows, relation = load_of([("shop", 1), ("shop", 3), (None, 4), ("shop", 3)]), known_customers()
    found = new_members(rows, Lookups().look_up(rows, relation, ON).known, ON, relation)
    assert found.to_pylist() == [{"system": "shop", "number": 3}]


def test_the_columns_of_on_may_stand_in_any_order() -> None:
    rows, relation = load_of([("shop", 5), ("web", 6)]), known_customers()
    for on in (ON, ON[::-1]):
        found = new_members(rows, Lookups().look_up(rows, relation, on).known, on, relation)
        assert sorted(found.select(["system", "number"]).to_pylist(), key=str) == [
            {"system": "shop", "number": 5},
            {"system": "web", "number": 6},
        ]


# Attributes of new members

PEOPLE = pa.schema([("nr", pa.int64()), ("name", pa.string()), ("tags", pa.string()), ("key", pa.int64())])


def people(*rows: tuple[int, str | None, str | None]) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("called", pa.string()), ("labels", pa.string())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def test_a_member_takes_the_least_attributes_of_its_rows_whatever_their_order() -> None:
    relation = create_memory_relation("people", PEOPLE, ("nr",))
    rows = people((1, None, None), (1, "bea", "x"), (1, "ann", "y"), (2, None, "z"), (1, "ann", "b"))
    nobody = pa.chunked_array([pa.array([False] * 5)])
    for chosen in (rows, rows.take([4, 3, 2, 1, 0])):
        found = new_members(chosen, nobody, [("id", "nr")], relation, [("called", "name"), ("labels", "tags")])
        assert sorted(found.to_pylist(), key=str) == [
            {"nr": 1, "name": "ann", "tags": "b"},
            {"nr": 2, "name": None, "tags": "z"},
        ]


def test_columns_that_nobody_gives_are_null() -> None:
    relation = create_memory_relation("people", PEOPLE, ("nr",))
    members = as_relation_rows(pa.table({"nr": [7], "name": ["ann"]}), relation)
    assert members.schema == PEOPLE
    assert members.to_pylist() == [{"nr": 7, "name": "ann", "tags": None, "key": None}]


def test_attributes_that_do_not_fit_are_named() -> None:
    relation = create_memory_relation("people", PEOPLE, ("nr",))
    rows, nobody = people((1, "ann", None)), pa.chunked_array([pa.array([False])])
    for attributes, message in [
        ([("called", "nickname")], "attributes: relation people has no column 'nickname' beside its key"),
        ([("id", "nr")], "attributes: relation people has no column 'nr' beside its key"),
        ([("nickname", "name")], "attributes: the rows have no column 'nickname'; their columns are"),
        ([("id", "name")], "column 'id' of the rows is int64, column 'name' of relation people is string"),
    ]:
        with pytest.raises(BadInput, match=message):
            new_members(rows, nobody, [("id", "nr")], relation, attributes)


def test_a_column_that_may_not_be_null_must_be_given() -> None:
    schema = pa.schema([("nr", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    relation = create_memory_relation("people", schema, ("nr",))
    with pytest.raises(BadInput, match="relation people: column 'name' of a new member may not be null: name the"):
        as_relation_rows(pa.table({"nr": [7]}), relation)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([True, False]),
        pa.array([b"b", b"a"]),
        pa.array(["b", "a"], pa.large_string()),
        pa.array([2, 1]).cast(pa.decimal128(30, 2)),
        pa.array([2, 1], pa.int32()).cast(pa.date32()),
        pa.array([2, 1]).cast(pa.timestamp("us", "UTC")),
        pa.array([2, 1], pa.uint64()),
    ],
    ids=lambda keys: str(keys.type),
)
def test_keys_of_every_kind_are_looked_up_and_ranked(keys: pa.Array) -> None:
    schema = pa.schema([("key", keys.type), ("surrogate", pa.int64())])
    known = pa.record_batch([keys.slice(0, 1), pa.array([1])], schema=schema)
    relation = create_memory_relation("things", schema, ("key",), batches=[known])
    rows = pa.table({"natural": keys})
    answer = Lookups().look_up(rows, relation, [("natural", "key")])
    assert answer.found.column("surrogate").to_pylist() == [1, None]
    assert (
        new_members(rows, answer.known, [("natural", "key")], relation).column("key").to_pylist()
        == keys[1:].to_pylist()
    )


def _ranked(keys: set[NaturalKey], relation: Relation) -> Sequence[NaturalKey]:
    """By definition, in Python."""
    distinct = sorted(keys, key=str)
    columns = [pa.array([key[0] for key in distinct], pa.string()), pa.array([key[1] for key in distinct], pa.int64())]
    asked = keys_of(columns)
    segments = relation.segment_of(asked)
    ranks = [(int(segments[i]), int(asked.hashes[i]), key) for i, key in enumerate(distinct)]
    return [key for *_, key in sorted(ranks)]
