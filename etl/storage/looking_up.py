"""Looking rows up in a relation version, without an operator: for people, tests and small tables."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.blocks import BlockPairs
from etl.storage.ports import CREATED_BY_COLUMN, keys_of
from etl.storage.relation_version import OpenVersion


def look_up(version: OpenVersion, rows: pa.Table, on: Sequence[tuple[str, str]]) -> pa.Table:
    """See `Relation.look_up`."""
    columns = [name for name in version.state.shape.schema.names if name not in version.state.shape.key]
    columns.append(CREATED_BY_COLUMN)
    key = _key_columns(version, rows, on, columns)
    found = [_looked_up(version, batch, key, columns) for batch in rows.combine_chunks().to_batches()]
    fields = [version.state.shape.stored.field(name).with_nullable(True) for name in columns]
    return pa.Table.from_batches(found, pa.schema([*rows.schema, *fields]))


def _key_columns(
    version: OpenVersion, rows: pa.Table, on: Sequence[tuple[str, str]], columns: Sequence[str]
) -> list[str]:
    """The rows' columns in the order of the relation's key."""
    shape = version.state.shape
    asked = {of_relation: of_rows for of_rows, of_relation in on}
    if set(asked) != set(shape.key) or len(on) != len(shape.key):
        raise BadInput(f"relation {shape.name} has the key {shape.key}: pair each of these columns, not {list(on)}")
    for of_rows, of_relation in on:
        if of_rows not in rows.column_names:
            raise BadInput(f"the rows have no column {of_rows!r}; their columns are {rows.column_names}")
        type_ = rows.schema.field(of_rows).type
        if type_ != shape.schema.field(of_relation).type:
            raise BadInput(
                f"column {of_rows!r} of the rows is {type_}, but key column {of_relation!r} of relation "
                f"{shape.name} is {shape.schema.field(of_relation).type}: cast one of them"
            )
    for name in columns:
        if name in rows.column_names:
            raise BadInput(f"the rows have a column {name!r}, as relation {shape.name} has: rename or drop it")
    return [asked[name] for name in shape.key]


def _looked_up(
    version: OpenVersion, batch: pa.RecordBatch, key: Sequence[str], columns: Sequence[str]
) -> pa.RecordBatch:
    keys = keys_of([batch.column(name) for name in key])
    chunks = list(version.table.probe(version.state.partitioning.segment_of(keys), keys))
    positions = np.concatenate([np.empty(0, np.int64), *(chunk.positions for chunk in chunks)])
    missing = np.setdiff1d(np.arange(batch.num_rows), positions)
    # A block of -1 gathers a null.
    block = np.concatenate([*(chunk.block for chunk in chunks), np.full(missing.size, -1, np.int32)])
    row = np.concatenate([*(chunk.row for chunk in chunks), np.zeros(missing.size, np.int64)])
    positions = np.concatenate([positions, missing])
    order = np.argsort(positions, kind="stable")
    pairs = BlockPairs(positions[order], block[order], row[order])
    return pa.RecordBatch.from_arrays(
        [*batch.take(pa.array(pairs.positions)).columns, *version.table.take(columns, pairs)],
        names=[*batch.schema.names, *columns],
    )
