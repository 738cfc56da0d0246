"""New-row identification: which rows of a load a relation knows, and which keys are new to it.

The other transforms stand on this. A lookup keeps the order and the number of the rows it is given, so that several
relations can be looked up one after the other; the relation therefore holds at most one row per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl import joins
from etl.errors import BadInput
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.ports import RelationView

MEMORY_BYTES = 64 * 1024 * 1024
_ROW = "_row"
# The relation's columns are marked, so that they never meet a column of the stream with the same name.
_MARK = "relation."
_CREATED_BY = "relation created by"


@dataclass(frozen=True)
class LookedUp:
    """For each row: what the relation holds beyond the key, which load brought it, and whether it is known at all."""

    found: pa.Table
    created_by: pa.ChunkedArray
    known: pa.ChunkedArray


def look_up(
    rows: pa.Table,
    relation: RelationView,
    on: Sequence[tuple[str, str]],
    memory_bytes: int = MEMORY_BYTES,
    join: str = "hash-partitioned",
) -> LookedUp:
    """Ask the relation for each row's key; row i of the answer belongs to row i of the rows."""
    stream_columns = [stream for stream, _ in on]
    numbered = rows.select(stream_columns).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    answers = _left_join(numbered, relation, on, memory_bytes, join)
    order = pc.sort_indices(answers.column(_ROW))
    answers = answers.take(order)
    if answers.num_rows != rows.num_rows:
        raise BadInput(f"relation {relation.name} holds a key more than once: it cannot be used to look up keys")
    key = {related for _, related in on}
    beyond_key = [name for name in relation.schema.names if name not in key]
    found = answers.select([f"{_MARK}{name}" for name in beyond_key]).rename_columns(beyond_key)
    created_by = answers.column(_CREATED_BY)
    return LookedUp(found, created_by, created_by.is_valid())


def new_keys(rows: pa.Table, known: pa.ChunkedArray, on: Sequence[tuple[str, str]], relation: RelationView) -> pa.Table:
    """The distinct keys the relation does not know, in the order that numbers them: (segment, key hash, key).

    The order depends on nothing but the keys, so a retry, another batch cut inside the load or another number of
    partitions gives the same. Keys with a null in them are no keys and are left out.
    """
    unknown = rows.select([stream for stream, _ in on]).filter(pc.invert(known))
    unknown = unknown.rename_columns([related for _, related in on]).select(list(relation.key)).drop_null()
    distinct = unknown.group_by(unknown.column_names, use_threads=False).aggregate([])
    hashes = hash_columns([view(_one_array(distinct.column(name))) for name in relation.key]).hashes
    ranked = distinct.append_column("_hash", pa.array(hashes)).append_column(
        "_segment", pa.array(relation.segment_of(hashes))
    )
    order = [(name, "ascending") for name in ("_segment", "_hash", *relation.key)]
    return ranked.sort_by(order).select(list(relation.key))


def _left_join(
    rows: pa.Table, relation: RelationView, on: Sequence[tuple[str, str]], memory_bytes: int, join: str
) -> pa.Table:
    operator = joins.build(
        join, sides=[rows.schema], on=list(on), relation=relation, how="left", memory_bytes=memory_bytes
    )
    results: list[pa.RecordBatch] = []
    try:
        for batch in rows.to_batches():
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
