"""The resolve host on real Spark: both ways, with any number of partitions, give the same to the last key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from etl.errors import BadInput
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolve import AssignKeys, DropDuplicates, Resolution, ResolvedLoad, TranslateCodes, resolve
from etl.storage.lookup_store import create_relation
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.code_translation import CodeColumn, UnknownCode, UnknownCodesFound

PEOPLE = pa.schema([("system", pa.string()), ("number", pa.int64()), ("person_key", pa.int64()), ("name", pa.string())])
THINGS = pa.schema([("code", pa.string()), ("thing_key", pa.int32())])
SALES = pa.schema([("system", pa.string()), ("sale", pa.int64())])
CODES = pa.schema([("code_set", pa.string()), ("code", pa.string()), ("code_key", pa.int64())])
ROWS = pa.schema(
    [
        ("system", pa.string()),
        ("sale", pa.int64()),
        ("buyer", pa.int64()),
        ("buyer_name", pa.string()),
        ("seller", pa.int64()),
        ("thing", pa.string()),
        ("method", pa.string()),
        ("at", pa.int32()),
    ]
)
PLAN = Resolution(
    codes=TranslateCodes(
        "codes", (CodeColumn("method", "method", [("code_key", "method_key")]),), UnknownCode.QUARANTINE
    ),
    duplicates=DropDuplicates("sales", [("system", "system"), ("sale", "sale")], ("at",)),
    keys=(
        AssignKeys(
            "people", [("system", "system"), ("buyer", "number")], "person_key", [("buyer_name", "name")], "buyer_key"
        ),
        AssignKeys(
            "people", [("system", "system"), ("seller", "number")], "person_key", [("buyer_name", "name")], "seller_key"
        ),
        AssignKeys("things", [("thing", "code")], "thing_key", marks_new="is_new_thing"),
    ),
    memory_bytes=1 << 22,
)
Relations = Mapping[str, Relation]


def relations_in(folder: Path, known_people: int = 0) -> Relations:
    known = [["web"] * known_people, range(known_people), range(1, known_people + 1), ["somebody"] * known_people]
    methods = [["method"] * 2, ["CC", "BT"], [1, 2]]
    return {
        "people": create_relation(
            folder / "people",
            "people",
            PEOPLE,
            ("system", "number"),
            [pa.record_batch(known, schema=PEOPLE)],
            theta=16,
            highest=known_people,
        ),
        "things": create_relation(folder / "things", "things", THINGS, ("code",), theta=16),
        "sales": create_relation(folder / "sales", "sales", SALES, ("system", "sale"), theta=16),
        "codes": create_relation(
            folder / "codes", "codes", CODES, ("code_set", "code"), [pa.record_batch(methods, schema=CODES)]
        ),
    }


def some_rows(seed: int, count: int = 400) -> pa.Table:
    """With nulls in keys, duplicates that differ, unknown codes, and people who buy and sell."""
    chance = np.random.default_rng(seed)

    def some(values: np.ndarray[tuple[int], np.dtype[np.int64]], nulls: float) -> list[int | None]:
        return [None if chance.random() < nulls else int(value) for value in values]

    buyer = some(chance.integers(0, 150, count), 0.03)
    return pa.table(
        [
            pa.array(chance.choice(["web", "shop"], count)),
            some(chance.integers(0, count, count), 0.02),
            buyer,
            [None if number is None else f"buyer {number % 7}" for number in buyer],
            some(chance.integers(100, 250, count), 0.03),
            [None if number is None else f"T{number}" for number in some(chance.integers(0, 40, count), 0.1)],
            pa.array(chance.choice(["CC", "BT", "??"], count, p=[0.5, 0.45, 0.05])),
            chance.integers(0, 5, count),
        ],
        schema=ROWS,
    )


def frame_of(spark: SparkSession, rows: pa.Table, partitions: int) -> DataFrame:
    """The rows in so many Spark partitions, dealt out in turn."""
    return spark.createDataFrame(rows).repartition(partitions)


def committed(relations: Relations, resolved: ResolvedLoad, load_id: str) -> Relations:
    learnt = {
        name: relations[name].append(members.rows, load_id, members.highest)
        for name, members in resolved.members.items()
    }
    return {**relations, **learnt}


def sorted_rows(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def assert_same(one: ResolvedLoad, other: ResolvedLoad, *, in_order: bool = True) -> None:
    if in_order:
        assert one.rows.equals(other.rows)
        assert one.quarantined.equals(other.quarantined)
    assert sorted_rows(one.rows) == sorted_rows(other.rows)
    assert sorted_rows(one.quarantined) == sorted_rows(other.quarantined)
    assert one.duplicates == other.duplicates
    assert one.versions == other.versions
    assert {name: (members.rows.to_pylist(), members.highest) for name, members in one.members.items()} == {
        name: (members.rows.to_pylist(), members.highest) for name, members in other.members.items()
    }


@pytest.mark.parametrize("partitions", [1, 2, 7, 16])
def test_both_ways_give_the_same_over_several_loads_and_when_run_again(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    relations = relations_in(tmp_path, known_people=100)
    plan = replace(PLAN, partitions=partitions)
    for number in range(2):
        rows, load_id = some_rows(number), f"sales/{number}"
        straight = resolve(rows, PLAN, relations, load_id)
        batch = frame_of(spark, rows, partitions)
        in_driver = resolve(batch, plan, relations, load_id, way="driver")
        in_tasks = resolve(batch, plan, relations, load_id, way="tasks")
        assert in_driver.rows.schema == in_tasks.rows.schema
        assert_same(in_driver, in_tasks)
        assert_same(straight, in_tasks, in_order=False)
        assert straight.rows.num_rows > 100
        assert straight.quarantined.num_rows > 5
        assert straight.duplicates > 50

        relations = committed(relations, straight, load_id)
        for way in ("driver", "tasks"):
            again = resolve(batch, plan, relations, load_id, way=way)
            assert again.rows.equals(in_driver.rows), "what a load brought is new to it for ever"
            assert all(members.rows.num_rows == 0 for members in again.members.values())


def test_keys_are_dense_and_one_person_has_one_key_whether_buying_or_selling(tmp_path: Path) -> None:
    relations = relations_in(tmp_path)
    resolved = resolve(some_rows(1), PLAN, relations, "sales/1")
    roles = [
        (row["system"], row[role], row[f"{role}_key"])
        for row in resolved.rows.to_pylist()
        for role in ("buyer", "seller")
    ]
    key_of = {(system, number): key for system, number, key in roles if number is not None}
    assert all(key == key_of[system, number] if number is not None else key == 0 for system, number, key in roles)
    assert sorted(key_of.values()) == list(range(1, len(key_of) + 1))
    assert resolved.members["people"].highest == len(key_of)
    things = {row["thing"]: row["thing_key"] for row in resolved.rows.to_pylist() if row["thing"] is not None}
    assert sorted(things.values()) == list(range(1, len(things) + 1))
    assert all(row["is_new_thing"] == (row["thing"] is not None) for row in resolved.rows.to_pylist())


def test_a_quarantined_row_leaves_no_trace(tmp_path: Path) -> None:
    relations = relations_in(tmp_path)
    rows = some_rows(1, 50).set_column(6, "method", pa.array(["??"] * 50))
    resolved = resolve(rows, PLAN, relations, "sales/1")
    assert resolved.quarantined.equals(rows)
    assert resolved.rows.num_rows == 0
    assert all(members.rows.num_rows == 0 for members in resolved.members.values())


@pytest.mark.parametrize("way", ["driver", "tasks"])
def test_a_batch_without_rows_gives_tables_without_rows(spark: SparkSession, tmp_path: Path, way: str) -> None:
    relations = relations_in(tmp_path)
    full = resolve(some_rows(1), PLAN, relations, "sales/1")
    empty = resolve(
        spark.createDataFrame(some_rows(1).slice(0, 0)),
        PLAN,
        relations,
        "sales/1",
        way=way,  # type: ignore[arg-type]
    )
    assert empty.rows.schema == full.rows.schema
    assert (empty.rows.num_rows, empty.quarantined.num_rows, empty.duplicates) == (0, 0, 0)


@pytest.mark.parametrize("steps", ["codes", "duplicates", "keys"])
def test_each_step_works_alone(spark: SparkSession, tmp_path: Path, steps: str) -> None:
    relations, batch = relations_in(tmp_path), frame_of(spark, some_rows(3), 3)
    plan = Resolution(**{steps: getattr(PLAN, steps)}, partitions=3)
    in_driver, in_tasks = (resolve(batch, plan, relations, "sales/1", way=way) for way in ("driver", "tasks"))
    assert_same(in_driver, in_tasks)
    assert set(in_driver.versions) == set(plan.relations)


def test_the_number_of_rows_chooses_the_way(spark: SparkSession, tmp_path: Path) -> None:
    """Only the driver's way reads in this process."""
    relations, batch = relations_in(tmp_path, known_people=500), frame_of(spark, some_rows(3, 60), 2)
    plan = Resolution(keys=PLAN.keys[:1], driver_rows=59)
    counted = resolve(batch, plan, relations, "sales/1")
    assert relations["people"].counters.blocks_read == 0
    guessed = resolve(batch, plan, relations, "sales/1", expected_rows=59)
    assert relations["people"].counters.blocks_read > 0
    assert_same(counted, guessed)


def test_an_error_in_a_task_is_the_error_that_the_driver_would_have_raised(spark: SparkSession, tmp_path: Path) -> None:
    relations, batch = relations_in(tmp_path), frame_of(spark, some_rows(3), 2)
    assert PLAN.codes is not None
    plan = replace(PLAN, codes=replace(PLAN.codes, unknown=UnknownCode.FAIL), partitions=2)
    with pytest.raises(
        UnknownCodesFound, match=r"load sales/1, partition [01]: column 'method': relation codes has no code"
    ):
        resolve(batch, plan, relations, "sales/1", way="tasks")


def test_what_cannot_be_resolved_is_named(spark: SparkSession, tmp_path: Path) -> None:
    relations, rows = relations_in(tmp_path), some_rows(3, 10)
    without_things = {name: relation for name, relation in relations.items() if name != "things"}
    in_memory = {**relations, "things": create_memory_relation("things", THINGS, ("code",))}
    twice = replace(PLAN, keys=(PLAN.keys[0], replace(PLAN.keys[1], attributes=())))
    for plan, given, batch, way, message in [
        (
            PLAN,
            without_things,
            rows,
            "auto",
            "asks relation 'things', which was not given: there are 'people', 'sales'",
        ),
        (PLAN, relations, rows, "tasks", "load sales/1: its rows are in the driver already"),
        (PLAN, in_memory, frame_of(spark, rows, 1), "tasks", "load sales/1: relation things is in memory, where"),
        (twice, relations, rows, "auto", "two steps bring members of relation people in different columns"),
        (
            replace(PLAN, keys=(replace(PLAN.keys[0], gives="thing"),)),
            relations,
            rows,
            "auto",
            "the rows would have two columns 'thing': let the keys of people give another",
        ),
    ]:
        with pytest.raises(BadInput, match=message):
            resolve(batch, plan, given, "sales/1", way=way)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a resolution without codes, duplicates and keys has nothing to do"):
        Resolution()


def test_look_ups_live_on_in_the_driver(tmp_path: Path) -> None:
    relations = relations_in(tmp_path, known_people=500)
    plan = Resolution(keys=PLAN.keys[:1])
    reads = []
    for number in range(3):
        resolve(some_rows(number), plan, relations, f"sales/{number}")
        reads.append(relations["people"].counters.blocks_read)
    assert reads[0] > 0
    assert reads[2] - reads[1] <= reads[0] / 10


def test_relations_stay_open_and_move_on(tmp_path: Path) -> None:
    relation = relations_in(tmp_path)["things"]
    first = PROCESS_MEMORY.relation(tmp_path / "things")
    relation.append(pa.table([["T1"], [1]], schema=THINGS), "sales/1", highest=1)
    second = PROCESS_MEMORY.relation(tmp_path / "things")
    assert (first.version, second.version) == (1, 2)
    assert first.opening is second.opening
    assert PROCESS_MEMORY.relation(tmp_path / "things", version=1).rows == 0
