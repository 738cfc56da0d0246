"""What a join must deliver, by definition: nested loops over Python rows. Shares no code with the operators."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

Row = tuple[object, ...]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in zip(*(_values(column) for column in batch.columns), strict=True)]


def inner_join(left: Sequence[Row], right: Sequence[Row], on: Sequence[tuple[int, int]]) -> Counter[Row]:
    """Every pair whose key columns are equal and not null, as often as it occurs."""
    return Counter(
        first + second for first in left for second in right if all(_equal(first[i], second[j]) for i, j in on)
    )


def window_join(
    left: Sequence[Row],
    right: Sequence[Row],
    on: Sequence[tuple[int, int]],
    times: tuple[int, int],
    windows: tuple[int, int],
) -> Counter[Row]:
    """The pairs of the inner join in which one row was in its side's window when the other came, by event time.

    `times` are the positions of the event times; a row without one joins nothing.
    """
    return Counter(
        {
            pair: count
            for pair, count in inner_join(left, right, on).items()
            if _in_window(pair[times[0]], pair[times[1] + (len(pair) - len(right[0]))], windows)
        }
    )


def _in_window(first: object, second: object, windows: tuple[int, int]) -> bool:
    if first is None or second is None:
        return False
    a, b = _instant(first), _instant(second)
    return a - b <= windows[1] if a >= b else b - a <= windows[0]


def _instant(value: object) -> int:
    """Microseconds, if it is a timestamp."""
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1, tzinfo=value.tzinfo)) // datetime.timedelta(microseconds=1)
    assert isinstance(value, int)
    return value


def _equal(first: object, second: object) -> bool:
    return first is not None and second is not None and first == second


def _values(column: pa.Array) -> list[object]:
    return [tuple(value) if isinstance(value, list) else value for value in column.to_pylist()]
