"""Look-ups keep the rows as they are, live from load to load, and stay within their memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.lookups import MOST_RELATIONS, Lookups
from tests.transforms.relations import CUSTOMER, JOINS, ON, NaturalKey, customers, load_of

natural_keys = st.tuples(st.none() | st.sampled_from(["shop", "web", ""]), st.none() | st.integers(-3, 12))
loads = st.lists(natural_keys, max_size=30)


def known_customers() -> Relation:
    first = pa.table([["shop", "web"], [1, 1], [1, 2]], schema=CUSTOMER)
    second = pa.table([["shop"], [2], [3]], schema=CUSTOMER)
    return customers().append(first, "load 1", highest=2).append(second, "load 2", highest=3)


@pytest.mark.parametrize("join", JOINS)
@given(keys=loads, cuts=st.lists(st.integers(0, 30), max_size=4))
@settings(max_examples=30, deadline=None)
def test_row_i_of_the_answer_belongs_to_row_i(join: str, keys: list[NaturalKey], cuts: list[int]) -> None:
    answer = Lookups(join).look_up(load_of(keys, cuts), known_customers(), ON)
    known = {("shop", 1): (1, "load 1"), ("web", 1): (2, "load 1"), ("shop", 2): (3, "load 2")}
    expected = [known.get(key, (None, None)) for key in keys]  # type: ignore[arg-type]  # a null is in no key
    assert answer.found.column_names == ["customer_key"]
    assert answer.found.column("customer_key").to_pylist() == [key for key, _ in expected]
    assert answer.created_by.to_pylist() == [load for _, load in expected]
    assert answer.known.to_pylist() == [key in known for key in keys]


def test_a_load_larger_than_memory_keeps_its_order_too() -> None:
    keys: list[NaturalKey] = [("shop", number % 3) for number in range(5000)]
    answer = Lookups("hash-partitioned", 1 << 16).look_up(load_of(keys), known_customers(), ON)
    assert answer.found.column("customer_key").to_pylist() == [{1: 1, 2: 3}.get(number % 3) for number in range(5000)]


def test_columns_of_the_stream_may_be_named_like_those_of_the_relation() -> None:
    rows = pa.table({"system": ["web"], "number": [1], "customer_key": [99], "created_by": ["me"], "_row": [7]})
    answer = Lookups().look_up(rows, known_customers(), [("system", "system"), ("number", "number")])
    assert answer.found.to_pylist() == [{"customer_key": 2}]


def test_columns_of_the_relation_may_be_named_like_what_a_join_adds() -> None:
    schema = pa.schema([("number", pa.int64()), ("created_by", pa.string()), ("relation_version", pa.int64())])
    relation = create_memory_relation("odd", schema, ("number",), [pa.record_batch([[1], ["ann"], [7]], schema=schema)])
    answer = Lookups().look_up(pa.table({"number": [1]}), relation, [("number", "number")])
    assert answer.found.to_pylist() == [{"created_by": "ann", "relation_version": 7}]
    assert answer.created_by.to_pylist() != ["ann"]


def test_a_relation_with_a_key_twice_is_no_lookup_table() -> None:
    relation = known_customers().append(pa.table([["web"], [1], [9]], schema=CUSTOMER), "load 3", highest=9)
    with pytest.raises(BadInput, match="relation customer holds a key more than once"):
        Lookups().look_up(load_of([("web", 1)]), relation, ON)


def test_what_does_not_fit_is_named() -> None:
    rows, relation = load_of([("web", 1)]), known_customers()
    for join, message in [
        ("range-partitioned", "range-partitioned needs a relation that is partitioned by range"),
        ("hash-partition", "there is no join named 'hash-partition': did you mean 'hash-partitioned'"),
    ]:
        with pytest.raises(BadInput, match=message):
            Lookups(join).look_up(rows, relation, ON)
    for on, message in [
        (ON[:1], "relation customer is keyed by 'system', 'number', on names 'system': name each key column once"),
        ([ON[0], ("no", "number")], "the rows have no key column 'no'; their columns are"),
        ([("nr", "system"), ON[1]], "key column 'nr' of the rows is int64, 'system' of relation customer is string"),
    ]:
        with pytest.raises(BadInput, match=message):
            Lookups().look_up(rows, relation, on)


# From load to load


@pytest.mark.parametrize("join", JOINS)
@given(st.lists(st.tuples(loads, st.booleans()), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_an_answer_is_that_of_the_version_asked_for(join: str, asked: list[tuple[list[NaturalKey], bool]]) -> None:
    """The relation grows from load to load; now and then somebody asks an older version again."""
    lookups = Lookups(join, 1 << 18)
    versions = [customers(others=20)]
    for number, (keys, again) in enumerate(asked):
        for relation in [versions[-1], *(versions[:1] if again else [])]:
            answer = lookups.look_up(load_of(keys), relation, ON)
            expected = relation.look_up(load_of(keys), ON)
            assert answer.found.column("customer_key").to_pylist() == expected.column("customer_key").to_pylist()
            assert answer.created_by.to_pylist() == expected.column("_created_by").to_pylist()
        versions.append(grown(versions[-1], keys, f"load {number}"))
    lookups.close()


def grown(relation: Relation, keys: list[NaturalKey], load_id: str) -> Relation:
    fresh = pa.table(
        {"system": [key[0] for key in keys], "number": [key[1] for key in keys]}, schema=CUSTOMER.remove(2)
    )
    return relation.append_new(fresh.drop_null(), load_id, "customer_key")


def test_the_join_lives_on_and_has_learnt() -> None:
    relation, rows = customers(others=500), load_of([("elsewhere", number) for number in range(500)])
    lookups = Lookups()
    lookups.look_up(rows, relation, ON)
    reads = relation.counters.blocks_read
    assert reads > 0
    lookups.look_up(rows, relation, ON)
    newer = relation.append(pa.table([["web"], [1], [501]], schema=CUSTOMER), "load 1", highest=501)
    assert lookups.look_up(load_of([("web", 1)]), newer, ON).found.column(0).to_pylist() == [501]
    lookups.look_up(rows, newer, ON)
    assert relation.counters.blocks_read <= reads + 1, "segments are in memory; only the newest one was read"


def test_two_roles_of_one_relation_share_its_memory() -> None:
    relation, lookups = customers(others=500), Lookups()
    rows = pa.table({"buyer": list(range(500)), "seller": list(range(500)), "at": ["elsewhere"] * 500})
    lookups.look_up(rows, relation, [("at", "system"), ("buyer", "number")])
    reads = relation.counters.blocks_read
    lookups.look_up(rows, relation, [("at", "system"), ("seller", "number")])
    assert relation.counters.blocks_read == reads


def test_a_relation_that_has_outgrown_its_part_gets_another_join() -> None:
    lookups = Lookups(memory_bytes=1 << 20)
    small = customers()
    lookups.look_up(load_of([("shop", 1)]), small, ON)
    assert "all of it is held in memory" in lookups.describe()["customer"]
    count = 60_000
    columns = [["shop"] * count, list(range(count)), list(range(1, count + 1))]
    large = small.append(pa.table(columns, schema=CUSTOMER), "load 1", highest=count)
    assert lookups.look_up(load_of([("shop", 7)]), large, ON).found.column(0).to_pylist() == [8]
    assert "all of it is held in memory" not in lookups.describe()["customer"]


def many_customers(name: str, count: int) -> Relation:
    columns = [["shop"] * count, list(range(count)), list(range(1, count + 1))]
    return create_memory_relation(
        name, CUSTOMER, ("system", "number"), [pa.record_batch(columns, schema=CUSTOMER)], theta=1000
    )


@pytest.mark.parametrize("join", JOINS)
def test_all_relations_together_stay_within_the_memory(join: str) -> None:
    relations = [many_customers(f"customers {number}", 20_000) for number in range(3)]
    rows = load_of([("shop", int(number)) for number in np.random.default_rng(1).integers(0, 25_000, 2_000)])
    budget = 400_000
    lookups = Lookups(join, budget)
    for _ in range(3):
        for relation in relations:
            lookups.look_up(rows, relation, ON)
            assert lookups.memory_used <= budget
    if join != "meshjoin":  # it keeps nothing from load to load
        assert lookups.memory_used > budget / 4, "it is used, too"
    lookups.close()
    assert lookups.memory_used == 0


def test_a_small_relation_leaves_its_part_to_a_large_one() -> None:
    small, large = customers(others=5), many_customers("large", 400_000)
    lookups = Lookups("hash-partitioned", 16 << 20)
    rows = load_of([("shop", number) for number in range(0, 400_000, 10)])
    for _ in range(3):
        lookups.look_up(rows, small, ON)
        lookups.look_up(rows, large, ON)
    assert lookups.memory_used > 8 << 20


def test_relations_that_nobody_asks_any_more_go() -> None:
    lookups = Lookups()
    for number in range(MOST_RELATIONS + 3):
        lookups.look_up(load_of([("shop", 1)]), many_customers(f"customers {number}", 10), ON)
    assert set(lookups.describe()) == {f"customers {number}" for number in range(3, MOST_RELATIONS + 3)}


def test_a_join_that_failed_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    relation, lookups, rows = known_customers(), Lookups("hash-partitioned"), load_of([("web", 1)])
    with monkeypatch.context() as patch:
        patch.setattr(type(relation), "count_reads", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lookups.look_up(rows, relation, ON)
    assert lookups.look_up(rows, relation, ON).found.column(0).to_pylist() == [2]


def test_threads_may_share_it() -> None:
    relation, lookups = many_customers("shared", 5_000), Lookups(memory_bytes=1 << 17)

    def ask(seed: int) -> bool:
        numbers = np.random.default_rng(seed).integers(0, 6_000, 500)
        found = lookups.look_up(load_of([("shop", int(number)) for number in numbers]), relation, ON).found
        return bool(found.column(0).to_pylist() == [int(n) + 1 if n < 5_000 else None for n in numbers])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(12)))
