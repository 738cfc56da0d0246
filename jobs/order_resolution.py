"""The demo pipeline's resolve step: correlated rows become facts with surrogate keys, or go to quarantine.

The rows are in the driver already, so they are resolved there, with look-ups that live as long as the process does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from etl.errors import AlreadyPublished, MissingFile
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolve import AssignKeys, DropDuplicates, Resolution, TranslateCodes
from etl.spark.resolve import resolve as resolve_rows
from etl.storage.lookup_store import create_relation
from etl.storage.relation import Relation
from etl.transforms.code_translation import CodeColumn, UnknownCode

PAYMENT_METHOD = "payment_method"

CUSTOMER = pa.schema([("source_system", pa.string()), ("customer_no", pa.string()), ("customer_key", pa.int64())])
PRODUCT = pa.schema([("source_system", pa.string()), ("product_no", pa.string()), ("product_key", pa.int64())])
LOADED_ORDER = pa.schema([("source_system", pa.string()), ("order_no", pa.string()), ("payment_no", pa.string())])
CODES = pa.schema([("code_set", pa.string()), ("code", pa.string()), ("code_key", pa.int64()), ("label", pa.string())])

_METHOD = CodeColumn("method", PAYMENT_METHOD, gives=[("code_key", "payment_method_key")])
RESOLUTION = Resolution(
    codes=TranslateCodes("codes", (_METHOD,), UnknownCode.QUARANTINE),
    duplicates=DropDuplicates(
        "loaded_order", [(name, name) for name in LOADED_ORDER.names], prefer=("paid_at", "ordered_at")
    ),
    keys=(
        AssignKeys("customer", [(name, name) for name in CUSTOMER.names[:2]], "customer_key"),
        AssignKeys("product", [(name, name) for name in PRODUCT.names[:2]], "product_key"),
    ),
)
"""The names of the relations are those of the fields of `Relations`."""

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
    resolved = resolve_rows(correlated, RESOLUTION, vars(relations), load_id)
    return Resolved(
        facts=resolved.rows.select(list(FACT_COLUMNS)),
        unknown_codes=resolved.quarantined,
        duplicates=resolved.duplicates,
        members={name: (members.rows, members.highest) for name, members in resolved.members.items()},
    )


def _opened(folder: Path, name: str, schema: pa.Schema, key: tuple[str, ...], rows: pa.Table | None = None) -> Relation:
    """Opened, or made: the folder of a run that was killed while making it may be there without a version."""
    with suppress(MissingFile):
        return PROCESS_MEMORY.relation(folder / name)
    # Another pipeline may make it at the same moment.
    with suppress(AlreadyPublished):
        create_relation(folder / name, name, schema, key, batches=[] if rows is None else rows.to_batches())
    return PROCESS_MEMORY.relation(folder / name)
