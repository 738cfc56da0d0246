"""Surrogate keys: dense integers from 1 that stand for natural keys; 0 is the unknown member.

The new keys of a load, in the order of `new_members`, get the numbers after the highest that the relation version has
given out. Whoever resolves the same rows against the same version gives the same numbers.

Three steps, so that the first can run in several places: `find_keys` looks the rows up and says which natural keys are
not known; `number_new` numbers those of the whole load; `fill_in` gives the rows their new numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput
from etl.storage.ports import RelationView
from etl.transforms.lookups import Lookups, Pairs, looked_up
from etl.transforms.new_rows import as_relation_rows, has_key, in_number_order, unknown_keys

UNKNOWN_MEMBER = 0


@dataclass(frozen=True)
class KeyedRows:
    """`keys`: one for each row; `members`: the relation's rows to append; `highest`: the last number given."""

    keys: pa.ChunkedArray
    members: pa.Table
    highest: int


@dataclass(frozen=True)
class FoundKeys:
    """`keys`: one for each row, null where the natural key is not known; `unknown`: those natural keys, each once.

    `created_by`: which load brought the key of each row; null where it is not known.
    """

    keys: pa.ChunkedArray
    created_by: pa.ChunkedArray
    unknown: pa.Table


@dataclass(frozen=True)
class Numbered:
    """`members`: the relation's rows to append; `highest`: the last number given."""

    members: pa.Table
    highest: int


def assign(
    rows: pa.Table,
    relation: RelationView,
    on: Pairs,
    key_column: str,
    *,
    attributes: Pairs = (),
    lookups: Lookups | None = None,
) -> KeyedRows:
    """Find each row's surrogate key in `key_column`, or give it a new one. A null natural key is the unknown member.

    `attributes` pairs columns of the rows with further columns of the relation: a new member takes its values from
    them, and nulls where there is none. Known members stay as they are.
    """
    found = find_keys(rows, relation, on, key_column, attributes=attributes, lookups=lookups)
    numbered = number_new(found.unknown, relation, key_column, attributes)
    keys = fill_in(found.keys, rows, numbered.members, on, key_column)
    return KeyedRows(keys, numbered.members, numbered.highest)


def find_keys(
    rows: pa.Table,
    relation: RelationView,
    on: Pairs,
    key_column: str,
    *,
    attributes: Pairs = (),
    lookups: Lookups | None = None,
) -> FoundKeys:
    """The surrogate keys that the relation has for the rows."""
    _check_key_column(relation, key_column)
    answer = looked_up(rows, relation, on, lookups)
    keys = answer.found.column(key_column)
    keys = pc.if_else(has_key(rows, [name for name, _ in on]), keys, pa.scalar(UNKNOWN_MEMBER, keys.type))
    return FoundKeys(keys, answer.created_by, unknown_keys(rows, answer.known, on, relation, attributes))


def number_new(unknown: pa.Table, relation: RelationView, key_column: str, attributes: Pairs = ()) -> Numbered:
    """Number the unknown keys of a whole load; they may have been found in several parts, some of them in each."""
    fresh = in_number_order(unknown, relation, attributes)
    first = relation.highest + 1
    numbers = pa.array(np.arange(first, first + fresh.num_rows, dtype=np.int64))
    numbered = fresh.append_column(key_column, numbers.cast(relation.schema.field(key_column).type))
    return Numbered(as_relation_rows(numbered, relation), relation.highest + fresh.num_rows)


def fill_in(keys: pa.ChunkedArray, rows: pa.Table, members: pa.Table, on: Pairs, key_column: str) -> pa.ChunkedArray:
    """The keys with the new members' numbers where they were null; row i of `rows` asked for key i."""
    missing = np.flatnonzero(keys.is_null().to_numpy())
    if not missing.size:
        return keys
    related = [name for _, name in on]
    # Under the relation's names, which differ from `key_column`; the stream's own names need not.
    natural = rows.select([name for name, _ in on]).take(pa.array(missing)).rename_columns(related)
    placed = natural.append_column("_row", pa.array(np.arange(missing.size)))
    joined = placed.join(members.select([*related, key_column]), keys=related, join_type="left outer")
    filled = pc.fill_null(keys, UNKNOWN_MEMBER).to_numpy().copy()
    filled[missing[joined.column("_row").to_numpy()]] = pc.fill_null(joined.column(key_column), UNKNOWN_MEMBER)
    return pa.chunked_array([pa.array(filled, keys.type)])


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
