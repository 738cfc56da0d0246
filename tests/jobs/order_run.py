"""The order pipeline for tests, also in a process of its own that can be killed: `python -m tests.jobs.order_run ...`.

Relations are compacted, versions dropped and partition groups moved after every load, so that a kill can hit that too.
As a program it prints a line when the
stream starts and one a load.
"""

from __future__ import annotations

import argparse
import threading
from importlib import import_module
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from etl.joins.parallel.rebalancing import Rebalancing
from etl.spark.session import local_session
from etl.storage.upkeep import Upkeep
from jobs.demo_feeds import FeedSettings
from jobs.order_feeds import FEEDS, parsed
from jobs.order_pipeline import OrderPipeline
from jobs.order_stream import run_stream
from warehouse.engine import connect
from warehouse.load_package import LoadPackage
from warehouse.schema import create_schema

EAGER = Upkeep(versions_kept=2, most_delta_files=1)
RESTLESS = Rebalancing(supply_threshold=0.5, consume_threshold=0.49, epoch_length=1, most_slots=4)
SMALL = FeedSettings(
    orders=1_000,
    files=12,
    customers=300,
    products=60,
    resent_orders=30,
    resent_payments=30,
    unknown_codes=25,
    malformed_orders=15,
    malformed_payments=15,
    late_orders=10,
    late_payments=10,
    lost_orders=10,
)


def pipeline_in(
    folder: Path,
    *,
    groups: int = 8,
    slots: int | None = None,
    name: str = "orders",
    shared_relations: Path | None = None,
) -> OrderPipeline:
    """A pipeline whose state lies in the folder, beside its warehouse; a given number of slots stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = connect(f"duckdb:///{folder / 'warehouse.duckdb'}")
    create_schema(engine)
    return OrderPipeline(
        folder / "pipeline",
        engine,
        groups=groups,
        slots=slots,
        slot_rows=120,
        rebalancing=RESTLESS if slots is None else None,
        name=name,
        shared_relations=shared_relations,
        upkeep=EAGER,
        upkeep_every=1,
    )


def rows_of_file(spark: SparkSession, feeds: Path, *numbers: int) -> DataFrame:
    """The rows that these files of both feeds hold, as a micro-batch brings them."""
    orders, payments = (
        spark.read.text([str(sorted((feeds / feed).iterdir())[number]) for number in numbers]).select(
            sf.lit(feed).alias("feed"), sf.col("value").alias("line")
        )
        for feed in FEEDS
    )
    return parsed(orders.union(payments))


def main() -> None:
    arguments = _arguments()
    pipeline = pipeline_in(
        arguments.folder, groups=arguments.groups, name=arguments.name, shared_relations=arguments.shared_relations
    )
    with pipeline.running() as run:
        threading.Thread(target=import_module, args=("great_expectations",)).start()
        settings = dict(setting.split("=", 1) for setting in arguments.spark)
        spark = local_session(
            "order-run",
            arguments.folder / "spark.log",
            arguments.master,
            spark__local__dir=str(arguments.folder / "scratch"),
            **settings,
        )
        print("started", flush=True)
        run_stream(
            spark,
            pipeline,
            run,
            arguments.feeds,
            arguments.folder / "checkpoint",
            arguments.files_per_load,
            after_load=_print_load,
        )
        spark.stop()


def _print_load(package: LoadPackage, seconds: float) -> None:
    print(f"load {package.load_id.batch_id} {seconds:.2f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("feeds", type=Path)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--files-per-load", type=int, default=1)
    parser.add_argument("--name", default="orders")
    parser.add_argument("--shared-relations", type=Path)
    parser.add_argument("--spark", action="append", default=[], help="a Spark setting, dots as double underscores")
    return parser.parse_args()


if __name__ == "__main__":
    main()
