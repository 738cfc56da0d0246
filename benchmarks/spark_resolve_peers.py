"""Spark's own ways to look up keys of a stream in a table of Parquet files, each at the best settings that we found.

They join and hand the rows with their surrogate keys to the driver as Arrow; they number no new keys, write nothing and
load nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.key_streams import KEY

Join = Callable[[DataFrame, DataFrame], DataFrame]


class SparkJoin:
    """A subject: the stream is joined before `foreachBatch` sees it, or inside where a batch is needed to ask."""

    def __init__(self, spark: SparkSession, relation: Path, form: str) -> None:
        self._relation = spark.read.parquet(str(relation))
        self._join, self._in_batch = FORMS[form]
        if form == CACHED:
            self._relation = self._relation.cache()
            self._relation.count()
        self._answers: list[pa.Table] = []

    def on_stream(self, stream: DataFrame) -> DataFrame:
        return stream if self._in_batch else self._join(stream, self._relation)

    def take(self, batch: DataFrame, _batch_id: int) -> None:
        joined = self._join(batch, self._relation) if self._in_batch else batch
        self._answers.append(joined.toArrow())

    def answers(self) -> pa.Table:
        return pa.concat_tables([answer.select(["row", "surrogate"]) for answer in self._answers])


def _left(batch: DataFrame, relation: DataFrame) -> DataFrame:
    return batch.join(relation, list(KEY), "left")


def _shuffled_hash(batch: DataFrame, relation: DataFrame) -> DataFrame:
    """The batch is what a table is built of: R is larger."""
    return batch.hint("shuffle_hash").join(relation, list(KEY), "left")


def _semi_join_scan(batch: DataFrame, relation: DataFrame) -> DataFrame:
    """R is scanned with the batch's keys at hand; few rows are left, and those are joined."""
    asked = sf.broadcast(batch.select(*KEY).distinct())
    found = relation.join(asked, list(KEY), "left_semi")
    return batch.join(sf.broadcast(found), list(KEY), "left")


DEFAULT, SHUFFLED_HASH = "Spark, default join", "Spark, shuffled hash"
SEMI_JOIN, CACHED = "Spark, semi-join scan", "Spark, cached R, semi-join"

FORMS: dict[str, tuple[Join, bool]] = {
    DEFAULT: (_left, False),
    SHUFFLED_HASH: (_shuffled_hash, False),
    SEMI_JOIN: (_semi_join_scan, True),
    CACHED: (_semi_join_scan, True),
}
