"""Tagged rows for the correlate host, and loads of them."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from etl.spark.correlate import EMPTY_STATE, Correlated, Correlation, correlate
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


def plan(folder: Path, groups: int = 2, join: str = "symmetric-hash", **others: object) -> Correlation:
    return Correlation(
        join=join,
        sides=SIDES,
        on=(("place", "place"),),
        groups=groups,
        folder=str(folder),
        event_times=("left_at", "right_at"),
        **others,  # type: ignore[arg-type]
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


def joined(loads: list[list[TaggedRow]]) -> Counter[Row]:
    """By definition."""
    everything = [tagged for rows in loads for tagged in rows]
    left, right = ([row for side, row in everything if side == wanted] for wanted in (0, 1))
    return inner_join(left, right, [(0, 0)])
