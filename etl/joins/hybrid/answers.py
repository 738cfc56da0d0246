"""Answers of the hybrid joins: stream rows beside the relation's rows, as bounded record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.joins.contract import JoinPlan
from etl.joins.results import taken
from etl.rows import Index
from etl.storage.ports import CREATED_BY_COLUMN, Keys, keys_of


class Answers:
    """Makes results of one plan. Every result says which relation version it was made from."""

    def __init__(self, plan: JoinPlan, relation_schema: pa.Schema) -> None:
        self._plan = plan
        self._relation_schema = relation_schema
        self.columns = [*relation_schema.names, CREATED_BY_COLUMN]

    def keys(self, rows: pa.RecordBatch) -> Keys:
        """The stream's keys, in the order of the relation's key."""
        return keys_of([rows.column(position) for position in self._plan.keys[0]])

    def unmatched(self, rows: pa.RecordBatch, which: NDArray[np.bool_], version: int) -> Iterator[pa.RecordBatch]:
        """What a left join owes for rows without a match; an inner join owes nothing."""
        if self._plan.how != "left":
            return
        index = np.flatnonzero(which)
        for start in range(0, len(index), self._plan.result_rows):
            piece = index[start : start + self._plan.result_rows]
            nothing = [pa.nulls(len(piece), field.type) for field in self._relation_schema]
            yield self.joined(rows, piece, [*nothing, pa.nulls(len(piece), pa.string())], version)

    def joined(self, rows: pa.RecordBatch, index: Index, related: Sequence[pa.Array], version: int) -> pa.RecordBatch:
        seen = pa.array(np.full(len(index), version, np.int64))
        return pa.RecordBatch.from_arrays([*taken(rows, index), *related, seen], schema=self._plan.result_schema)
