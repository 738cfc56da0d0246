"""The demo pipeline's resolve step: correlated rows become facts with surrogate keys, or go to quarantine.

The order matters. Codes first: a row that is quarantined must leave no trace in the relations, so that a corrected
copy of it is new. Then duplicates, so that only rows that will be loaded get keys. Then customers and products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.relation import Relation
from etl.transforms.code_translation import CodeColumn, UnknownCode, translate
from etl.transforms.duplicate_detection import drop_duplicates
from etl.transforms.surrogate_keys import assign

PAYMENT_METHOD = "payment_method"
METHOD = CodeColumn("method", PAYMENT_METHOD, gives=[("code_key", "payment_method_key")])

CUSTOMER = pa.schema([("source_system", pa.string()), ("customer_no", pa.string()), ("customer_key", pa.int64())])
PRODUCT = pa.schema([("source_system", pa.string()), ("product_no", pa.string()), ("product_key", pa.int64())])
LOADED_ORDER = pa.schema([("source_system", pa.string()), ("order_no", pa.string()), ("payment_no", pa.string())])
CODES = pa.schema([("code_set", pa.string()), ("code", pa.string()), ("code_key", pa.int64()), ("label", pa.string())])

FACT_COLUMNS = (
    "source_system",
    "order_no",
    "payment_no",
    "customer_key",
    "product_key",
    "payment_method_key",
    "quantity",
    "amount",
    "paid_amount",
    "ordered_at",
    "paid_at",
)


@dataclass(frozen=True)
class Relations:
    """The relations of the pipeline, each at one version."""

    customer: Relation
    product: Relation
    loaded_order: Relation
    codes: Relation

    def versions(self) -> dict[str, int]:
        return {relation.name: relation.version for relation in vars(self).values()}


@dataclass(frozen=True)
class Resolved:
    """One load against one version of each relation: facts, rows for quarantine, and what each relation must learn."""

    facts: pa.Table
    unknown_codes: pa.Table
    duplicates: int
    members: Mapping[str, tuple[pa.Table, int]]


def open_relations(folder: Path, payment_methods: Mapping[str, str]) -> Relations:
    """The newest version of each relation; made on first use, the codes filled from `payment_methods`."""
    codes = pa.table(
        {
            "code_set": [PAYMENT_METHOD] * len(payment_methods),
            "code": list(payment_methods),
            "code_key": list(range(1, len(payment_methods) + 1)),
            "label": list(payment_methods.values()),
        },
        schema=CODES,
    )
    return Relations(
        customer=_opened(folder, "customer", CUSTOMER, ("source_system", "customer_no")),
        product=_opened(folder, "product", PRODUCT, ("source_system", "product_no")),
        loaded_order=_opened(folder, "loaded_order", LOADED_ORDER, tuple(LOADED_ORDER.names)),
        codes=_opened(folder, "codes", CODES, ("code_set", "code"), codes),
    )


def resolve(correlated: pa.Table, relations: Relations, load_id: str) -> Resolved:
    """Keys, codes and duplicates for the rows of one load."""
    translated = translate(correlated, [METHOD], relations.codes, UnknownCode.QUARANTINE)
    good = drop_duplicates(
        translated.rows,
        relations.loaded_order,
        on=[(name, name) for name in LOADED_ORDER.names],
        load_id=load_id,
        prefer=["paid_at", "ordered_at"],
    )
    facts = good.first
    customer = assign(facts, relations.customer, _same("source_system", "customer_no"), "customer_key")
    product = assign(facts, relations.product, _same("source_system", "product_no"), "product_key")
    facts = facts.append_column("customer_key", customer.keys).append_column("product_key", product.keys)
    return Resolved(
        facts=facts.select(list(FACT_COLUMNS)),
        unknown_codes=translated.quarantined,
        duplicates=good.duplicates,
        members={
            "customer": (customer.members, customer.highest),
            "product": (product.members, product.highest),
            "loaded_order": (good.members, 0),
        },
    )


def _opened(folder: Path, name: str, schema: pa.Schema, key: tuple[str, ...], rows: pa.Table | None = None) -> Relation:
    if (folder / name).exists():
        return open_relation(folder / name)
    return create_relation(folder / name, name, schema, key, batches=[] if rows is None else rows.to_batches())


def _same(*columns: str) -> list[tuple[str, str]]:
    return [(name, name) for name in columns]
