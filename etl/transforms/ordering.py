"""Which of several rows with one key counts: the first by a stated order, however the rows were shuffled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etl.storage.ports import Keys, keys_of

_RANK = "rank of the row"


def first_of_each_key(rows: pa.Table, key: Sequence[str], prefer: Sequence[str] = ()) -> pa.Array:
    """The position of one row for each key, ascending: the least by the `prefer` columns, then by all others.

    Nulls come last. Rows that are alike in every column are the same row, so which of them counts does not show. No row
    has a null in its key.
    """
    _, inverse, counts = np.unique(hashed(rows, key).hashes, return_inverse=True, return_counts=True)
    # A hash that comes once is a key that comes once; only the others, mostly few, are worth a comparison.
    repeated = np.flatnonzero(counts[inverse] > 1)
    if not repeated.size:
        return pa.array(np.arange(rows.num_rows))
    winners = repeated[_least(rows.take(pa.array(repeated)), key, prefer)]
    return pa.array(np.sort(np.concatenate([np.flatnonzero(counts[inverse] == 1), winners])))


def hashed(rows: pa.Table, key: Sequence[str]) -> Keys:
    """The keys of the rows, in this order of their columns."""
    return keys_of([_one_array(rows.column(name)) for name in key])


def _least(rows: pa.Table, key: Sequence[str], prefer: Sequence[str]) -> NDArray[np.int64]:
    columns = [*prefer, *(name for name in rows.column_names if name not in prefer)]
    comparable = pa.table([_comparable(rows.column(name)) for name in columns], names=columns)
    order = pc.sort_indices(comparable, [(name, "ascending") for name in columns])
    ranked = rows.select(list(key)).take(order).append_column(_RANK, pa.array(np.arange(rows.num_rows)))
    best = ranked.group_by(list(key), use_threads=False).aggregate([(_RANK, "min")]).column(f"{_RANK}_min")
    chosen: NDArray[np.int64] = order.take(best).to_numpy().astype(np.int64)
    return chosen


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow does not order lists, structs and dictionaries: they are ordered by what they look like."""
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        texts = [None if value is None else repr(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
