"""What one load of the demo pipeline puts into its package: tables for the warehouse, quarantined rows, counts."""

from __future__ import annotations

import json
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from etl.spark.correlate import Correlated
from etl.storage.relation import Relation
from jobs.order_feeds import EVENT_TIMES, FEEDS
from jobs.order_resolution import PAYMENT_METHOD, Relations, Resolved
from warehouse.schema import arrow_schema, quarantine

_QUARANTINED = pa.schema([(name, pa.string()) for name in arrow_schema(quarantine).names])


def package_tables(
    correlated: Correlated, resolved: Resolved, relations: Relations, load_id: str
) -> dict[str, pa.Table]:
    """The warehouse's tables; `relations` are at the versions that this load committed."""
    return {
        "dim_customer": relations.customer.brought(load_id),
        "dim_product": relations.product.brought(load_id),
        "dim_payment_method": _payment_methods(relations.codes),
        "fact_order": _without_zone(resolved.facts),
        "quarantine": _quarantined(correlated, resolved),
    }


def package_counts(correlated: Correlated, resolved: Resolved, tables: dict[str, pa.Table]) -> dict[str, int]:
    """How many rows came, and what became of them."""
    return {
        "orders_rows": correlated.rows_in[0] + _rows_of_feed(correlated.aside, FEEDS[0]),
        "payments_rows": correlated.rows_in[1] + _rows_of_feed(correlated.aside, FEEDS[1]),
        "matched": correlated.results.num_rows,
        "facts": tables["fact_order"].num_rows,
        "customers": tables["dim_customer"].num_rows,
        "products": tables["dim_product"].num_rows,
        "duplicates": resolved.duplicates,
        "malformed": correlated.aside.num_rows,
        "late": sum(late.num_rows for late in correlated.late.values()),
        "unknown_codes": resolved.unknown_codes.num_rows,
        "quarantined": tables["quarantine"].num_rows,
    }


def _quarantined(correlated: Correlated, resolved: Resolved) -> pa.Table:
    parts = [_reported(late, FEEDS[side], "late", "behind the watermark") for side, late in correlated.late.items()]
    parts.append(_reported(resolved.unknown_codes, "payments", "unknown code", "no such payment method"))
    aside = correlated.aside
    if aside.num_rows:
        reasons = pa.repeat(pa.scalar("malformed"), aside.num_rows)
        parts.append(aside.append_column("reason", reasons).select(_QUARANTINED.names).cast(_QUARANTINED))
    return pa.concat_tables(parts)


def _reported(rows: pa.Table, feed: str, reason: str, detail: str) -> pa.Table:
    constants = {"feed": feed, "reason": reason, "detail": detail}
    columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
    payload = pa.array([json.dumps(row, default=_json_text) for row in rows.to_pylist()], pa.string())
    return pa.table({**columns, "payload": payload}).select(_QUARANTINED.names).cast(_QUARANTINED)


def _json_text(value: object) -> str:
    """Instants as ISO 8601; decimals as they are written, which a JSON number would not keep."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _payment_methods(codes: Relation) -> pa.Table:
    blocks = [block for segment in range(codes.segments) for block in codes.read_segment(segment)]
    rows = pa.Table.from_batches(blocks)
    rows = rows.filter(pc.equal(rows.column("code_set"), PAYMENT_METHOD)).select(["code_key", "code", "label"])
    return rows.rename_columns(["payment_method_key", "code", "label"])


def _without_zone(facts: pa.Table) -> pa.Table:
    """The warehouse keeps UTC without a zone."""
    for name in EVENT_TIMES:
        position = facts.column_names.index(name)
        facts = facts.set_column(position, name, facts.column(name).cast(pa.timestamp("us")))
    return facts


def _rows_of_feed(aside: pa.Table, feed: str) -> int:
    return int(pc.sum(pc.equal(aside.column("feed"), feed)).as_py()) if aside.num_rows else 0
