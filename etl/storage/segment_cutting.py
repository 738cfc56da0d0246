"""Cutting rows into relation segments of theta to 2 * theta rows.

Idea: rows come in portions of ascending coordinates, each portion in any order inside. A segment is cut off whenever
three thetas are at hand, one and a half at a time, so that what is left always makes one or two segments more.

Invariants: rows of equal coordinate lie in one segment. A segment has less than theta rows only when it is the only
one, and more than two thetas only when many of its rows share a coordinate.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.storage.partitioning import Coordinates


class SegmentRows(NamedTuple):
    """The rows of one segment, in no order, and the lowest of their coordinates."""

    lowest: int
    rows: pa.RecordBatch


class SegmentCutter:
    """Takes portions by `feed`; what `feed` and `finish` yield together are all rows, segment by segment."""

    def __init__(self, schema: pa.Schema, theta: int) -> None:
        self._theta = theta
        self._rows = schema.empty_table().combine_chunks()
        self._coordinates: Coordinates = np.empty(0, np.uint64)

    def feed(self, rows: pa.Table, coordinates: Coordinates) -> Iterator[SegmentRows]:
        """More rows; all of their coordinates lie above those of earlier portions."""
        self._rows = pa.concat_tables([self._rows, rows]).combine_chunks()
        self._coordinates = np.concatenate([self._coordinates, coordinates])
        yield from self._cut(ended=False)

    def finish(self) -> Iterator[SegmentRows]:
        yield from self._cut(ended=True)

    def _cut(self, ended: bool) -> Iterator[SegmentRows]:
        if not self._rows.num_rows:
            return
        order = np.argsort(self._coordinates, kind="stable")
        ascending = self._coordinates[order]
        start = 0
        for end in _ends(ascending, self._theta, ended):
            yield SegmentRows(int(ascending[start]), _one_batch(self._rows, order[start:end]))
            start = end
        self._rows = self._rows.take(pa.array(order[start:])).combine_chunks()
        self._coordinates = ascending[start:]


def can_be_cut(coordinates: Coordinates, theta: int) -> bool:
    """Whether a segment with these coordinates would be cut in two or more."""
    return len(list(_ends(np.sort(coordinates), theta, ended=True))) > 1


def _ends(ascending: Coordinates, theta: int, ended: bool) -> Iterator[int]:
    """Where segments end; the rest is left for later unless the rows have ended."""
    cuts = np.flatnonzero(ascending[1:] != ascending[:-1]) + 1
    start, rows = 0, ascending.size
    while rows - start >= 3 * theta:
        end = _best_cut(cuts, start + theta, start + 2 * theta, start + theta + theta // 2)
        if end is None or rows - end < theta:
            break
        yield end
        start = end
    if ended and start < rows:
        if rows - start > 2 * theta:
            end = _best_cut(cuts, start + theta, rows - theta, (start + rows) // 2)
            if end is not None and end <= rows - theta:
                yield end
        yield rows


def _best_cut(cuts: npt.NDArray[np.int64], least: int, most: int, wanted: int) -> int | None:
    """The cut nearest to `wanted` from `least` to `most`; else the first one after; None when there is none."""
    after = int(np.searchsorted(cuts, wanted))
    near = [int(cut) for cut in cuts[max(after - 1, 0) : after + 1] if least <= cut <= most]
    if near:
        return min(near, key=lambda cut: abs(cut - wanted))
    beyond = int(np.searchsorted(cuts, least))
    return int(cuts[beyond]) if beyond < cuts.size else None


def _one_batch(rows: pa.Table, index: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return rows.take(pa.array(index)).combine_chunks().to_batches()[0]
