"""Which of several rows with one key counts: the first by a stated order, however the rows were shuffled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_RANK = "rank of the row"


def first_of_each_key(rows: pa.Table, key: Sequence[str], prefer: Sequence[str] = ()) -> pa.ChunkedArray:
    """The position of one row for each key: the least by the `prefer` columns, then by all others; nulls last.

    Positions come in that order too. Rows that are alike in every column are the same row, so which of them counts does
    not show. No row has a null in its key.
    """
    columns = [*prefer, *(name for name in rows.column_names if name not in prefer)]
    comparable = pa.table([_comparable(rows.column(name)) for name in columns], names=columns)
    order = pc.sort_indices(comparable, [(name, "ascending") for name in columns])
    ranked = rows.select(list(key)).take(order).append_column(_RANK, pa.array(np.arange(rows.num_rows)))
    best = ranked.group_by(list(key), use_threads=False).aggregate([(_RANK, "min")]).column(f"{_RANK}_min")
    return order.take(best.take(pc.sort_indices(best)))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow does not order lists, structs and dictionaries: they are ordered by what they look like."""
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        texts = [None if value is None else repr(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column
