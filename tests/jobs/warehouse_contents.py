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
