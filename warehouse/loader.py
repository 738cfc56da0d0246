"""Loads a frozen package into the warehouse, exactly once.

Idea: one transaction holds the new dimension members, the facts, the quarantined rows and the row of the load
ledger. A package whose load id is in the ledger is done, so a repeated load does nothing; a crash anywhere
leaves nothing.

A table of the package is put before the database under the name `arriving_<table>`, and one statement from
`sql/dimensions` or `sql/facts` takes it over as a whole. Only that first step (`_stage`) depends on the
database.

Invariants: a package's table is named for the warehouse's table it goes to, and its columns are
`arrow_schema` of that table; a name that begins with `_` is the pipeline's own and stays out. A customer or
product arrives once, with the load that created it; payment methods are a short list that every package may
bring. Whatever contradicts a key refuses the whole package.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from sqlalchemy import Connection, Engine, Table, insert, select, text
from sqlalchemy.exc import DBAPIError

from warehouse import sql_files
from warehouse.errors import PackageMismatch, WarehouseUnusable
from warehouse.load_package import LoadPackage
from warehouse.schema import (
    arrow_schema,
    dim_customer,
    dim_payment_method,
    dim_product,
    fact_order,
    load_ledger,
    quarantine,
)

__all__ = ["load"]


class _Target(NamedTuple):
    table: Table
    sql_folder: str
    statement: str


# In the order of loading: members before the facts that point to them.
TARGETS = (
    _Target(dim_customer, "dimensions", "insert_customer"),
    _Target(dim_product, "dimensions", "insert_product"),
    _Target(dim_payment_method, "dimensions", "insert_payment_method"),
    _Target(fact_order, "facts", "insert_order"),
    _Target(quarantine, "facts", "insert_quarantine"),
)


def load(engine: Engine, package: LoadPackage, before_commit: Callable[[], None] = lambda: None) -> bool:
    """Loads the package; False, with nothing done, if the ledger says that it was loaded before.

    `before_commit` is called when the transaction holds all of it; what it raises undoes the load.
    """
    _refuse_unknown_tables(package)
    arriving = {target: _fitted(package, target.table) for target in TARGETS if target.table.name in package.tables}
    with engine.begin() as connection:
        if _is_loaded(connection, package):
            return False
        for target, rows in arriving.items():
            _take_over(connection, package, target, rows)
        rows_of = {target.table: rows.num_rows for target, rows in arriving.items()}
        connection.execute(
            insert(load_ledger).values(
                pipeline=package.load_id.pipeline,
                batch_id=package.load_id.batch_id,
                load_id=str(package.load_id),
                package_checksum=package.checksum,
                fact_rows=rows_of.get(fact_order, 0),
                customer_rows=rows_of.get(dim_customer, 0),
                product_rows=rows_of.get(dim_product, 0),
                quarantine_rows=rows_of.get(quarantine, 0),
                counts=dict(package.counts),
                loaded_at=datetime.now(UTC).replace(tzinfo=None),
            )
        )
        before_commit()
    return True


def _refuse_unknown_tables(package: LoadPackage) -> None:
    known = {target.table.name for target in TARGETS}
    for name in package.tables:
        if name not in known and not name.startswith("_"):
            raise PackageMismatch(
                f"load package {package.load_id} has a table {name!r}, which the warehouse does not know: "
                f"name it for one of {', '.join(sorted(known))}, or begin the name with _ to keep it out"
            )


def _fitted(package: LoadPackage, table: Table) -> pa.Table:
    """The package's table with the columns and types of the warehouse; refused when it does not fit."""
    rows = package.table(table.name)
    schema = arrow_schema(table)
    missing = sorted(set(schema.names) - set(rows.column_names))
    surplus = sorted(set(rows.column_names) - set(schema.names))
    if missing or surplus:
        raise PackageMismatch(
            f"table {table.name} of load package {package.load_id} has other columns than the warehouse: "
            f"missing {missing}, too many {surplus}"
        )
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise PackageMismatch(
            f"table {table.name} of load package {package.load_id} does not fit the warehouse: {error}; "
            f"its columns must be {', '.join(f'{column.name} {column.type}' for column in schema)}"
        ) from error


def _is_loaded(connection: Connection, package: LoadPackage) -> bool:
    ledger_row = select(load_ledger.c.package_checksum).where(
        load_ledger.c.pipeline == package.load_id.pipeline,
        load_ledger.c.batch_id == package.load_id.batch_id,
    )
    try:
        loaded = connection.scalar(ledger_row)
    except DBAPIError as error:
        raise WarehouseUnusable(
            f"the warehouse has no readable load ledger ({str(error.orig).splitlines()[0]}): "
            "create the schema with warehouse.schema.create_schema"
        ) from error
    if loaded is not None and loaded != package.checksum:
        raise PackageMismatch(
            f"the warehouse has loaded another package as {package.load_id} (checksum {loaded}, this one has "
            f"{package.checksum}): the pipeline's folder and the warehouse do not belong together; "
            "restore both from the same time, or start both over"
        )
    return loaded is not None


def _take_over(connection: Connection, package: LoadPackage, target: _Target, rows: pa.Table) -> None:
    _stage(connection, f"arriving_{target.table.name}", rows)
    try:
        connection.execute(text(sql_files.read(target.sql_folder, target.statement)), {"load_id": str(package.load_id)})
    except DBAPIError as error:
        raise PackageMismatch(
            f"load package {package.load_id} was refused by {target.table.name}, nothing of it was loaded: "
            f"{str(error.orig).splitlines()[0]}"
        ) from error


def _stage(connection: Connection, name: str, rows: pa.Table) -> None:
    if connection.dialect.name != "duckdb":
        raise WarehouseUnusable(
            f"loading into {connection.dialect.name} is not built yet: use a duckdb:/// URL for the warehouse"
        )
    # A view on the Arrow memory: no row is copied before the statement runs. It ends with the connection.
    connection.exec_driver_sql("register", (name, rows))
