"""The star schema: dimensions, the fact table, the quarantine and the load ledger.

One source of truth: the tables below. The statements in `sql/schema` are rendered from them by `python -m
warehouse.schema`, they are what creates the schema, and a test compares the two. So there is SQL to read and
to run without Python, constraints included, and nothing is written by hand twice.

Invariants: each dimension has the unknown member under key 0; a natural key has one surrogate key; a payment
of an order is one fact; a load has one row in the ledger. Timestamps are UTC without a zone, because DuckDB's
functions on zoned ones need an extension that its package lacks. The statements suit DuckDB and PostgreSQL.

Limits: no foreign keys, as DuckDB cannot update a row that one references; `sql/inspect/orphan_facts.sql`
looks for what they would have refused. No unique business key of facts either: its index would take more time than the
rest of a load and grow with the table. The pipeline's relation of loaded orders and the ledger keep facts single, and
`sql/inspect/duplicates.sql` looks.
"""

from typing import TypeVar

import pyarrow as pa
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Column,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from warehouse import sql_files

__all__ = [
    "UNKNOWN_KEY",
    "dim_customer",
    "dim_product",
    "dim_payment_method",
    "fact_order",
    "quarantine",
    "load_ledger",
    "metadata",
    "create_schema",
    "arrow_schema",
]

Value = TypeVar("Value")

UNKNOWN_KEY = 0
FILLED_BY_LOADER = frozenset({"created_by", "load_id"})
MONEY = Numeric(12, 2)

metadata = MetaData()


def _column(name: str, kind: TypeEngine[Value] | type[TypeEngine[Value]]) -> Column[Value]:
    return Column(name, kind, nullable=False, autoincrement=False)


dim_customer = Table(
    "dim_customer",
    metadata,
    _column("customer_key", BigInteger),
    _column("source_system", String),
    _column("customer_no", String),
    _column("created_by", String),
    PrimaryKeyConstraint("customer_key"),
    UniqueConstraint("source_system", "customer_no"),
)

dim_product = Table(
    "dim_product",
    metadata,
    _column("product_key", BigInteger),
    _column("source_system", String),
    _column("product_no", String),
    _column("created_by", String),
    PrimaryKeyConstraint("product_key"),
    UniqueConstraint("source_system", "product_no"),
)

dim_payment_method = Table(
    "dim_payment_method",
    metadata,
    _column("payment_method_key", BigInteger),
    _column("code", String),
    _column("label", String),
    _column("created_by", String),
    PrimaryKeyConstraint("payment_method_key"),
    UniqueConstraint("code"),
)

fact_order = Table(
    "fact_order",
    metadata,
    _column("source_system", String),
    _column("order_no", String),
    _column("payment_no", String),
    _column("customer_key", BigInteger),
    _column("product_key", BigInteger),
    _column("payment_method_key", BigInteger),
    _column("quantity", Integer),
    _column("amount", MONEY),
    _column("paid_amount", MONEY),
    _column("ordered_at", DateTime),
    _column("paid_at", DateTime),
    _column("load_id", String),
)

quarantine = Table(
    "quarantine",
    metadata,
    _column("load_id", String),
    _column("feed", String),
    _column("reason", String),
    _column("detail", String),
    _column("payload", String),
)

load_ledger = Table(
    "load_ledger",
    metadata,
    _column("pipeline", String),
    _column("batch_id", BigInteger),
    _column("load_id", String),
    _column("package_checksum", String),
    _column("fact_rows", BigInteger),
    _column("customer_rows", BigInteger),
    _column("product_rows", BigInteger),
    _column("quarantine_rows", BigInteger),
    _column("counts", JSON),
    _column("loaded_at", DateTime),
    PrimaryKeyConstraint("pipeline", "batch_id"),
)


def create_schema(engine: Engine) -> None:
    """Creates what is missing, the unknown members included; does nothing to what is there."""
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(text(sql_files.read("schema", table.name)))
        for name in sql_files.names("schema"):
            if name.startswith("unknown_"):
                connection.execute(text(sql_files.read("schema", name)))


def arrow_schema(table: Table) -> pa.Schema:
    """The columns of a load package's table: the warehouse's, without those that the loader fills in."""
    return pa.schema(
        [
            pa.field(column.name, _arrow_type(column.type), nullable=bool(column.nullable))
            for column in table.columns
            if column.name not in FILLED_BY_LOADER
        ]
    )


def render(table: Table) -> str:
    """The statement that creates the table, as it stands in `sql/schema`."""
    postgresql = URL.create("postgresql").get_dialect()()  # it writes types that DuckDB reads as well
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=postgresql))
    return "\n".join(line.replace("\t", "    ").rstrip() for line in statement.strip().splitlines()) + ";\n"


def _arrow_type(kind: TypeEngine[object]) -> pa.DataType:
    match kind:
        case BigInteger():
            return pa.int64()
        case Integer():
            return pa.int32()
        case Numeric(precision=int() as precision, scale=int() as scale):
            return pa.decimal128(precision, scale)
        case DateTime():
            return pa.timestamp("us")
        case String():
            return pa.string()
    raise TypeError(f"no Arrow type stands for the column type {kind!r}: add it here")


def _write_sql_files() -> None:
    for table in metadata.sorted_tables:
        (sql_files.ROOT / "schema" / f"{table.name}.sql").write_text(render(table), encoding="utf-8")


if __name__ == "__main__":
    _write_sql_files()
