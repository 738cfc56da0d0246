"""What the tests of relations share: rows to store, and ways to get all of them or all matches back."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from etl.storage.block_table import BlockTable
from etl.storage.ports import CREATED_BY_COLUMN, RelationView, keys_of

SCHEMA = pa.schema([("country", pa.string()), ("number", pa.int32()), ("surrogate", pa.int64())])
KEY = ("country", "number")
Row = tuple[str | None, int | None, int]


def rows_of(rows: Iterable[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def numbered(numbers: Iterable[int]) -> pa.RecordBatch:
    return rows_of((f"country {number % 7}", number, number) for number in numbers)


def probe_all(
    relation: RelationView, probing: Sequence[pa.Array], table: BlockTable | None = None
) -> Counter[tuple[object, ...]]:
    """Each (probing row, relation row with its load), as the relation finds them."""
    table = relation.block_table() if table is None else table
    keys = keys_of(probing)
    columns = [*relation.schema.names, CREATED_BY_COLUMN]
    found: Counter[tuple[object, ...]] = Counter()
    for pairs in table.probe(relation.segment_of(keys), keys):
        matches = zip(*(column.to_pylist() for column in table.take(columns, pairs)), strict=True)
        found.update(zip(pairs.positions.tolist(), matches, strict=True))
    return found


def all_rows(relation: RelationView) -> list[tuple[Any, ...]]:
    """Every row with its load, sorted, and each found in the relation segment where its key belongs."""
    rows = []
    for segment in range(relation.segments):
        for block in relation.read_segment(segment):
            hashes = block.column("_hash").to_numpy()
            assert (np.diff(hashes.astype(object)) >= 0).all(), "a block is sorted by hash"
            keys = keys_of([block.column(name) for name in relation.key])
            assert (keys.hashes == hashes).all()
            assert (relation.segment_of(keys) == segment).all()
            rows += list(zip(*block.drop_columns(["_hash"]).to_pydict().values(), strict=True))
    assert len(rows) == relation.rows == relation.segment_rows.sum()
    return sorted(rows)


def keys_in(batch: pa.RecordBatch) -> list[pa.Array]:
    return [batch.column(name) for name in KEY]
