"""Surrogate keys: dense integers from 1 that stand for natural keys; 0 is the unknown member.

The new keys of a load, in the order of `new_members`, get the numbers after the highest that the relation version has
given out. Whoever resolves the same rows against the same version gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput
from etl.storage.ports import RelationView
from etl.transforms.new_rows import MEMORY_BYTES, Pairs, as_relation_rows, look_up, new_members

UNKNOWN_MEMBER = 0


@dataclass(frozen=True)
class KeyedRows:
    """`keys`: one for each row; `members`: the relation's rows to append; `highest`: the last number given."""

    keys: pa.ChunkedArray
    members: pa.Table
    highest: int


def assign(
    rows: pa.Table,
    relation: RelationView,
    on: Pairs,
    key_column: str,
    *,
    attributes: Pairs = (),
    join: str = "auto",
    memory_bytes: int = MEMORY_BYTES,
) -> KeyedRows:
    """Find each row's surrogate key in `key_column`, or give it a new one. A null natural key is the unknown member.

    `attributes` pairs columns of the rows with further columns of the relation: a new member takes its values from
    them, and nulls where there is none. Known members stay as they are.
    """
    _check_key_column(relation, key_column)
    answer = look_up(rows, relation, on, join=join, memory_bytes=memory_bytes)
    fresh = new_members(rows, answer.known, on, relation, attributes)
    first = relation.highest + 1
    numbers = pa.array(np.arange(first, first + fresh.num_rows, dtype=np.int64))
    numbered = fresh.append_column(key_column, numbers.cast(relation.schema.field(key_column).type))
    keys = pc.coalesce(answer.found.column(key_column), _at_rows(rows, numbered, on, key_column))
    return KeyedRows(
        keys=pc.fill_null(keys, UNKNOWN_MEMBER),
        members=as_relation_rows(numbered, relation),
        highest=relation.highest + fresh.num_rows,
    )


def _check_key_column(relation: RelationView, key_column: str) -> None:
    beyond_key = [name for name in relation.schema.names if name not in relation.key]
    if key_column not in beyond_key:
        raise BadInput(
            f"relation {relation.name} has no column {key_column!r} beside its key to hold surrogate keys: "
            f"it has {', '.join(map(repr, beyond_key)) or 'none'}"
        )
    if not pa.types.is_integer(relation.schema.field(key_column).type):
        raise BadInput(
            f"relation {relation.name}: column {key_column!r} is {relation.schema.field(key_column).type}: "
            "surrogate keys are integers"
        )


def _at_rows(rows: pa.Table, numbered: pa.Table, on: Pairs, key_column: str) -> pa.ChunkedArray:
    """The new numbers at the rows that asked for them."""
    related = [name for _, name in on]
    # Under the relation's names, which differ from `key_column`; the stream's own names need not.
    natural = rows.select([name for name, _ in on]).rename_columns(related)
    placed = natural.append_column("_row", pa.array(np.arange(rows.num_rows)))
    joined = placed.join(numbered.select([*related, key_column]), keys=related, join_type="left outer")
    return joined.sort_by("_row").column(key_column)
