"""Surrogate keys: dense integers from 1 that stand for natural keys; 0 is the unknown member.

The new keys of a load, in the order of `new_keys`, get the numbers after the highest that the relation version has
given out. Whoever resolves the same rows against the same version gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.storage.ports import RelationView
from etl.transforms.new_rows import look_up, new_keys

UNKNOWN_MEMBER = 0


@dataclass(frozen=True)
class KeyedRows:
    """`keys`: one for each row; `members`: the relation's rows to append; `highest`: the last number given."""

    keys: pa.ChunkedArray
    members: pa.Table
    highest: int


def assign(rows: pa.Table, relation: RelationView, on: Sequence[tuple[str, str]], key_column: str) -> KeyedRows:
    """Find each row's surrogate key in `key_column`, or give it a new one. A null natural key is the unknown member."""
    answer = look_up(rows, relation, on)
    fresh = new_keys(rows, answer.known, on, relation)
    first = relation.highest + 1
    numbers = pa.array(np.arange(first, first + fresh.num_rows, dtype=np.int64))
    members = fresh.append_column(key_column, numbers).select(relation.schema.names).cast(relation.schema)
    keys = pc.coalesce(answer.found.column(key_column), _numbered(rows, members, on, key_column))
    return KeyedRows(pc.fill_null(keys, UNKNOWN_MEMBER), members, relation.highest + fresh.num_rows)


def _numbered(rows: pa.Table, members: pa.Table, on: Sequence[tuple[str, str]], key_column: str) -> pa.ChunkedArray:
    """The new numbers at the rows that asked for them."""
    related = [name for _, name in on]
    # Under the relation's names, which differ from `key_column`; the stream's own names need not.
    natural = rows.select([name for name, _ in on]).rename_columns(related)
    numbered = natural.append_column("_row", pa.array(np.arange(rows.num_rows)))
    joined = numbered.join(members, keys=related, join_type="left outer")
    return joined.sort_by("_row").column(key_column)
