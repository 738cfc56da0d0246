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

from etl import joins
from etl.errors import BadInput
from etl.storage.ports import RelationView, keys_of
from etl.transforms.ordering import first_of_each_key

Pairs = Sequence[tuple[str, str]]
"""Columns of the load's rows, each with the relation's column that it stands for."""

MEMORY_BYTES = 64 * 1024 * 1024
# Names that no column of a stream or a relation has; the relation's columns are marked, so that the two never meet.
_ROW, _HASH, _SEGMENT = "row of the load", "hash of the key", "segment of the key"
_MARK = "relation."
_CREATED_BY = "relation created by"


@dataclass(frozen=True)
class LookedUp:
    """For each row: what the relation holds beyond the key, which load brought it, and whether it is known at all."""

    found: pa.Table
    created_by: pa.ChunkedArray
    known: pa.ChunkedArray


@dataclass(frozen=True)
class Identified:
    """The load's rows, each in one of three tables; `brought` marks the new rows whose key this load has committed."""

    new: pa.Table
    known: pa.Table
    without_key: pa.Table
    brought: pa.ChunkedArray


def identify_new(
    rows: pa.Table,
    relation: RelationView,
    on: Pairs,
    load_id: str,
    *,
    join: str = "auto",
    memory_bytes: int = MEMORY_BYTES,
) -> Identified:
    """Tell new rows from known ones. What the relation has to learn is `new_members(found.new, found.brought, ...)`."""
    answer = look_up(rows, relation, on, join=join, memory_bytes=memory_bytes)
    loaded_before = pc.fill_null(pc.not_equal(answer.created_by, load_id), False)
    has_key = _has_key(rows, [name for name, _ in on])
    is_new = pc.and_not(has_key, loaded_before)
    return Identified(
        new=rows.filter(is_new),
        known=rows.filter(loaded_before),
        without_key=rows.filter(pc.invert(has_key)),
        brought=answer.known.filter(is_new),
    )


def look_up(
    rows: pa.Table, relation: RelationView, on: Pairs, *, join: str = "auto", memory_bytes: int = MEMORY_BYTES
) -> LookedUp:
    """Ask the relation for each row's key; row i of the answer belongs to row i of the rows."""
    numbered = rows.select([name for name, _ in on]).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    answers = _left_join(numbered, relation, on, join, memory_bytes)
    if answers.num_rows != rows.num_rows:
        raise BadInput(f"relation {relation.name} holds a key more than once: it cannot be used to look up keys")
    answers = answers.take(pc.sort_indices(answers.column(_ROW)))
    beyond_key = [name for name in relation.schema.names if name not in relation.key]
    found = answers.select([f"{_MARK}{name}" for name in beyond_key]).rename_columns(beyond_key)
    created_by = answers.column(_CREATED_BY)
    return LookedUp(found, created_by, created_by.is_valid())


def new_members(
    rows: pa.Table, known: pa.ChunkedArray, on: Pairs, relation: RelationView, attributes: Pairs = ()
) -> pa.Table:
    """The keys the relation does not know, with these attributes, in the order that numbers them.

    The order is (segment, key hash, key). It depends on nothing but the keys, so a retry, another batch cut inside the
    load or another number of partitions gives the same. Rows of one key that differ in an attribute: the one with the
    least attributes counts, compared in the order given, nulls last. Keys with a null in them are left out.
    """
    _check_attributes(rows, relation, attributes)
    columns = [*on, *attributes]
    unknown = rows.select([name for name, _ in columns]).filter(pc.invert(known))
    unknown = unknown.rename_columns([related for _, related in columns])
    unknown = unknown.filter(_has_key(unknown, relation.key))
    distinct = unknown.take(first_of_each_key(unknown, relation.key, prefer=[related for _, related in attributes]))
    keys = keys_of([_one_array(distinct.column(name)) for name in relation.key])
    ranks = distinct.select(list(relation.key)).append_column(_HASH, pa.array(keys.hashes))
    ranks = ranks.append_column(_SEGMENT, pa.array(relation.segment_of(keys)))
    order = [(name, "ascending") for name in (_SEGMENT, _HASH, *relation.key)]
    return distinct.take(pc.sort_indices(ranks, order))


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


def _has_key(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    return reduce(pc.and_, [rows.column(name).is_valid() for name in key])


def _left_join(rows: pa.Table, relation: RelationView, on: Pairs, join: str, memory_bytes: int) -> pa.Table:
    batches = rows.to_batches()
    # `auto` looks at the stream before it chooses.
    settings: dict[str, pa.RecordBatch] = {"sample": batches[0]} if join == "auto" and batches else {}
    operator = joins.build(
        join,
        sides=[rows.schema],
        on=list(on),
        relation=relation,
        how="left",
        memory_bytes=memory_bytes,
        **settings,
    )
    results: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            operator.offer(joins.Rows(0, batch), results.append)
        operator.offer(joins.EndOfSide(0), results.append)
        while operator.work(joins.WorkBudget(), results.append) is not joins.Progress.DONE:
            pass
    finally:
        operator.close()
    names = [*rows.schema.names, *(f"{_MARK}{name}" for name in relation.schema.names), _CREATED_BY, "version"]
    return pa.Table.from_batches(results, operator.plan.result_schema).rename_columns(names)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
