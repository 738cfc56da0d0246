"""Compaction: deltas merged into their segments, segments back to theta .. 2 * theta rows.

Idea: the segments that need it form stretches; each stretch is read segment by segment, cut anew and written to new
runs, and what is left of the old runs is marked dead or dropped. Readers keep the version they have. Appenders go
on meanwhile: when their versions came first, the rows of their loads are written once more under the new boundaries,
and the commit is tried again after them. Of two compactions the log lets one win; the other starts over from
what the winner left to do.

Invariants: a row is in the compacted runs or in the runs of loads that came after, never in both: a load's rows are
told by their `_created_by`. All deltas are taken up, so that no slice of an old segment survives a split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import AlreadyPublished
from etl.storage.appending import only_loads_since, remove_runs
from etl.storage.bulk_load import LoadSettings, Spool, portions, spooled_partitioning, write_segments
from etl.storage.compaction_planning import Stretch, is_crowded, needy_stretches
from etl.storage.partitioning import Coordinates, Partitioning
from etl.storage.ports import CREATED_BY_COLUMN
from etl.storage.relation_rows import CREATED_WITH_RELATION, block_batches, sliced_block
from etl.storage.relation_runs import write_run
from etl.storage.relation_state import Interval, RelationFile, VersionState
from etl.storage.relation_version import OpenVersion, timestamp, with_checkpoint
from etl.storage.segment_cutting import SegmentCutter
from etl.storage.writers import run_label


def compact(version: OpenVersion, settings: LoadSettings) -> OpenVersion:
    """The newest version, compacted; itself when there is nothing to do."""
    while True:
        base = version.newest()
        stretches = needy_stretches(base)
        if not stretches:
            return base
        with base.parts.writers.working() as token:
            rewriting = _rewrite(base, stretches, token, settings)
            committed = _commit(base, rewriting, token)
        if committed is not None:
            return committed


@dataclass(slots=True)
class _Rewriting:
    """What a compaction has written so far."""

    partitioning: Partitioning
    kept: tuple[RelationFile, ...]
    written: tuple[RelationFile, ...]
    since: list[RelationFile] = field(default_factory=list)
    """Rows of loads that committed meanwhile."""

    @property
    def files(self) -> tuple[RelationFile, ...]:
        return (*self.kept, *self.written, *self.since)


def _rewrite(base: OpenVersion, stretches: Sequence[Stretch], token: str, settings: LoadSettings) -> _Rewriting:
    state, drawn = base.state, _Drawn(base, settings)
    segments = drawn.all_anew() if is_crowded(base) else drawn.stretches(stretches)
    label = run_label("compacted", token)
    runs = list(write_segments(base.parts.runs, state.shape, label, segments, settings.run_bytes))
    first = min((file.first_version for file in state.files), default=1)
    written = tuple(RelationFile(run, False, first, state.version) for run in runs)
    dead = [
        (state.partitioning.interval(stretch[0])[0], state.partitioning.interval(stretch[-1])[1])
        for stretch in stretches
    ]
    return _Rewriting(drawn.partitioning(), _still_alive(base, dead), written)


class _Drawn:
    """Draws segments anew: yields their rows, and knows the boundaries when all are done."""

    def __init__(self, base: OpenVersion, settings: LoadSettings) -> None:
        self._base = base
        self._shape = base.state.shape
        self._settings = settings
        self._old = base.state.partitioning
        self._boundaries: list[int] = []
        self._total = base.state.rows
        self._done = 0

    def partitioning(self) -> Partitioning:
        return self._old.redrawn(np.array(self._boundaries or [0], np.uint64))

    def all_anew(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The whole relation; ranks may be taken from other bytes than before."""
        spool = Spool(self._shape, self._settings)
        try:
            for segment in range(self._old.segments):
                for batch in self._base.table.read_segment(segment):
                    spool.add(batch)
            self._old = spooled_partitioning(self._shape, spool)
            yield from self._cut(0, portions(self._shape, spool, self._old, self._settings))
        finally:
            spool.close()

    def stretches(self, stretches: Sequence[Stretch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some stretches; the segments between them keep their boundaries."""
        before = 0
        for stretch in stretches:
            self._boundaries += self._old.boundaries[before : stretch[0]].tolist()
            first = int(self._old.boundaries[stretch[0]])
            yield from self._cut(first, self._portions(stretch))
            before = stretch[-1] + 1
        self._boundaries += self._old.boundaries[before:].tolist()

    def _portions(self, stretch: Stretch) -> Iterator[tuple[pa.Table, Coordinates]]:
        for segment in stretch:
            spool = Spool(self._shape, self._settings)
            try:
                for batch in self._base.table.read_segment(segment):
                    spool.add(batch)
                yield from portions(self._shape, spool, self._old, self._settings)
            finally:
                spool.close()

    def _cut(
        self, first: int, ascending: Iterator[tuple[pa.Table, Coordinates]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        cutter = SegmentCutter(self._shape.stored, self._shape.theta)
        pieces = chain.from_iterable(cutter.feed(rows, coordinates) for rows, coordinates in ascending)
        is_first = True
        for lowest, rows in chain(pieces, cutter.finish()):
            self._boundaries.append(first if is_first else lowest)
            is_first = False
            yield self._boundaries[-1], rows
            self._done += rows.num_rows
            self._settings.progress("compacting", self._done, self._total)
        if is_first:
            self._boundaries.append(first)  # a stretch without rows is still a segment


def _commit(base: OpenVersion, rewriting: _Rewriting, token: str) -> OpenVersion | None:
    """Commit after the loads that came first; None when it was another compaction, or they cannot be told any more."""
    parts, current = base.parts, base
    while True:
        after = with_checkpoint(parts, _compacted(current, rewriting), token, now=True)
        try:
            parts.log.commit(after, current.state)
        except AlreadyPublished:
            newest = current.newest()
            if not only_loads_since(current, newest):
                remove_runs(current, after)
                return None
            remove_runs(current, replace(after, files=()))
            rewriting.since += _rewritten_loads(newest, current.state.version, rewriting, token)
            current = newest
        else:
            return OpenVersion(parts, after, base)


def _compacted(current: OpenVersion, rewriting: _Rewriting) -> VersionState:
    return replace(
        current.state,
        partitioning=rewriting.partitioning,
        version=current.state.version + 1,
        work="compact",
        created_at=timestamp(current.parts.clock),
        load_id=CREATED_WITH_RELATION,
        files=rewriting.files,
    )


def _rewritten_loads(newest: OpenVersion, after: int, rewriting: _Rewriting, token: str) -> list[RelationFile]:
    """The rows of loads that committed after version `after`, under the new boundaries."""
    last = newest.state.version
    loads = pa.array(newest.parts.log.loads(after + 1, last), pa.string())
    files = [file for file in newest.state.files if file.last_version > after]
    batches = [batch.filter(pc.is_in(batch.column(CREATED_BY_COLUMN), loads)) for batch in newest.rows_in(files)]
    shape = newest.state.shape
    rows = pa.Table.from_batches(batches, shape.stored)
    blocks = (sliced_block(shape, rewriting.partitioning, batch) for batch in block_batches(rows))
    run = write_run(newest.parts.runs, shape, run_label("meanwhile", token), blocks)
    return [] if run is None else [RelationFile(run, True, after + 1, last)]


def _still_alive(base: OpenVersion, dead: Sequence[Interval]) -> tuple[RelationFile, ...]:
    """The old files of which something is left, with the rewritten stretches marked."""
    marked = [replace(file, dead=_merged([*file.dead, *dead])) for file in base.state.files]
    return tuple(file for file in marked if base.slices(file).live.any())


def _merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
