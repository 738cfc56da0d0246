"""What compaction has to do: which relation segments need to be rewritten.

Limits: a rank sees 8 bytes of a string. Ranges of strings that differ only after them stay in one segment; when such
a segment has grown too large, all is rewritten, in the hope that all keys share a longer prefix by now.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.storage.relation_state import RelationFile
from etl.storage.relation_version import OpenVersion
from etl.storage.segment_cutting import can_be_cut

Stretch: TypeAlias = range
"""Segments side by side, by number."""
Needs: TypeAlias = npt.NDArray[np.bool_]
"""For each segment, whether it is to be rewritten."""


def needy_stretches(version: OpenVersion) -> list[Stretch]:
    """What compaction would rewrite: deltas, segments out of theta .. 2 * theta, files that are mostly dead."""
    state, table = version.state, version.table
    rows, theta = table.segment_rows, state.shape.theta
    needy = _with_deltas(version)
    for segment in np.flatnonzero((rows > 2 * theta) & ~needy).tolist():
        needy[segment] = _can_be_split(version, segment)
    if state.partitioning.segments > 1:
        needy |= rows < theta
    if needy.any() and is_crowded(version):
        needy[:] = True
    _add_neighbours(needy, rows, theta)
    _add_mostly_dead_files(version, needy)
    return _stretches(needy)


def is_crowded(version: OpenVersion) -> bool:
    """Whether ranks tell too little apart: then all segments are drawn anew, with ranks from other bytes."""
    if version.state.shape.partition != "range":
        return False
    too_large = np.flatnonzero(version.table.segment_rows > 2 * version.state.shape.theta)
    return any(
        not _can_be_split(version, segment) and _ranked_values_differ(version, segment)
        for segment in too_large.tolist()
    )


def _with_deltas(version: OpenVersion) -> Needs:
    needy = np.zeros(version.state.partitioning.segments, np.bool_)
    for file in version.state.deltas:
        needy |= _segments_in(version, file)
    return needy


def _add_mostly_dead_files(version: OpenVersion, needy: Needs) -> None:
    """A file of which less than half would live on is rewritten whole, so that dead rows never prevail."""
    for file in version.state.files:
        run, live = version.slices(file)
        segment = version.state.partitioning.segment_at(run.first_coordinate)
        left = live & ~needy[segment]
        if 0 < 2 * run.rows[left].sum() < file.run.rows:
            needy[segment[left]] = True


def _segments_in(version: OpenVersion, file: RelationFile) -> Needs:
    run, live = version.slices(file)
    touched = np.zeros(version.state.partitioning.segments, np.bool_)
    touched[version.state.partitioning.segment_at(run.first_coordinate[live])] = True
    return touched


def _can_be_split(version: OpenVersion, segment: int) -> bool:
    """Not when too many of its rows have the same coordinate: then it stays as large as it is."""
    shape, partitioning = version.state.shape, version.state.partitioning
    batches = version.table.read_segment(segment)
    coordinates = [partitioning.coordinates(shape.keys_of_stored(batch)) for batch in batches]
    return can_be_cut(np.concatenate(coordinates), shape.theta)


def _ranked_values_differ(version: OpenVersion, segment: int) -> bool:
    batches = version.table.read_segment(segment)
    values = pa.chunked_array([batch.column(version.state.shape.range_by) for batch in batches])
    lowest_and_highest = pc.min_max(values)
    return bool(lowest_and_highest["min"] != lowest_and_highest["max"])


def _stretches(needy: Needs) -> list[Stretch]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], needy, [False]])))
    return [range(start, end) for start, end in edges.reshape(-1, 2).tolist()]


def _add_neighbours(needy: Needs, rows: npt.NDArray[np.int64], theta: int) -> None:
    """A stretch with less than theta rows cannot make a segment: it takes in a neighbour, until it can."""
    for stretch in _stretches(needy):
        start, end = stretch[0], stretch[-1] + 1
        while rows[start:end].sum() < theta and end - start < rows.size:
            start, end = (start, end + 1) if end < rows.size else (start - 1, end)
        needy[start:end] = True
