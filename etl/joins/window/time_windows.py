"""Time windows: which event times a row can meet on the other side, and when it can meet none any more.

A row a of side 0 and a row b of side 1 with equal keys join if a was in its window when b came or b was in its own
when a came, by event time: -windows[0] <= a.t - b.t <= windows[1]. Both ends belong to it. The order of arrival
plays no part, so batch cuts and delays change no result. A row without an event time joins nothing.

Event times are 64-bit integers, or timestamps in microseconds; windows and watermarks are in the same unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.compiling import Int64s

EARLIEST = -(2**63)
LATEST = 2**63 - 1


def check_windows(event_times: Sequence[str], windows: Sequence[int]) -> None:
    """Refuse settings that no pair of schemas could fit."""
    if len(event_times) != 2 or len(windows) != 2:
        raise BadInput(
            f"event_times {tuple(event_times)!r}, windows {tuple(windows)!r}: give one for each of two sides"
        )
    for side, window in enumerate(windows):
        if not 0 <= window <= LATEST:
            raise BadInput(f"windows[{side}] is {window}: a window is 0 or longer, in the event times' unit")


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """The windows of one join, bound to its sides' columns."""

    columns: tuple[int, int]
    windows: tuple[int, int]

    @classmethod
    def bind(
        cls, owner: str, sides: Sequence[pa.Schema], event_times: Sequence[str], windows: Sequence[int]
    ) -> TimeWindows:
        """`BadInput` names the side and the column that does not fit; `owner` is the join."""
        check_windows(event_times, windows)
        first, second = (_column(owner, side, sides[side], event_times[side]) for side in (0, 1))
        types = sides[0].field(first).type, sides[1].field(second).type
        if types[0] != types[1]:
            raise BadInput(
                f"{owner}: event times of different types, side 0 column {event_times[0]!r} is {types[0]}, "
                f"side 1 column {event_times[1]!r} is {types[1]}: cast one of them"
            )
        return cls((first, second), (windows[0], windows[1]))

    def timed(self, side: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have an event time."""
        times = batch.column(self.columns[side])
        return batch.filter(times.is_valid()) if times.null_count else batch

    def times(self, side: int, batch: pa.RecordBatch) -> Int64s:
        """Event times of rows that all have one."""
        array = batch.column(self.columns[side])
        return np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8) if len(array) else _NONE

    def reach(self, side: int, times: Int64s) -> tuple[Int64s, Int64s]:
        """The lowest and the highest event time that each row of this side meets on the other."""
        back, ahead = self.windows[1 - side], self.windows[side]
        lowest = np.where(times < EARLIEST + back, EARLIEST, times - back)
        highest = np.where(times > LATEST - ahead, LATEST, times + ahead)
        return lowest, highest

    def needed_from(self, side: int, watermark: int) -> int:
        """Rows of this side with an older event time meet nothing once the *other* side's watermark is there."""
        return min(max(watermark - self.windows[side], EARLIEST), LATEST)


_NONE: Int64s = np.empty(0, np.int64)


def _column(owner: str, side: int, schema: pa.Schema, name: str) -> int:
    positions = schema.get_all_field_indices(name)
    if len(positions) != 1:
        raise BadInput(
            f"{owner}: event_times names column {name!r}, which side {side} has {len(positions)} times: "
            f"it has {', '.join(map(repr, schema.names))}"
        )
    type_ = schema.field(positions[0]).type
    if type_ != pa.int64() and not (pa.types.is_timestamp(type_) and type_.unit == "us"):
        raise BadInput(
            f"{owner}: side {side} event time column {name!r} is {type_}: "
            "cast it to int64 or to a timestamp in microseconds"
        )
    return int(positions[0])
