"""Our subject of the resolve benchmark: a whole load for each micro-batch, as durable as in production.

Resolve the rows, commit the relation's next version with the new customers, write and publish the load package, load it
into DuckDB in one transaction with its row in the load ledger, retire old packages. The relation is a copy by hard
links of the one that was built once, because it grows.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from benchmarks.key_streams import KEY
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolve import AssignKeys, Resolution, Way, resolve
from etl.storage.durable import DurableFolder
from warehouse.engine import connect
from warehouse.load_package import LoadId, LoadPackages
from warehouse.loader import load
from warehouse.schema import arrow_schema, create_schema, fact_order

PIPELINE = "orders"
PACKAGES_KEPT = 3


@dataclass
class ResolvePipeline:
    """`relation` is copied below `folder`, where everything else is made too."""

    relation: Path
    folder: Path
    memory_bytes: int
    way: Way = "auto"
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """What each step of each load took."""

    def __post_init__(self) -> None:
        copy = self.folder / "customers"
        shutil.copytree(self.relation, copy, copy_function=os.link)
        self._customers = copy
        self._packages = LoadPackages(DurableFolder(self.folder / "packages"), PIPELINE)
        self._engine = connect(f"duckdb:///{self._warehouse}")
        create_schema(self._engine)
        keys = AssignKeys("customers", [(name, name) for name in KEY], "surrogate", gives="customer_key")
        self._plan = Resolution(keys=(keys,), memory_bytes=self.memory_bytes)
        self._expected_rows: int | None = None

    @property
    def _warehouse(self) -> Path:
        return self.folder / "warehouse.duckdb"

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """One load, for `foreachBatch`."""
        load_id, clock = LoadId(PIPELINE, batch_id), _Clock(self.seconds)
        customers = PROCESS_MEMORY.relation(self._customers)
        resolved = resolve(
            batch, self._plan, {"customers": customers}, str(load_id), way=self.way, expected_rows=self._expected_rows
        )
        self._expected_rows = resolved.rows.num_rows
        clock.lap("resolve")
        members = resolved.members["customers"]
        customers = customers.append(members.rows, str(load_id), members.highest)
        clock.lap("commit relation")
        tables = {"dim_customer": _new_customers(members.rows), "fact_order": _facts(resolved.rows)}
        attempt = "1"
        stamps = {name: self._packages.write_table(load_id, attempt, name, table) for name, table in tables.items()}
        counts = {name: table.num_rows for name, table in tables.items()}
        package = self._packages.publish(load_id, stamps, counts, {"customers": customers.version})
        clock.lap("publish package")
        load(self._engine, package)
        clock.lap("load warehouse")
        self._packages.retire(PACKAGES_KEPT)
        clock.lap("retire")

    def answers(self) -> tuple[pa.Table, pa.Table]:
        """All facts (order number and customer key), and all customers that were new."""
        with duckdb.connect(str(self._warehouse), read_only=True) as connection:
            facts = connection.execute("select order_no, customer_key from fact_order").to_arrow_table()
            customers = connection.execute("select * from dim_customer where customer_key > 0").to_arrow_table()
        return facts, customers


class _Clock:
    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self._seconds = seconds
        self._at = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self._seconds.setdefault(step, []).append(now - self._at)
        self._at = now


def _new_customers(members: pa.Table) -> pa.Table:
    source = pc.binary_join_element_wise("s", members.column("source").cast(pa.string()), "")
    columns = [members.column("surrogate"), source, members.column("key")]
    return pa.table(columns, names=["customer_key", "source_system", "customer_no"])


def _facts(rows: pa.Table) -> pa.Table:
    nothing = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    facts = rows.append_column("product_key", nothing).append_column("payment_method_key", nothing)
    for name in ("ordered_at", "paid_at"):  # the warehouse keeps UTC without a zone
        facts = facts.set_column(facts.column_names.index(name), name, facts.column(name).cast(pa.timestamp("us")))
    return facts.select(arrow_schema(fact_order).names)
