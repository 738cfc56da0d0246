"""The correlate host on real Spark, against the join by definition."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from etl import joins
from etl.errors import BadInput, CorruptFile, MemoryBudgetExceeded, TerminalError
from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import Rebalancing
from etl.spark.balance import Balance
from etl.spark.correlate import EMPTY_STATE, Correlation, CorrelationState, _check_slots, correlate
from etl.spark.group_inputs import GroupInputs
from etl.spark.group_state import GroupState, Section
from etl.storage.durable import DurableFolder
from tests.oracle import rows_of, window_join
from tests.spark.tagged_rows import (
    ASIDE,
    NOON,
    SIDES,
    TaggedRow,
    batch_of,
    joined,
    pairs_of,
    plan,
    run_loads,
    some_rows,
)


@pytest.mark.parametrize(
    ("groups", "slots", "where"),
    [(1, 1, "tasks"), (2, None, "tasks"), (7, 1, "tasks"), (7, 3, "tasks"), (16, 16, "tasks"), (7, None, "driver")],
)
def test_several_loads_give_the_join_by_definition_wherever_groups_are_worked_on(
    spark: SparkSession, tmp_path: Path, groups: int, slots: int | None, where: str
) -> None:
    loads = [some_rows(seed) for seed in (1, 2, 3)]
    sides = [side for rows in loads for side, _ in rows]
    expected = joined(loads)
    for rows in loads:
        random.Random(groups).shuffle(rows)

    outcomes = run_loads(spark, plan(tmp_path, groups, slots=slots, where=where), loads)

    assert pairs_of(*outcomes) == expected
    for side in (0, 1):
        assert sum(outcome.rows_in[side] for outcome in outcomes) == sides.count(side)
    placement = outcomes[-1].placement
    assert placement is not None
    assert placement.slots == (1 if where == "driver" else slots or 2), "as many as the session runs tasks at once"
    work = sum(sum(outcome.work.values()) for outcome in outcomes)
    assert work == len(sides) + expected.total()


def test_groups_move_and_slots_come_and_go_but_results_stay(spark: SparkSession, tmp_path: Path) -> None:
    """All rows of a load have one of few keys: a slot has more than it can do, its groups move, slots are added."""
    chance = random.Random(1)
    loads: list[list[TaggedRow]] = [
        [(chance.randrange(2), (f"place {chance.randrange(4)}", n, NOON)) for n in range(60)] for _ in range(5)
    ]
    loads += [[(0, ("place 1", 1, NOON))]] * 4
    settings = Rebalancing(supply_threshold=0.8, consume_threshold=0.5, most_slots=4, epoch_length=1)

    outcomes = run_loads(spark, plan(tmp_path, 16, slots=1, rebalancing=settings, slot_rows=200), loads)

    assert pairs_of(*outcomes) == joined(loads)
    slots = [outcome.placement.slots for outcome in outcomes if outcome.placement]
    assert slots[0] == 1
    assert max(slots) > 2
    assert slots[-1] < max(slots)
    reorganisations = [outcome.reorganisation for outcome in outcomes if outcome.reorganisation]
    assert any(move.source != move.target for each in reorganisations for move in each.moves)


def test_rows_wait_for_their_partner_in_the_snapshots_and_nowhere_else(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (0, ("here", 1, NOON)), (1, ("here", 2, NOON))
    first = correlate(batch_of(spark, [left]), plan(tmp_path), "test/0", EMPTY_STATE, {})
    assert first.results.num_rows == 0

    # Through JSON, as the load package keeps it.
    state = CorrelationState.from_json(first.state.to_json())
    with_state = correlate(batch_of(spark, [right]), plan(tmp_path), "test/1", state, {})
    without_state = correlate(batch_of(spark, [right]), plan(tmp_path), "test/1", EMPTY_STATE, {})

    assert pairs_of(with_state) == Counter([left[1] + right[1]])
    assert without_state.results.num_rows == 0


@pytest.mark.parametrize("where", ["tasks", "driver"])
def test_late_rows_come_back_and_are_not_joined(spark: SparkSession, tmp_path: Path, where: str) -> None:
    watermark = round(NOON.timestamp() * 1_000_000)
    early, punctual = NOON - timedelta(microseconds=1), NOON
    rows: list[TaggedRow] = [
        (0, ("here", 1, early)),
        (0, ("here", 2, punctual)),
        (0, ("here", 3, None)),
        (1, ("here", 4, early)),
        (ASIDE, ("left", "no row at all")),
    ]

    outcome = correlate(batch_of(spark, rows), plan(tmp_path, where=where), "test/0", EMPTY_STATE, {0: watermark})

    assert rows_of(outcome.late[0].to_batches()) == [("here", 1, early)]
    assert set(outcome.late) == {0}, "side 1 has no watermark"
    assert pairs_of(outcome) == Counter([("here", 2, punctual, "here", 4, early), ("here", 3, None, "here", 4, early)])
    assert outcome.aside.to_pylist() == [{"feed": "left", "payload": "no row at all"}]
    assert outcome.rows_in == {0: 3, 1: 1}
    assert outcome.state.event_time == {0: watermark, 1: watermark - 1}


def test_watermarks_reach_the_operators_which_let_go_of_what_nothing_can_meet(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A window of ten seconds over loads of ten: the state stays that of two loads, the results are exact."""
    chance = random.Random(5)
    seconds, windows = 10, (10_000_000, 10_000_000)

    def row(load: int, number: int) -> TaggedRow:
        moment = NOON + timedelta(seconds=load * seconds + number / 20)
        return chance.randrange(2), (f"place {chance.randrange(5)}", number, moment)

    loads = [[row(load, number) for number in range(200)] for load in range(6)]
    settings: dict[str, object] = {"event_times": ("left_at", "right_at"), "windows": windows}
    settings |= {"row_blocks": 2**30, "block_bytes": 1000}  # blocks of some rows: they leave whole
    correlation = plan(tmp_path, 1, join="bucketed-window", settings=settings)
    outcomes = []
    waiting: list[int] = []
    state = EMPTY_STATE
    for number, rows in enumerate(loads):
        watermark = round((NOON + timedelta(seconds=number * seconds)).timestamp() * 1_000_000)
        marks = {0: watermark, 1: watermark}
        outcomes.append(correlate(batch_of(spark, rows), correlation, f"test/{number}", state, marks))
        state = CorrelationState.from_json(outcomes[-1].state.to_json())
        waiting.append(rows_waiting(tmp_path, state))

    left, right = ([row for rows in loads for side, row in rows if side == wanted] for wanted in (0, 1))
    assert pairs_of(*outcomes) == window_join(left, right, [(0, 0)], (2, 2), windows)
    assert not any(outcome.late for outcome in outcomes)
    assert waiting[0] == 200
    assert max(waiting) <= 2 * 200


def rows_waiting(folder: Path, state: CorrelationState) -> int:
    """Rows that the one group's operator holds, found by restoring it."""
    durable = DurableFolder(folder)
    operator = joins.restore(joins.Snapshot.from_bytes(state.groups[0].base.read(durable)))
    for section in state.groups[0].log:
        GroupInputs.from_buffer(section.read(durable), section.file).offer_to(operator, lambda _: None)
    tables = operator.snapshot().state.tables
    return sum(batch.num_rows for name, batches in tables.items() if name.startswith("side ") for batch in batches)


def test_a_load_that_is_run_again_agrees_and_touches_no_file_of_the_first_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    [before] = run_loads(spark, plan(tmp_path), [some_rows(1)])
    rows = some_rows(2)

    first = correlate(batch_of(spark, rows), plan(tmp_path), "test/1", before.state, {})
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.groups")}
    second = correlate(batch_of(spark, rows[::-1]), plan(tmp_path), "test/1", before.state, {})

    assert pairs_of(first) == pairs_of(second)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == files
    assert first.state.file_names() & second.state.file_names() == before.state.file_names()
    assert first.state.file_names() <= {path.relative_to(tmp_path).as_posix() for path in files}


def test_an_empty_load_keeps_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (0, ("here", 1, NOON)), (1, ("here", 2, NOON))
    outcomes = run_loads(spark, plan(tmp_path), [[left], [], [right]])
    assert [outcome.results.num_rows for outcome in outcomes] == [0, 0, 1]


def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """In a folder of another name, so that no worker has the operators."""
    [outcome] = run_loads(spark, plan(tmp_path / "here", groups=1), [some_rows(1)])
    (tmp_path / "here").rename(tmp_path / "there")
    damaged = tmp_path / "there" / outcome.state.groups[0].log[0].file
    damaged.write_bytes(damaged.read_bytes()[::-1])

    with pytest.raises(CorruptFile, match=f"load test/1, slot 0: group 0: file .*{damaged.name}"):
        correlate(batch_of(spark, some_rows(2)), plan(tmp_path / "there", groups=1), "test/1", outcome.state, {})


def test_the_driver_says_what_is_wrong_as_a_task_would(spark: SparkSession, tmp_path: Path) -> None:
    small = plan(tmp_path, groups=1, where="driver", memory_bytes=10_000, settings={"block_bytes": 100})
    with pytest.raises(MemoryBudgetExceeded, match="load test/0, group 0: symmetric-hash"):
        correlate(batch_of(spark, some_rows(1, count=1000)), small, "test/0", EMPTY_STATE, {})


def test_rows_that_lack_a_column_are_refused_before_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    renamed = batch_of(spark, []).withColumn("row_1", sf.struct(sf.lit("here").alias("town")))
    with pytest.raises(BadInput, match="row_1 of the tagged rows has no column 'place', which side 1"):
        correlate(renamed, plan(tmp_path), "test/0", EMPTY_STATE, {})


def test_another_number_of_groups_is_refused_before_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    waiting = GroupState(Section("a", 0, 1, ""))
    state = CorrelationState({0: waiting}, {}, Balance(Placement.even(2, 1)))
    with pytest.raises(BadInput, match=r"has 3 groups, but its state in .* is of 2"):
        correlate(batch_of(spark, []), plan(tmp_path, groups=3), "test/1", state, {})


def test_merged_partitions_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match=r"spark\.sql\.adaptive\.enabled"):
        _check_slots(plan(tmp_path, groups=3), Placement.even(3, 3), {0})


def test_the_state_survives_json() -> None:
    section = Section("orders/00000001/slot", 5, 7, "ff")
    groups = {3: GroupState(section, (section,), ("orders/00000001/run.arrow",)), 11: GroupState(section)}
    state = CorrelationState(groups, {0: 5, 1: -2}, Balance(Placement(12, 2, (0, 1) * 6), 9, {3: 100}))
    assert CorrelationState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert CorrelationState.from_json(json.loads(json.dumps(EMPTY_STATE.to_json()))) == EMPTY_STATE
    assert state.file_names() == {section.file, "orders/00000001/run.arrow"}


def test_a_state_from_before_there_were_logs_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A package of the first format names a whole snapshot file for each group."""
    stored: dict[str, object] = {"snapshots": {}, "event_time": {"0": 1}}
    schemas, folder = list(SIDES), DurableFolder(tmp_path)
    for group in (0, 1):
        operator = joins.build("symmetric-hash", sides=schemas, on=[("place", "place")])
        row = pa.RecordBatch.from_pylist([{"place": "here", "number": 1}], SIDES[0])
        operator.offer(joins.Rows(0, row), lambda _: None)
        stamp = folder.put(f"test/0/group-{group}.snapshot", [operator.snapshot().to_bytes()])
        cast(dict[str, object], stored["snapshots"])[str(group)] = list(stamp)
    state = CorrelationState.from_json(stored)

    outcome = correlate(batch_of(spark, [(1, ("here", 2, NOON))]), plan(tmp_path), "test/1", state, {})

    assert pairs_of(outcome) == Counter([("here", 1, None, "here", 2, NOON)])
    assert len(state.file_names()) == 2


def test_a_plan_must_make_sense(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="groups is 0"):
        plan(tmp_path, groups=0)
    with pytest.raises(BadInput, match="slots is 0"):
        plan(tmp_path, slots=0)
    with pytest.raises(BadInput, match="where is 'here', it can be 'tasks' or 'driver'"):
        plan(tmp_path, where="here")
    with pytest.raises(BadInput, match="2 sides, but event_times has 1"):
        Correlation("symmetric-hash", SIDES, (("place", "place"),), 1, str(tmp_path), (None,))
