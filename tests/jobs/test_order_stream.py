"""The stream around the loads: where it read to is in the package, and a foreign checkpoint is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.errors import TerminalError
from jobs.demo_feeds import FeedSettings, write_feeds
from jobs.order_pipeline import OrderPipeline
from jobs.order_stream import run_stream
from tests.jobs.order_run import pipeline_in
from tests.jobs.warehouse_contents import contents_of
from warehouse.load_package import LoadPackage

NOTHING_ODD = dict.fromkeys(
    ("resent_orders", "resent_payments", "unknown_codes", "malformed_orders", "malformed_payments"), 0
) | dict.fromkeys(("late_orders", "late_payments", "lost_orders"), 0)


@pytest.fixture
def pipeline(tmp_path: Path) -> OrderPipeline:
    write_feeds(tmp_path / "feeds", FeedSettings(orders=60, files=2, **NOTHING_ODD))
    return pipeline_in(tmp_path)


def streamed(spark: SparkSession, pipeline: OrderPipeline) -> list[LoadPackage]:
    """The packages of the loads that a run did, or found done."""
    folder = pipeline.folder.parent
    packages: list[LoadPackage] = []
    with pipeline.running() as run:
        run_stream(
            spark,
            pipeline,
            run,
            folder / "feeds",
            folder / "checkpoint",
            after_load=lambda package, _: packages.append(package),
        )
    return packages


def test_a_load_that_spark_repeats_is_done_once(spark: SparkSession, pipeline: OrderPipeline, tmp_path: Path) -> None:
    first = streamed(spark, pipeline)
    before = contents_of(tmp_path / "warehouse.duckdb")
    assert [package.load_id.batch_id for package in first] == [0, 1]
    for package in first:
        position = package.details["position"]
        assert isinstance(position, dict)
        assert [json.loads(offset)["logOffset"] for offset in position["offsets"]] == [package.load_id.batch_id] * 2
    assert streamed(spark, pipeline) == [], "there is nothing left to read"
    (tmp_path / "checkpoint" / "commits" / "1").unlink()  # as if it had died before Spark wrote that down
    assert streamed(spark, pipeline) == first[1:]
    assert contents_of(tmp_path / "warehouse.duckdb") == before


def test_a_checkpoint_that_does_not_belong_to_the_packages_is_noticed(
    spark: SparkSession, pipeline: OrderPipeline, tmp_path: Path
) -> None:
    """A new checkpoint counts from 0 again: its loads have numbers of loads that were done, and other rows."""
    streamed(spark, pipeline)
    before = contents_of(tmp_path / "warehouse.duckdb")
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(TerminalError, match=r"orders/00000000 was published from .*do not belong together"):
        streamed(spark, pipeline)
    assert contents_of(tmp_path / "warehouse.duckdb") == before
