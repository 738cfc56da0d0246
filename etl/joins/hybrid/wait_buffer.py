"""The wait buffer: stream rows that await a disk probe, found by relation segment.

Rows enter in chunks that are sorted by segment, so that the rows of a segment are a slice of each chunk: taking them
costs what they are, not what the buffer holds. A chunk is let go when its last row is taken; one that is mostly taken
is written anew, so that what is held stays within twice what waits.

State: the chunks, and how many rows and bytes wait for each segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.kernels.scatter import scatter

Counts = NDArray[np.int64]
Segments = NDArray[np.int32]
Offsets = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows that were taken out together, and the segment that each one waited for."""

    rows: pa.RecordBatch
    segment: Segments


class WaitBuffer:
    def __init__(self, segments: int) -> None:
        self._chunks: list[_Chunk] = []
        self.rows: Counts = np.zeros(segments, np.int64)
        self.nbytes = 0

    def __len__(self) -> int:
        return int(self.rows.sum())

    def add(self, rows: pa.RecordBatch, segment: Segments, instant: int) -> None:
        """Rows that arrived at this instant."""
        if rows.num_rows == 0:
            return
        order, offsets = scatter(segment, len(self.rows))
        lengths = np.diff(offsets)
        present = np.flatnonzero(lengths).astype(np.int32)
        chunk = _Chunk(rows.take(pa.array(order)), present, lengths[present], instant)
        self._chunks.append(chunk)
        self.rows += lengths
        self.nbytes += chunk.nbytes

    def take(self, segments: NDArray[np.integer]) -> Waiting:
        """All rows that wait for these segments; they wait no longer."""
        wanted = np.zeros(len(self.rows), np.bool_)
        wanted[segments] = True
        parts = [chunk.take(wanted) for chunk in self._chunks]
        self.rows[wanted] = 0
        self._tidy()
        return _joined([part for part in parts if part is not None])

    def largest(self) -> int:
        """The segment that most rows wait for; the lowest number among equals."""
        return int(self.rows.argmax())

    def due(self, before: int) -> NDArray[np.intp]:
        """The segments with a row that arrived before this instant."""
        found = np.zeros(len(self.rows), np.bool_)
        for chunk in self._chunks:
            if chunk.instant < before:
                found[chunk.segments[~chunk.taken]] = True
        return np.flatnonzero(found)

    def batches(self) -> list[tuple[int, pa.RecordBatch]]:
        """Everything that waits, with the instant of its arrival."""
        return [(chunk.instant, chunk.left()) for chunk in self._chunks]

    def shrink(self) -> None:
        """Let go of all room that taken rows have left."""
        self._tidy(most_taken=0.0)

    def clear(self) -> None:
        self._chunks = []
        self.rows[:] = 0
        self.nbytes = 0

    def _tidy(self, most_taken: float = 0.5) -> None:
        """Write chunks anew of which more than this share has been taken."""
        left = [chunk for chunk in self._chunks if chunk.rows_left]
        self._chunks = [chunk.rewritten() if chunk.taken_share > most_taken else chunk for chunk in left]
        self.nbytes = sum(chunk.nbytes for chunk in self._chunks)


class _Chunk:
    """Rows that arrived together, sorted by segment: which segments, where the rows of each begin, which are taken.

    What it takes beside the rows follows from their number, not from that of the relation's segments: rows that come
    one at a time wait cheaply.
    """

    __slots__ = ("instant", "offsets", "rows", "rows_left", "segments", "taken")

    def __init__(self, rows: pa.RecordBatch, segments: Segments, lengths: NDArray[np.integer], instant: int) -> None:
        self.rows = rows
        self.segments = segments
        self.offsets: Offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.taken = np.zeros(len(segments), np.bool_)
        self.instant = instant
        self.rows_left = rows.num_rows

    @property
    def nbytes(self) -> int:
        beside = self.segments.nbytes + self.offsets.nbytes + self.taken.nbytes
        return int(self.rows.get_total_buffer_size()) + beside

    @property
    def taken_share(self) -> float:
        return 1.0 - float(self.rows_left) / float(self.rows.num_rows)

    def take(self, wanted: NDArray[np.bool_]) -> Waiting | None:
        chosen = np.flatnonzero(wanted[self.segments] & ~self.taken)
        if chosen.size == 0:
            return None
        part = self._part(chosen)
        self.taken[chosen] = True
        self.rows_left -= part.rows.num_rows
        return part

    def left(self) -> pa.RecordBatch:
        return self._part(np.flatnonzero(~self.taken)).rows

    def rewritten(self) -> _Chunk:
        left = np.flatnonzero(~self.taken)
        return _Chunk(self._part(left).rows, self.segments[left], np.diff(self.offsets)[left], self.instant)

    def _part(self, chosen: NDArray[np.intp]) -> Waiting:
        """The rows of these ranges."""
        starts = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - starts
        segment = np.repeat(self.segments[chosen], lengths)
        if segment.size == self.rows.num_rows:
            return Waiting(self.rows, segment)
        # One range after the other: a running number plus where each range begins.
        shift = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        return Waiting(self.rows.take(pa.array(np.arange(segment.size) + shift)), segment)


def _joined(parts: list[Waiting]) -> Waiting:
    if len(parts) == 1:
        return parts[0]
    return Waiting(pa.concat_batches([part.rows for part in parts]), np.concatenate([part.segment for part in parts]))
