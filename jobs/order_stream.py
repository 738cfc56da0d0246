"""The demo pipeline as a stream: Spark cuts the feeds into micro-batches, each of them is one load."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from etl.storage.run_lock import Run
from jobs.order_feeds import read_feeds
from jobs.order_load import run_load
from jobs.order_pipeline import OrderPipeline
from jobs.stream_position import position_of
from warehouse.load_package import LoadPackage

__all__ = ["run_stream"]


def run_stream(
    spark: SparkSession,
    pipeline: OrderPipeline,
    run: Run,
    feeds: Path,
    checkpoint: Path,
    files_per_load: int = 1,
    after_load: Callable[[LoadPackage, float], None] = lambda package, seconds: None,
) -> None:
    """Load all files that are there, so many of each feed at a time. `after_load` is told the package and its time."""
    failures: list[Exception] = []

    def load(rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        try:
            package = run_load(pipeline, run, rows, batch_id, position_of(checkpoint, batch_id))
        except Exception as failure:
            failures.append(failure)
            raise
        after_load(package, time.monotonic() - began)

    try:
        query = (
            read_feeds(spark, feeds, files_per_load)
            .writeStream.foreachBatch(load)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except StreamingQueryException:
        # Spark wraps what a load raised into pages of its own state; the load's own words say it better.
        if failures:
            raise failures[0] from None
        raise
