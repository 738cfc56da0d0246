"""Surrogate keys: dense from 1, the same however a load is cut and shuffled, the same when it is run again."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.lookups import Lookups
from etl.transforms.surrogate_keys import UNKNOWN_MEMBER, KeyedRows, assign
from tests.transforms.relations import JOINS, ON, NaturalKey, customers, load_of

natural_keys = st.tuples(st.none() | st.sampled_from(["shop", "web"]), st.none() | st.integers(0, 8))
loads = st.lists(natural_keys, max_size=25)


def assigned(rows: pa.Table, relation: Relation) -> KeyedRows:
    return assign(rows, relation, ON, "customer_key")


def committed(answer: KeyedRows, relation: Relation, load_id: str) -> Relation:
    return relation.append(answer.members, load_id, answer.highest)


def by_natural_key(keys: list[NaturalKey], answer: KeyedRows) -> dict[NaturalKey, int]:
    """The surrogate key of each natural key; fails when one has two."""
    found: dict[NaturalKey, int] = {}
    for key, number in zip(keys, answer.keys.to_pylist(), strict=True):
        assert found.setdefault(key, number) == number
    return found


@given(st.lists(loads, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_keys_are_dense_from_one_over_all_loads(all_loads: list[list[NaturalKey]]) -> None:
    relation = customers()
    given_out: dict[NaturalKey, int] = {}
    for number, keys in enumerate(all_loads):
        answer = assigned(load_of(keys), relation)
        found = by_natural_key(keys, answer)
        assert all(given_out.get(key, surrogate) == surrogate for key, surrogate in found.items()), (
            "a key never changes"
        )
        assert all((surrogate == UNKNOWN_MEMBER) == (None in key) for key, surrogate in found.items())
        given_out |= {key: surrogate for key, surrogate in found.items() if None not in key}
        assert sorted(given_out.values()) == list(range(1, len(given_out) + 1))
        assert answer.highest == len(given_out)
        relation = committed(answer, relation, f"load {number}").compact()
        assert relation.highest == relation.rows == len(given_out)


@given(loads, st.lists(st.integers(0, 25), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_keys_depend_on_the_rows_alone(keys: list[NaturalKey], cuts: list[int], shuffler: random.Random) -> None:
    shuffled = list(keys)
    shuffler.shuffle(shuffled)
    one = assigned(load_of(keys), customers())
    other = assigned(load_of(shuffled, cuts), customers())
    assert by_natural_key(keys, one) == by_natural_key(shuffled, other)
    assert one.members.equals(other.members)


@given(loads, loads)
@settings(max_examples=40, deadline=None)
def test_a_load_that_has_committed_answers_the_same_again(first: list[NaturalKey], second: list[NaturalKey]) -> None:
    empty = customers()
    answer = assigned(load_of(first), empty)
    after_first = committed(answer, empty, "load 1")
    after_second = committed(assigned(load_of(second), after_first), after_first, "load 2")
    for relation in (after_first, after_second):
        again = assigned(load_of(first), relation)
        assert again.keys.to_pylist() == answer.keys.to_pylist()
        assert again.members.num_rows == 0
        assert committed(again, relation, "load 1").version == after_first.version


def test_the_second_load_goes_on_after_the_highest_number_given() -> None:
    """Not after the number of rows: a version may have given out more than it holds."""
    relation = customers().append(pa.table([["shop"], [1], [41]], schema=customers().schema), "load 1", highest=41)
    answer = assigned(load_of([("web", 7), ("shop", 1), ("web", 7)]), relation)
    assert answer.keys.to_pylist() == [42, 41, 42]
    assert answer.members.to_pylist() == [{"system": "web", "number": 7, "customer_key": 42}]
    assert answer.highest == 42


def test_a_null_in_the_natural_key_is_the_unknown_member() -> None:
    answer = assigned(load_of([(None, 1), ("shop", None), (None, None), ("shop", 1)]), customers())
    assert answer.keys.to_pylist() == [0, 0, 0, 1]
    assert answer.members.num_rows == 1


def test_a_load_without_rows_gives_no_keys() -> None:
    answer = assigned(load_of([]), customers())
    assert (len(answer.keys), answer.members.num_rows, answer.highest) == (0, 0, 0)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([True, False, True]),
        pa.array([b"b", b"a", b"b"]),
        pa.array(["b", "a", "b"], pa.large_string()),
        pa.array([2, 1, 2]).cast(pa.decimal128(30, 2)),
        pa.array([2, 1, 2]).cast(pa.decimal256(60, 2)),
        pa.array([2, 1, 2], pa.int32()).cast(pa.date32()),
        pa.array([2, 1, 2]).cast(pa.time64("us")),
        pa.array([2, 1, 2]).cast(pa.timestamp("us", "UTC")),
        pa.array([2, 1, 2], pa.uint64()),
    ],
    ids=lambda keys: str(keys.type),
)
def test_natural_keys_of_every_kind_are_numbered(keys: pa.Array) -> None:
    schema = pa.schema([("natural", keys.type), ("surrogate", pa.int32())])
    relation = create_memory_relation("things", schema, ("natural",))
    answer = assign(pa.table({"natural": keys}), relation, [("natural", "natural")], "surrogate")
    assert sorted(answer.keys.to_pylist()[:2]) == [1, 2]
    assert answer.keys[0] == answer.keys[2]
    relation = relation.append(answer.members, "load 1", answer.highest)
    again = assign(pa.table({"natural": keys}), relation, [("natural", "natural")], "surrogate")
    assert again.keys.to_pylist() == answer.keys.to_pylist()


def test_the_stream_may_have_a_column_named_like_the_surrogate_key() -> None:
    rows = pa.table({"customer_key": ["shop"], "number": [7], "_row": [1]})
    answer = assign(rows, customers(), [("customer_key", "system"), ("number", "number")], "customer_key")
    assert answer.keys.to_pylist() == [1]


@pytest.mark.parametrize("join", JOINS)
def test_every_join_gives_the_same_numbers_in_little_memory(join: str) -> None:
    keys: list[NaturalKey] = [(source, number) for number in range(500) for source in ("shop", "web", "elsewhere")]
    answer = assign(load_of(keys), customers(others=200), ON, "customer_key", lookups=Lookups(join, 1 << 16))
    by_auto = assign(load_of(keys), customers(others=200), ON, "customer_key")
    assert answer.keys.equals(by_auto.keys)
    assert answer.members.equals(by_auto.members)
    assert answer.highest == 200 + 2 * 500 + 300


# Relations with more than a key and its number

PRODUCT = pa.schema(
    [("number", pa.int64()), ("name", pa.string()), ("product_key", pa.int32()), ("weight", pa.float64())]
)


def test_attributes_of_new_members_are_given_by_the_rows_or_null() -> None:
    known = pa.record_batch([[1], ["bolt"], [1], [0.5]], schema=PRODUCT)
    relation = create_memory_relation("product", PRODUCT, ("number",), [known], highest="product_key")
    rows = pa.table({"nr": [2, 1, 2, None], "title": ["nut", "another bolt", None, "nothing"]})
    answer = assign(rows, relation, [("nr", "number")], "product_key", attributes=[("title", "name")])
    assert answer.keys.to_pylist() == [2, 1, 2, 0]
    assert answer.members.schema == PRODUCT
    assert answer.members.to_pylist() == [{"number": 2, "name": "nut", "product_key": 2, "weight": None}]
    relation = relation.append(answer.members, "load 1", answer.highest)
    again = assign(rows, relation, [("nr", "number")], "product_key", attributes=[("title", "name")])
    assert again.keys.to_pylist() == answer.keys.to_pylist()
    assert again.members.num_rows == 0, "known members stay as they are"


def test_a_column_that_cannot_hold_surrogate_keys_is_named() -> None:
    relation = create_memory_relation("product", PRODUCT, ("number",))
    for column, message in [
        ("key", "relation product has no column 'key' beside its key to hold surrogate keys: it has 'name', 'product_"),
        ("number", "relation product has no column 'number' beside its key"),
        ("weight", "relation product: column 'weight' is double: surrogate keys are integers"),
    ]:
        with pytest.raises(BadInput, match=message):
            assign(pa.table({"nr": [2]}), relation, [("nr", "number")], column)
