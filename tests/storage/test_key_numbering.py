"""Surrogate keys given by the relation itself."""

import pyarrow as pa
import pytest

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered


def natural(numbers: list[int]) -> pa.Table:
    return pa.Table.from_batches([numbered(numbers).drop_columns(["surrogate"])])


@pytest.fixture
def relation() -> Relation:
    return create_memory_relation("customers", SCHEMA, KEY, theta=3, partition="range")


def test_new_keys_get_the_next_numbers_whatever_the_order_of_the_rows(relation: Relation) -> None:
    first = relation.append_new(natural([5, 3, 5, 9]), "load 1", "surrogate")
    other = create_memory_relation("customers", SCHEMA, KEY, theta=3, partition="range")
    assert all_rows(first) == all_rows(other.append_new(natural([9, 9, 3, 5]), "load 1", "surrogate"))
    assert sorted(row[2] for row in all_rows(first)) == [1, 2, 3]
    second = first.append_new(natural([3, 4]), "load 2", "surrogate")
    assert {row[1]: row[2] for row in all_rows(second)}[4] == 4
    assert (second.rows, second.highest) == (4, 4)


def test_the_loser_of_a_race_numbers_only_what_is_still_new(relation: Relation) -> None:
    relation.append_new(natural([1, 2]), "load 1", "surrogate")
    after = relation.append_new(natural([2, 3]), "load 2", "surrogate")
    assert (after.version, after.highest) == (3, 3)
    assert after.brought("load 2").column("number").to_pylist() == [3]


def test_a_replay_changes_nothing(relation: Relation) -> None:
    first = relation.append_new(natural([1, 2]), "load 1", "surrogate")
    first.append_new(natural([7]), "load 2", "surrogate")
    again = relation.append_new(natural([8]), "load 1", "surrogate")
    assert (again.version, all_rows(again)) == (2, all_rows(first))


def test_a_load_without_new_keys_is_remembered(relation: Relation) -> None:
    first = relation.append_new(natural([1]), "load 1", "surrogate")
    second = first.append_new(natural([1]), "load 2", "surrogate")
    assert (second.version, second.rows, second.find("load 2")) == (3, 1, 3)


def test_rows_that_cannot_be_numbered_are_refused(relation: Relation) -> None:
    with pytest.raises(BadInput, match="no column 'nothing' beside its key"):
        relation.append_new(natural([1]), "load 1", "nothing")
    with pytest.raises(BadInput, match="no column 'number' beside its key"):
        relation.append_new(natural([1]), "load 1", "number")
    with pytest.raises(BadInput, match=r"have the columns \['country', 'number'\] in their types, not"):
        relation.append_new(numbered([1]), "load 1", "surrogate")
    rows = natural([1]).set_column(1, SCHEMA.field("number"), pa.nulls(1, pa.int32()))
    with pytest.raises(BadInput, match="'number' is null in 1 rows"):
        relation.append_new(rows, "load 1", "surrogate")
    assert relation.at().version == 1
