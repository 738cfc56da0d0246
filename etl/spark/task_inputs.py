"""The rows of one task, sorted out: by side and partition group, late rows and rows put aside apart.

What comes from Spark are rows of `side`, `group`, packed columns and a struct for rows put aside (side -1). One
counting sort brings the rows of a side and group together, one gather for each side copies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.kernels.compiling import Int32s
from etl.kernels.scatter import scatter
from etl.spark.correlation import Correlation
from etl.spark.group_inputs import GroupInputs
from etl.spark.packed_rows import Layout, unpacked


@dataclass
class TaskInputs:
    """`rows` counts the rows of each side, late ones too; `event_time` is the highest of each side that has one."""

    watermarks: Mapping[int, int]
    rows: list[int]
    event_time: dict[int, int] = field(default_factory=dict)
    late: dict[int, pa.RecordBatch] = field(default_factory=dict)
    aside: pa.RecordBatch | None = None
    _of_side: dict[int, tuple[pa.RecordBatch, Int32s]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, plan: Correlation, layout: Layout, watermarks: Mapping[int, int], batches: Iterable[pa.RecordBatch]
    ) -> TaskInputs:
        inputs = cls(watermarks, [0] * len(plan.sides))
        arrived = [batch for batch in batches if batch.num_rows]
        if arrived:
            inputs._sort_out(plan, layout, pa.Table.from_batches(arrived).combine_chunks().to_batches()[0])
        return inputs

    @property
    def groups(self) -> list[int]:
        """The groups that have rows, in ascending order."""
        found = {int(group) for _, groups in self._of_side.values() for group in np.unique(groups)}
        return sorted(found)

    def of_group(self, group: int) -> GroupInputs:
        rows = {}
        for side, (batch, groups) in self._of_side.items():
            first, end = np.searchsorted(groups, [group, group + 1])
            if end > first:
                rows[side] = batch.slice(first, end - first)
        return GroupInputs(self.watermarks, rows)

    def _sort_out(self, plan: Correlation, layout: Layout, arrived: pa.RecordBatch) -> None:
        sides, groups = (arrived.column(name).to_numpy(zero_copy_only=False) for name in ("side", "group"))
        # Rows put aside come first, then side by side, in each the groups in ascending order.
        place = np.where(sides < 0, 0, 1 + sides * plan.groups + groups).astype(np.int32)
        order, offsets = scatter(place, 1 + len(plan.sides) * plan.groups)
        if offsets[1]:
            self.aside = pa.RecordBatch.from_struct_array(arrived.column("aside").take(pa.array(order[: offsets[1]])))
        for side, schema in enumerate(plan.sides):
            chosen = order[offsets[1 + side * plan.groups] : offsets[1 + (side + 1) * plan.groups]]
            if len(chosen):
                self.rows[side] = len(chosen)
                rows = unpacked(arrived, chosen, layout[side], schema)
                self._admit(side, plan.event_times[side], rows, groups[chosen])

    def _admit(self, side: int, event_time_column: str | None, rows: pa.RecordBatch, groups: Int32s) -> None:
        """Rows below the side's watermark are late. A row without an event time never is."""
        if event_time_column is not None:
            event_time = rows.column(event_time_column).cast(pa.int64())
            watermark = self.watermarks.get(side)
            if watermark is not None:
                late = pc.fill_null(pc.less(event_time, watermark), False)
                if pc.any(late).as_py():
                    punctual = pc.invert(late)
                    self.late[side] = rows.filter(late)
                    rows, event_time = rows.filter(punctual), event_time.filter(punctual)
                    groups = groups[punctual.to_numpy(zero_copy_only=False)]
            highest = pc.max(event_time).as_py()
            if highest is not None:
                self.event_time[side] = highest
        if rows.num_rows:
            self._of_side[side] = rows, groups
