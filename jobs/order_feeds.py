"""The demo pipeline's sources: two JSON-lines feeds, read as text, parsed and judged row by row inside Spark.

A line is read whole and parsed beside itself, so that a row that cannot be used is quarantined as it came.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DecimalType, IntegerType, StringType, StructType, TimestampType

from etl.spark.correlate import tagged

FEEDS = ("orders", "payments")
ALLOWED_LATENESS_MICROSECONDS = 3_600_000_000

MONEY = DecimalType(12, 2)
ORDERS = (
    StructType()
    .add("source_system", StringType())
    .add("order_no", StringType())
    .add("customer_no", StringType())
    .add("product_no", StringType())
    .add("quantity", IntegerType())
    .add("amount", MONEY)
    .add("ordered_at", TimestampType())
)
PAYMENTS = (
    StructType()
    .add("source_system", StringType())
    .add("payment_no", StringType())
    .add("order_no", StringType())
    .add("method", StringType())
    .add("paid_amount", MONEY)
    .add("paid_at", TimestampType())
)
EVENT_TIMES = ("ordered_at", "paid_at")
POSITIVE = {"orders": ("quantity", "amount"), "payments": ("paid_amount",)}


def side_schemas() -> tuple[pa.Schema, pa.Schema]:
    return to_arrow_schema(ORDERS, timezone="UTC"), to_arrow_schema(PAYMENTS, timezone="UTC")


def read_feeds(spark: SparkSession, folder: Path, files_per_load: int = 1) -> DataFrame:
    """Both feeds as one stream, parsed; each load takes so many files of each.

    Parsed here and not in each load, Spark is told once how.
    """
    orders, payments = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", files_per_load)
        .load(str(folder / feed))
        .select(sf.lit(feed).alias("feed"), sf.col("value").alias("line"))
        for feed in FEEDS
    )
    return parsed(orders.union(payments))


def parsed(lines: DataFrame) -> DataFrame:
    """Rows of (feed, line) as the correlate host takes them: good ones by side, malformed ones aside with a reason."""
    order, payment = (
        sf.when(sf.col("feed") == feed, sf.from_json("line", schema))
        for feed, schema in zip(FEEDS, (ORDERS, PAYMENTS), strict=True)
    )
    read = lines.select("feed", "line", order.alias("order"), payment.alias("payment"))
    detail = sf.coalesce(_defect("orders", "order", ORDERS), _defect("payments", "payment", PAYMENTS))
    judged = read.withColumn("detail", detail)
    side = sf.when(sf.col("detail").isNotNull(), -1).when(sf.col("feed") == "orders", 0).otherwise(1)
    aside = sf.struct("feed", "detail", sf.col("line").alias("payload"))
    return judged.select(*tagged(side, [sf.col("order"), sf.col("payment")], aside))


def _defect(feed: str, row: str, schema: StructType) -> Column:
    """What is wrong with a row of this feed, or null. A value that does not parse reads as null."""
    missing = sf.concat_ws(", ", *(sf.when(sf.col(f"{row}.{name}").isNull(), name) for name in schema.names))
    negative = sf.concat_ws(", ", *(sf.when(sf.col(f"{row}.{name}") <= 0, name) for name in POSITIVE[feed]))
    return sf.when(
        sf.col("feed") == feed,
        sf.when(missing != "", sf.concat(sf.lit("missing or unreadable: "), missing)).when(
            negative != "", sf.concat(sf.lit("not positive: "), negative)
        ),
    )
