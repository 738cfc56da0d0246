"""Looking up keeps the rows as they are, and new keys come in an order that depends on nothing but themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.new_rows import look_up, new_keys
from tests.transforms.relations import CUSTOMER, ON, NaturalKey, customers, load_of

natural_keys = st.tuples(st.none() | st.sampled_from(["shop", "web", ""]), st.none() | st.integers(-3, 12))
loads = st.lists(natural_keys, max_size=30)


def known_customers() -> Relation:
    first = pa.table([["shop", "web"], [1, 1], [1, 2]], schema=CUSTOMER)
    second = pa.table([["shop"], [2], [3]], schema=CUSTOMER)
    return customers().append(first, "load 1", highest=2).append(second, "load 2", highest=3)


@given(loads, st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=60, deadline=None)
def test_row_i_of_the_answer_belongs_to_row_i(keys: list[NaturalKey], cuts: list[int]) -> None:
    answer = look_up(load_of(keys, cuts), known_customers(), ON)
    known = {("shop", 1): (1, "load 1"), ("web", 1): (2, "load 1"), ("shop", 2): (3, "load 2")}
    expected = [known.get(key, (None, None)) for key in keys]  # type: ignore[arg-type]  # a null is in no key
    assert answer.found.column_names == ["customer_key"]
    assert answer.found.column("customer_key").to_pylist() == [key for key, _ in expected]
    assert answer.created_by.to_pylist() == [load for _, load in expected]
    assert answer.known.to_pylist() == [key in known for key in keys]


def test_a_load_larger_than_memory_keeps_its_order_too() -> None:
    keys: list[NaturalKey] = [("shop", number % 3) for number in range(5000)]
    answer = look_up(load_of(keys), known_customers(), ON, memory_bytes=1 << 16)
    assert answer.found.column("customer_key").to_pylist() == [{1: 1, 2: 3}.get(number % 3) for number in range(5000)]


def test_columns_of_the_stream_may_be_named_like_those_of_the_relation() -> None:
    rows = pa.table({"system": ["web"], "number": [1], "customer_key": [99], "created_by": ["me"], "_row": [7]})
    answer = look_up(rows, known_customers(), [("system", "system"), ("number", "number")])
    assert answer.found.to_pylist() == [{"customer_key": 2}]


def test_a_relation_with_a_key_twice_is_no_lookup_table() -> None:
    relation = known_customers().append(pa.table([["web"], [1], [9]], schema=CUSTOMER), "load 3", highest=9)
    with pytest.raises(BadInput, match="relation customer holds a key more than once"):
        look_up(load_of([("web", 1)]), relation, ON)


@given(loads, st.lists(st.integers(0, 30), max_size=4), st.randoms(use_true_random=False), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_new_keys_come_by_segment_hash_and_key(
    keys: list[NaturalKey], cuts: list[int], shuffler: random.Random, segments: int
) -> None:
    relation = customers(segments)
    expected = _ranked({key for key in keys if None not in key}, relation)
    shuffled = list(keys)
    shuffler.shuffle(shuffled)
    for rows in (load_of(keys), load_of(shuffled, cuts)):
        nothing_known = pa.chunked_array([pa.array([False] * len(keys), pa.bool_())])
        found = new_keys(rows, nothing_known, ON, relation)
        assert found.column_names == ["system", "number"]
        assert list(zip(*found.to_pydict().values(), strict=True)) == expected


def test_known_keys_are_not_new() -> None:
    rows, relation = load_of([("shop", 1), ("shop", 3), (None, 4), ("shop", 3)]), known_customers()
    found = new_keys(rows, look_up(rows, relation, ON).known, ON, relation)
    assert found.to_pylist() == [{"system": "shop", "number": 3}]


def test_the_columns_of_on_may_stand_in_any_order() -> None:
    rows, relation = load_of([("shop", 5), ("web", 6)]), known_customers()
    for on in (ON, ON[::-1]):
        found = new_keys(rows, look_up(rows, relation, on).known, on, relation)
        assert found.column_names == ["system", "number"]
        assert sorted(found.to_pylist(), key=str) == [
            {"system": "shop", "number": 5},
            {"system": "web", "number": 6},
        ]


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
    answer = look_up(rows, relation, [("natural", "key")])
    assert answer.found.column("surrogate").to_pylist() == [1, None]
    assert (
        new_keys(rows, answer.known, [("natural", "key")], relation).column("key").to_pylist() == keys[1:].to_pylist()
    )


def _ranked(keys: set[NaturalKey], relation: Relation) -> Sequence[NaturalKey]:
    """By definition, in Python."""
    distinct = sorted(keys, key=str)
    columns = [pa.array([key[0] for key in distinct], pa.string()), pa.array([key[1] for key in distinct], pa.int64())]
    hashes = hash_columns([view(column) for column in columns]).hashes
    segments = relation.segment_of(hashes)
    ranks = [(int(segments[i]), int(hashes[i]), key) for i, key in enumerate(distinct)]
    return [key for *_, key in sorted(ranks)]
