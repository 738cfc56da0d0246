"""Items by relation segment: those of segment s are numbered `starts[s]` to `starts[s + 1] - 1`.

Kernels index by these numbers without looking twice, so they are checked here, once for a whole batch.
"""

import numpy as np

from etl.kernels.compiling import Int32s, Int64s

__all__ = ["checked_starts", "checked_segments"]


def checked_starts(starts: Int64s, items: int, name: str) -> Int64s:
    """The starts as a kernel takes them; refuses ranges that descend or name an item that is not there."""
    starts = np.ascontiguousarray(starts, dtype=np.int64)
    if starts.size == 0:
        raise ValueError(f"{name} is empty: it has one entry more than there are segments")
    if starts[0] < 0 or starts[-1] > items or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"{name} must ascend within 0..{items}, one entry more than there are segments")
    return starts


def checked_segments(segment: Int32s, rows: int, segments: int) -> Int32s:
    """The segment of each row as a kernel takes it; -1 stands for none."""
    if segment.size != rows:
        raise ValueError(f"there are {segment.size} segment numbers for {rows} rows: give one per row")
    if rows and not -1 <= segment.min() <= segment.max() < segments:
        culprit = int(np.flatnonzero((segment < -1) | (segment >= segments))[0])
        raise IndexError(f"row {culprit} is in segment {segment[culprit]}, but there are {segments} segments")
    return np.ascontiguousarray(segment, dtype=np.int32)
