"""The correlate host on real Spark, against the join by definition."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from etl.errors import BadInput, CorruptFile, MissingFile, TerminalError
from etl.spark.correlate import EMPTY_STATE, Correlated, Correlation, CorrelationState, _check_groups, correlate
from etl.storage.durable import FileStamp
from tests.oracle import Row, inner_join, rows_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SIDES = (
    pa.schema([("place", pa.string()), ("number", pa.int64()), ("left_at", pa.timestamp("us", "UTC"))]),
    pa.schema([("place", pa.string()), ("amount", pa.int32()), ("right_at", pa.timestamp("us", "UTC"))]),
)
SPARK_SCHEMA = (
    "side int, row_0 struct<place: string, number: bigint, left_at: timestamp>, "
    "row_1 struct<place: string, amount: int, right_at: timestamp>, aside struct<feed: string, payload: string>"
)
ASIDE = -1
TaggedRow = tuple[int, Row]


def plan(folder: Path, groups: int = 2) -> Correlation:
    return Correlation(
        join="symmetric-hash",
        sides=SIDES,
        on=(("place", "place"),),
        groups=groups,
        folder=str(folder),
        event_times=("left_at", "right_at"),
    )


def batch_of(spark: SparkSession, rows: list[TaggedRow]) -> DataFrame:
    tagged = [
        (side, row if side == 0 else None, row if side == 1 else None, row if side == ASIDE else None)
        for side, row in rows
    ]
    return spark.createDataFrame(tagged, SPARK_SCHEMA)


def some_rows(seed: int, count: int = 150) -> list[TaggedRow]:
    chance = random.Random(seed)
    rows: list[TaggedRow] = []
    for number in range(count):
        place = None if chance.random() < 0.05 else f"place {chance.randrange(40)}"
        rows.append((chance.randrange(2), (place, number, NOON + timedelta(seconds=number))))
    return rows


def pairs_of(*outcomes: Correlated) -> Counter[Row]:
    return Counter(row for outcome in outcomes for row in rows_of(outcome.results.to_batches()))


def run_loads(spark: SparkSession, correlation: Correlation, loads: list[list[TaggedRow]]) -> list[Correlated]:
    outcomes: list[Correlated] = []
    state = EMPTY_STATE
    for number, rows in enumerate(loads):
        outcomes.append(correlate(batch_of(spark, rows), correlation, f"test/{number}", state, {}))
        state = outcomes[-1].state
    return outcomes


@pytest.mark.parametrize("groups", [1, 2, 7])
def test_several_loads_give_the_join_by_definition_whatever_the_order_and_the_groups(
    spark: SparkSession, tmp_path: Path, groups: int
) -> None:
    loads = [some_rows(seed) for seed in (1, 2, 3)]
    everything = [tagged for rows in loads for tagged in rows]
    left, right = ([row for side, row in everything if side == wanted] for wanted in (0, 1))
    expected = inner_join(left, right, [(0, 0)])
    for rows in loads:
        random.Random(groups).shuffle(rows)

    outcomes = run_loads(spark, plan(tmp_path, groups), loads)

    assert pairs_of(*outcomes) == expected
    assert sum(outcome.rows_in[0] for outcome in outcomes) == len(left)
    assert sum(outcome.rows_in[1] for outcome in outcomes) == len(right)
    assert set(outcomes[-1].state.snapshots) == set(range(groups))


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


def test_late_rows_come_back_and_are_not_joined(spark: SparkSession, tmp_path: Path) -> None:
    watermark = round(NOON.timestamp() * 1_000_000)
    early, punctual = NOON - timedelta(microseconds=1), NOON
    rows: list[TaggedRow] = [
        (0, ("here", 1, early)),
        (0, ("here", 2, punctual)),
        (0, ("here", 3, None)),
        (1, ("here", 4, early)),
        (ASIDE, ("left", "no row at all")),
    ]

    outcome = correlate(batch_of(spark, rows), plan(tmp_path), "test/0", EMPTY_STATE, {0: watermark})

    assert rows_of(outcome.late[0].to_batches()) == [("here", 1, early)]
    assert set(outcome.late) == {0}, "side 1 has no watermark"
    assert pairs_of(outcome) == Counter([("here", 2, punctual, "here", 4, early), ("here", 3, None, "here", 4, early)])
    assert outcome.aside.to_pylist() == [{"feed": "left", "payload": "no row at all"}]
    assert outcome.rows_in == {0: 3, 1: 1}
    assert outcome.state.event_time == {0: watermark, 1: watermark - 1}


def test_a_load_that_is_run_again_agrees_and_touches_no_file_of_the_first_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    [before] = run_loads(spark, plan(tmp_path), [some_rows(1)])
    rows = some_rows(2)

    first = correlate(batch_of(spark, rows), plan(tmp_path), "test/1", before.state, {})
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.snapshot")}
    second = correlate(batch_of(spark, rows[::-1]), plan(tmp_path), "test/1", before.state, {})

    assert pairs_of(first) == pairs_of(second)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files} == files
    first_names = {stamp.name for stamp in first.state.snapshots.values()}
    assert first_names.isdisjoint(stamp.name for stamp in second.state.snapshots.values())


def test_an_empty_load_keeps_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    left, right = (0, ("here", 1, NOON)), (1, ("here", 2, NOON))
    outcomes = run_loads(spark, plan(tmp_path), [[left], [], [right]])
    assert [outcome.results.num_rows for outcome in outcomes] == [0, 0, 1]


def test_a_damaged_snapshot_is_named(spark: SparkSession, tmp_path: Path) -> None:
    [outcome] = run_loads(spark, plan(tmp_path), [some_rows(1)])
    damaged = tmp_path / outcome.state.snapshots[1].name
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)

    with pytest.raises(CorruptFile, match=f"load test/1, group 1: file .*{damaged.name}"):
        correlate(batch_of(spark, some_rows(2)), plan(tmp_path), "test/1", outcome.state, {})


def test_a_lost_snapshot_is_named(spark: SparkSession, tmp_path: Path) -> None:
    [outcome] = run_loads(spark, plan(tmp_path), [some_rows(1)])
    lost = tmp_path / outcome.state.snapshots[0].name
    lost.unlink()
    with pytest.raises(MissingFile, match=lost.name):
        correlate(batch_of(spark, some_rows(2)), plan(tmp_path), "test/1", outcome.state, {})


def test_another_number_of_groups_is_refused_before_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    state = CorrelationState({0: FileStamp("a", 1, ""), 1: FileStamp("b", 1, "")}, {})
    with pytest.raises(BadInput, match=r"has 3 groups, but its snapshots in .* are of 2"):
        correlate(batch_of(spark, []), plan(tmp_path, groups=3), "test/1", state, {})


def test_merged_partitions_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match=r"spark\.sql\.adaptive\.enabled"):
        _check_groups(plan(tmp_path, groups=3), {0: FileStamp("a", 1, "")})


def test_a_plan_must_make_sense(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="groups is 0"):
        plan(tmp_path, groups=0)
    with pytest.raises(BadInput, match="2 sides, but event_times has 1"):
        Correlation("symmetric-hash", SIDES, (("place", "place"),), 1, str(tmp_path), (None,))
