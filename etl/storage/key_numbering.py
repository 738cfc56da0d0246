"""Surrogate keys for keys that a relation does not know yet, safe with several writers.

Idea: the load's unknown keys, in an order that depends on nothing but the keys, get the numbers after the highest
one. If another writer commits first, only the keys that were unknown a moment ago are asked for again: the winner
may have numbered some of them.
"""

import numpy as np
import pyarrow as pa

from etl.errors import BadInput, CommitRace
from etl.storage import appending
from etl.storage.ports import keys_of
from etl.storage.relation_rows import HASH_COLUMN
from etl.storage.relation_version import OpenVersion

MOST_RACES = 1000
_SEGMENT, _ROW = "_segment", "_row"


def append_new(version: OpenVersion, rows: pa.Table, load_id: str, number: str) -> OpenVersion:
    """Commit a version with the rows whose key is new, numbered in column `number`; see `Relation.append_new`."""
    made = appending.find_load_version(version, load_id)
    if made is not None:
        return appending.at_or_after(version.newest(), made)
    unknown = _first_of_each_key(version, _checked(version, rows, number))
    for _ in range(MOST_RACES):
        unknown = _unknown(version, unknown)
        highest = version.state.highest
        numbers = pa.array(np.arange(highest + 1, highest + 1 + unknown.num_rows))
        schema = version.state.shape.schema
        numbered = unknown.append_column(number, numbers.cast(schema.field(number).type))
        try:
            return appending.append(
                version, numbered.select(schema.names).cast(schema), load_id, highest + unknown.num_rows
            )
        except CommitRace:
            version = version.newest()
    raise CommitRace(
        f"relation {version.state.shape.name}, load {load_id}: other writers were first {MOST_RACES} times in a "
        "row; try again later"
    )


def _checked(version: OpenVersion, rows: pa.Table, number: str) -> pa.Table:
    shape = version.state.shape
    if number not in shape.schema.names or number in shape.key:
        raise BadInput(f"relation {shape.name} has no column {number!r} beside its key to number keys in")
    expected = pa.schema([field for field in shape.schema if field.name != number])
    if not rows.schema.equals(expected):
        raise BadInput(
            f"relation {shape.name}: rows to be numbered have the columns {expected.names} in their types, "
            f"not {rows.schema.names}; select and cast them first"
        )
    for name in shape.key:
        if rows.column(name).null_count:
            raise BadInput(
                f"relation {shape.name}: key column {name!r} is null in {rows.column(name).null_count} rows, which "
                "nothing can match; send them to quarantine or give them a key"
            )
    return rows


def _first_of_each_key(version: OpenVersion, rows: pa.Table) -> pa.Table:
    """One row per key: of several the first."""
    shape = version.state.shape
    placed = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    firsts = placed.group_by(list(shape.key), use_threads=False).aggregate([(_ROW, "min")])
    return rows.take(firsts.column(f"{_ROW}_min"))


def _unknown(version: OpenVersion, rows: pa.Table) -> pa.Table:
    """The rows whose key the version does not hold, in the order that numbers them."""
    shape, partitioning = version.state.shape, version.state.partitioning
    if not rows.num_rows:
        return rows
    keys = keys_of([_one_array(rows.column(name)) for name in shape.key])
    segment = partitioning.segment_of(keys)
    known = np.zeros(rows.num_rows, np.bool_)
    for pairs in version.table.probe(segment, keys):
        known[pairs.positions] = True
    ordered = rows.append_column(HASH_COLUMN, pa.array(keys.hashes)).append_column(_SEGMENT, pa.array(segment))
    ordered = ordered.filter(pa.array(~known))
    ordered = ordered.sort_by([(name, "ascending") for name in (_SEGMENT, HASH_COLUMN, *shape.key)])
    return ordered.select(rows.column_names)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
