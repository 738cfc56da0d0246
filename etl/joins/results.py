"""Results: the rows of both inputs at matched positions, as bounded record batches in the plan's column order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from etl.joins.contract import JoinPlan
from etl.rows import Index, RowBuffer


def joined_pairs(
    plan: JoinPlan, side: int, arriving: tuple[pa.RecordBatch, Index], stored: tuple[RowBuffer, Index]
) -> Iterator[pa.RecordBatch]:
    """Pairs of an arriving batch on `side` with stored rows of the other side; one batch unless strings pass 2 GiB."""
    batch, arriving_index = arriving
    rows, stored_index = stored
    try:
        columns = [taken(batch, arriving_index), rows.take(stored_index)]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        # Arrow's plain string arrays end at 2 GiB: two halves may fit where the whole does not.
        if len(arriving_index) == 1:
            raise
        for half in np.array_split(np.arange(len(arriving_index)), 2):
            yield from joined_pairs(plan, side, (batch, arriving_index[half]), (rows, stored_index[half]))
        return
    yield pa.RecordBatch.from_arrays([*columns[side], *columns[1 - side]], schema=plan.result_schema)


def taken(batch: pa.RecordBatch, index: Index) -> list[pa.Array]:
    """The batch's columns at these rows; without a copy when every row is taken once, in order."""
    rows = batch.num_rows
    if len(index) == rows and index[-1] == rows - 1 and bool((index == np.arange(rows)).all()):
        return list(batch.columns)
    return list(batch.take(pa.array(index)).columns)
