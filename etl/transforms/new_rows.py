"""New-row identification: which rows of a load a relation knows, and which keys are new to it.

The other transforms stand on this. A lookup keeps the order and the number of the rows it is given, so that several
relations can be looked up one after the other; the relation therefore holds at most one row per key.

A key that this very load brought counts as new: that is how a load that is run again gets the same answer. A key with a
null in it is no key: its row is neither new nor known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput
from etl.storage.ports import RelationView
from etl.transforms.lookups import Lookups, Pairs, looked_up
from etl.transforms.ordering import first_of_each_key, hashed

_HASH, _SEGMENT = "hash of the key", "segment of the key"


@dataclass(frozen=True)
class Identified:
    """The load's rows, each in one of three tables; `brought` marks the new rows whose key this load has committed."""

    new: pa.Table
    known: pa.Table
    without_key: pa.Table
    brought: pa.ChunkedArray


def identify_new(
    rows: pa.Table, relation: RelationView, on: Pairs, load_id: str, *, lookups: Lookups | None = None
) -> Identified:
    """Tell new rows from known ones. What the relation has to learn is `new_members(found.new, found.brought, ...)`."""
    answer = looked_up(rows, relation, on, lookups)
    with_key = has_key(rows, [name for name, _ in on])
    new = is_new(with_key, answer.created_by, load_id)
    return Identified(
        new=rows.filter(new),
        known=rows.filter(pc.and_not(with_key, new)),
        without_key=rows.filter(pc.invert(with_key)),
        brought=answer.known.filter(new),
    )


def is_new(with_key: pa.ChunkedArray, created_by: pa.ChunkedArray, load_id: str) -> pa.ChunkedArray:
    """Which rows have a key that no load before this one brought."""
    return pc.and_not(with_key, pc.fill_null(pc.not_equal(created_by, load_id), False))


def new_members(
    rows: pa.Table, known: pa.ChunkedArray, on: Pairs, relation: RelationView, attributes: Pairs = ()
) -> pa.Table:
    """The keys the relation does not know, with these attributes, in the order that numbers them."""
    return in_number_order(unknown_keys(rows, known, on, relation, attributes), relation, attributes)


def unknown_keys(
    rows: pa.Table, known: pa.ChunkedArray, on: Pairs, relation: RelationView, attributes: Pairs = ()
) -> pa.Table:
    """The keys the relation does not know, each once, under the relation's names. Keys with a null are left out.

    Rows of one key that differ in an attribute: the one with the least attributes counts, compared in the order given,
    nulls last.
    """
    _check_attributes(rows, relation, attributes)
    columns = [*on, *attributes]
    unknown = rows.select([name for name, _ in columns]).filter(pc.invert(known))
    unknown = unknown.rename_columns([related for _, related in columns])
    unknown = unknown.filter(has_key(unknown, relation.key))
    return unknown.take(first_of_each_key(unknown, relation.key, prefer=[related for _, related in attributes]))


def in_number_order(unknown: pa.Table, relation: RelationView, attributes: Pairs = ()) -> pa.Table:
    """Keys as `unknown_keys` gives them, from one part of a load or from several: each once, in one order.

    The order is (segment, key hash, key). It depends on nothing but the keys, so a retry, another batch cut inside the
    load or another number of partitions gives the same.
    """
    distinct = unknown.take(first_of_each_key(unknown, relation.key, prefer=[related for _, related in attributes]))
    keys = hashed(distinct, relation.key)
    segment = relation.segment_of(keys)
    order = np.lexsort((keys.hashes, segment))
    if (np.diff(keys.hashes[order]) == 0).any():  # equal hashes are next to each other: the keys themselves decide
        ranks = distinct.select(list(relation.key)).append_column(_HASH, pa.array(keys.hashes))
        ranks = ranks.append_column(_SEGMENT, pa.array(segment))
        order = pc.sort_indices(ranks, [(name, "ascending") for name in (_SEGMENT, _HASH, *relation.key)])
    return distinct.take(pa.array(order))


def as_relation_rows(members: pa.Table, relation: RelationView) -> pa.Table:
    """Members in the relation's schema; columns that they do not have are null."""
    missing = [field for field in relation.schema if field.name not in members.column_names]
    required = [field.name for field in missing if not field.nullable]
    if required:
        raise BadInput(
            f"relation {relation.name}: column {required[0]!r} of a new member may not be null: name the column of the "
            "rows that it is taken from in attributes"
        )
    for field in missing:
        members = members.append_column(field, pa.nulls(members.num_rows, field.type))
    return members.select(relation.schema.names).cast(relation.schema)


def has_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Which rows have no null in these columns."""
    return reduce(pc.and_, [rows.column(name).is_valid() for name in key])


def _check_attributes(rows: pa.Table, relation: RelationView, attributes: Pairs) -> None:
    for name, related in attributes:
        if related not in relation.schema.names or related in relation.key:
            raise BadInput(f"attributes: relation {relation.name} has no column {related!r} beside its key")
        if name not in rows.column_names:
            raise BadInput(f"attributes: the rows have no column {name!r}; their columns are {rows.column_names}")
        given, expected = rows.schema.field(name).type, relation.schema.field(related).type
        if given != expected:
            raise BadInput(
                f"attributes: column {name!r} of the rows is {given}, column {related!r} of relation {relation.name} "
                f"is {expected}: cast one of them"
            )
