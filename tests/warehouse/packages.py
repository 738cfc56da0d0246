"""Load packages for the tests of the warehouse."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from etl.storage.durable import DurableFolder
from warehouse.load_package import LoadId, LoadPackage, LoadPackages
from warehouse.schema import (
    arrow_schema,
    dim_customer,
    dim_payment_method,
    dim_product,
    fact_order,
    quarantine,
)

PIPELINE = "demo"
PRODUCTS = 5
METHODS = pa.table(
    {"payment_method_key": [1, 2], "code": ["CC", "BT"], "label": ["credit card", "bank transfer"]},
    schema=arrow_schema(dim_payment_method),
)


def facts(batch_id: int, rows: int) -> pa.Table:
    """Facts that no other batch has, each with a customer of its own and one of a few products."""
    numbers = range(batch_id * rows, (batch_id + 1) * rows)
    return pa.table(
        {
            "source_system": ["web" if number % 2 else "store" for number in numbers],
            "order_no": [f"{number:07d}" for number in numbers],
            "payment_no": [f"{number:07d}" for number in numbers],
            "customer_key": [number + 1 for number in numbers],
            "product_key": [number % PRODUCTS + 1 for number in numbers],
            "payment_method_key": [number % 2 + 1 for number in numbers],
            "quantity": [1 + number % 3 for number in numbers],
            "amount": [Decimal(number + 1) / 4 for number in numbers],
            "paid_amount": [Decimal(number + 1) / 4 for number in numbers],
            "ordered_at": [datetime(2026, 3, 1, batch_id % 24)] * rows,  # noqa: DTZ001
            "paid_at": [datetime(2026, 3, 1, batch_id % 24, 30)] * rows,  # noqa: DTZ001
        },
        schema=arrow_schema(fact_order),
    )


def tables(batch_id: int, rows: int = 10) -> dict[str, pa.Table]:
    """All tables of a good package; batch 0 brings the products."""
    orders = facts(batch_id, rows)
    customers = pa.table(
        {
            "customer_key": orders["customer_key"],
            "source_system": orders["source_system"],
            "customer_no": [f"C{key:05d}" for key in orders["customer_key"].to_pylist()],
        },
        schema=arrow_schema(dim_customer),
    )
    products = pa.table(
        {
            "product_key": range(1, PRODUCTS + 1),
            "source_system": ["web"] * PRODUCTS,
            "product_no": [f"P{key:04d}" for key in range(1, PRODUCTS + 1)],
        },
        schema=arrow_schema(dim_product),
    )
    refused = pa.table(
        {
            "feed": ["orders"],
            "reason": ["malformed"],
            "detail": ["no customer_no"],
            "payload": ['{"order_no":'],
        },
        schema=arrow_schema(quarantine),
    )
    return {
        "dim_customer": customers,
        "dim_product": products if batch_id == 0 else products.slice(0, 0),
        "dim_payment_method": METHODS,
        "fact_order": orders,
        "quarantine": refused,
    }


def publish(folder: Path, batch_id: int, contents: Mapping[str, pa.Table], attempt: str = "first") -> LoadPackage:
    packages = LoadPackages(DurableFolder(folder), PIPELINE)
    load_id = LoadId(PIPELINE, batch_id)
    stamps = {name: packages.write_table(load_id, attempt, name, table) for name, table in contents.items()}
    return packages.publish(load_id, stamps, counts={"matched": 10}, details={})


def with_column(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    """The table with other values in the column, which takes another type if its own cannot hold them."""
    position = table.schema.get_field_index(name)
    try:
        column = pa.array(values, table.schema.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        column = pa.array(values)
    return table.set_column(position, name, column)
