"""The contents of a warehouse, to compare two runs row for row and key for key."""

from __future__ import annotations

from pathlib import Path

import duckdb

Contents = dict[str, list[tuple[object, ...]]]

QUERIES = {
    "dim_customer": "select * from dim_customer order by all",
    "dim_product": "select * from dim_product order by all",
    "dim_payment_method": "select * from dim_payment_method order by all",
    "fact_order": "select * from fact_order order by all",
    "quarantine": "select * from quarantine order by all",
    # When it was loaded, and the checksum over names that hold the attempt, differ from run to run.
    "load_ledger": "select * exclude (loaded_at, package_checksum) from load_ledger order by all",
}


def contents_of(file: Path) -> Contents:
    with duckdb.connect(str(file), read_only=True) as database:
        return {name: database.execute(query).fetchall() for name, query in QUERIES.items()}


def number_of(file: Path, query: str) -> int:
    with duckdb.connect(str(file), read_only=True) as database:
        row = database.execute(query).fetchone()
    assert row is not None
    return int(row[0])


NATURAL_QUERIES = {
    "facts": """
        select f.* exclude (customer_key, product_key, payment_method_key, load_id),
            c.source_system, c.customer_no, p.source_system, p.product_no, m.code
        from fact_order f join dim_customer c using (customer_key) join dim_product p using (product_key)
            join dim_payment_method m using (payment_method_key)
        order by all
    """,
    "customers": "select source_system, customer_no from dim_customer order by all",
    "products": "select source_system, product_no from dim_product order by all",
    "quarantine": "select * exclude (load_id) from quarantine order by all",
}


def natural_contents_of(file: Path) -> Contents:
    """What does not depend on how the rows were cut into loads: natural keys instead of numbers, no load ids."""
    with duckdb.connect(str(file), read_only=True) as database:
        return {name: database.execute(query).fetchall() for name, query in NATURAL_QUERIES.items()}
