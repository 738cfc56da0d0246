"""What the tests of relations share: rows to store, and ways to get all of them or all matches back."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.ports import RelationView

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


def probe_all(relation: RelationView, probing: Sequence[pa.Array]) -> Counter[tuple[object, ...]]:
    """Each (probing row, relation row with its load), as the relation finds them segment by segment."""
    hashes = hash_columns([view(column) for column in probing])
    found: Counter[tuple[object, ...]] = Counter()
    for segment in range(relation.segments):
        mine = np.flatnonzero(relation.segment_of(hashes.hashes) == segment)
        columns = [view(column.take(pa.array(mine))) for column in probing]
        for positions, rows in relation.probe(segment, columns, hash_columns(columns)):
            assert positions.dtype == np.int64
            assert rows.schema.names == [*relation.schema.names, "_created_by"]
            matches = zip(*rows.to_pydict().values(), strict=True)
            found.update(zip(mine[positions].tolist(), matches, strict=True))
    return found


def all_rows(relation: RelationView) -> list[tuple[object, ...]]:
    """Every row with its load, sorted, and each found in the relation segment where its hash belongs."""
    rows = []
    for segment in range(relation.segments):
        for block in relation.read_segment(segment):
            hashes = block.column("_hash").to_numpy()
            assert (np.diff(hashes.astype(object)) >= 0).all(), "a block is sorted by hash"
            key = [view(block.column(name)) for name in relation.key]
            assert (hash_columns(key).hashes == hashes).all()
            assert (relation.segment_of(hashes) == segment).all()
            rows += list(zip(*block.drop_columns(["_hash"]).to_pydict().values(), strict=True))
    assert len(rows) == relation.rows
    return sorted(rows)
