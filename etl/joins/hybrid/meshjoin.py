"""MESHJOIN: a cyclic scan of the relation beside a queue of stream segments.

Idea: stream rows gather in queue segments. Each time one is full, the next relation segment is read and joined with all
rows of the queue, so one sequential read serves the whole queue; a queue segment that has met all k relation segments
leaves. Every row is answered within one cycle of the scan, whatever its key.

State: the queue segments, each with the rows it has, which of them have matched, and how many relation segments it has
still to meet; the rows that do not fill a queue segment yet; for each relation version in use, the place of its scan.
Invariants: a queue segment meets every segment of one relation version exactly once, and that version is not older than
the arrival of its rows. A newer version is taken up when a cycle ends: queue segments that were filled since it was
offered wait for that, older ones finish their cycle over the version they began with.
Source: thesis 6.2 (Polyzotis et al.). Departures: the printed algorithm knows a constant relation only; and as printed
it does nothing before a queue segment is full, so that a quiet stream waits for ever: here idle time drives the scan on
too. Rows probe the sorted blocks of the relation segment, not the other way round: the pairs are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.budget import WorkMeter
from etl.errors import BadInput
from etl.joins.catalogue import register
from etl.joins.contract import Emit, JoinPlan, Ports, Progress
from etl.joins.hybrid.front import Front
from etl.joins.lifecycle import Operator
from etl.joins.snapshots import OperatorState, Snapshot
from etl.storage.ports import Keys, RelationStore, RelationView


@dataclass(frozen=True, slots=True)
class MeshJoinSettings:
    queue_rows: int = 0
    """Rows in a queue segment [w]; 0 divides the memory by the number of relation segments."""
    scan_when_idle: bool = True
    """Whether idle time drives the scan on before a queue segment is full: shorter waits, more reads a row."""
    filter_share: float = 0.0
    cache_share: float = 0.0
    """Shares of the memory for what answers rows before they queue; MESHJOIN itself has neither."""
    frequent_after: int = 8

    def check(self, name: str) -> None:
        for setting, fine in (
            ("queue_rows", self.queue_rows >= 0),
            ("filter_share", 0 <= self.filter_share <= 0.5),
            ("cache_share", 0 <= self.cache_share <= 0.4),
            ("frequent_after", self.frequent_after >= 1),
        ):
            if not fine:
                raise BadInput(f"{name}: setting {setting} is {getattr(self, setting)}, which is out of range")


@register(
    "meshjoin",
    family="hybrid",
    predicates=("equality",),
    spills="nothing",
    paper="thesis 6.2",
    settings=MeshJoinSettings,
    streams=1,
    with_relation=True,
)
class MeshJoin(Operator):
    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self._settings = settings = cast(MeshJoinSettings, plan.settings)
        settings.check(plan.name)
        relation = self._relation()
        self._front = Front(
            plan,
            relation,
            filter_bytes=int(settings.filter_share * plan.memory_bytes),
            cache_bytes=int(settings.cache_share * plan.memory_bytes),
            frequent_after=settings.frequent_after,
        )
        self._gathering: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._next: list[_QueueSegment] = []
        self._scans = [_Scan(relation)]
        if saved is not None:
            self._load(saved)
        self._count_memory()

    # Events

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        newest = self._relation()
        keys = self._front.answers.keys(batch)
        push = self._pushing(emit)
        pending = self._front.answer(batch, keys, newest.segment_of(keys), push, self._bump)
        self._gather(batch if pending.all() else batch.filter(pa.array(pending)))
        if self._gathered_rows >= self._queue_rows(batch):
            self._drive(emit)
        while self._memory.used > self.plan.memory_bytes and self._waits():
            self._drive(emit)

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        while self._waits() and (self._settings.scan_when_idle or not self._open):
            if meter.spent:
                return Progress.MORE
            self._seal()
            meter.charge(*self._step(emit))
        return Progress.IDLE if self._open else Progress.DONE

    def _adopt(self, relation: RelationView, emit: Emit) -> None:
        """Rows that came before may be answered from it too, as long as they have met nothing of the version before."""
        self._seal()
        self._front.adopt(relation)
        self._begin_next_cycle()
        self._count_memory()

    # The queue

    def _gather(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            # Its own memory: a slice would keep the whole batch.
            self._gathering.append(pa.concat_batches([rows, rows.slice(0, 0)]))
            self._gathered_rows += rows.num_rows
            self._count_memory()

    def _seal(self) -> None:
        """The gathered rows become a queue segment."""
        if not self._gathering:
            return
        rows = pa.concat_batches(self._gathering)
        segment = _QueueSegment(rows, self._front.answers.keys(rows), np.zeros(rows.num_rows, np.bool_), 0)
        self._gathering, self._gathered_rows = [], 0
        scan = self._scans[-1]
        if scan.relation.version == self._relation().version:
            scan.enter(segment)
        else:
            self._next.append(segment)
        self._count_memory()

    def _queue_rows(self, batch: pa.RecordBatch) -> int:
        if self._settings.queue_rows:
            return self._settings.queue_rows
        row_bytes = max(1, int(batch.nbytes) // batch.num_rows) + _QueueSegment.BYTES_BESIDE_A_ROW
        share = 1 - self._settings.filter_share - self._settings.cache_share
        return max(1, int(share * self.plan.memory_bytes / row_bytes / self._relation().segments))

    def _waits(self) -> bool:
        return bool(self._gathering or self._next or any(scan.queue for scan in self._scans))

    # The scan

    def _drive(self, emit: Emit) -> None:
        """Arriving rows drive the scan on by one step."""
        self._seal()
        blocks, rows = self._step(emit)
        self._counters.blocks_read += blocks
        self._counters.rows_compared += rows

    def _step(self, emit: Emit) -> tuple[int, int]:
        """Each version in use has its next segment read and joined with its queue; blocks read and rows compared."""
        self._begin_next_cycle()
        blocks = rows = 0
        for scan in self._scans:
            if scan.queue:
                blocks += scan.relation.count_reads([scan.place])
                rows += sum(segment.rows.num_rows for segment in scan.queue)
                self._join_segment(scan, emit)
        self._begin_next_cycle()
        self._count_memory()
        return blocks, rows

    def _join_segment(self, scan: _Scan, emit: Emit) -> None:
        relation, table = scan.relation, scan.relation.block_table()
        newest = relation.version == self._relation().version
        for queued in scan.queue:
            place = np.full(queued.rows.num_rows, scan.place, np.int32)
            lesson = self._front.lesson(queued.keys, place >= 0) if newest else None
            for pairs in table.probe(place, queued.keys, self.plan.result_rows):
                queued.matched[pairs.positions] = True
                related = table.take(self._front.answers.columns, pairs)
                answer = self._front.answers.joined(queued.rows, pairs.positions, related, relation.version)
                self._push(answer, emit)
                if lesson is not None:
                    lesson.hear(pairs.positions, related)
            if lesson is not None:
                # A key lies in one relation segment, so this one has shown all its rows.
                lesson.learn()
        for expired in scan.advance():
            for answer in self._front.answers.unmatched(expired.rows, ~expired.matched, relation.version):
                self._push(answer, emit)

    def _begin_next_cycle(self) -> None:
        """Move to the newest version if the cycle of the one in use is at its end; drop scans that serve nobody."""
        newest = self._relation()
        current = self._scans[-1]
        if current.relation.version != newest.version and (current.place == 0 or not current.queue):
            self._scans.append(_Scan(newest))
            for segment in self._next:
                self._scans[-1].enter(segment)
            self._next = []
        self._scans = [scan for scan in self._scans[:-1] if scan.queue] + self._scans[-1:]

    # Memory and state

    def _count_memory(self) -> None:
        # With what they will need in the queue: to seal a queue segment must not go above the memory.
        gathered = sum(rows.get_total_buffer_size() for rows in self._gathering)
        gathered += _QueueSegment.BYTES_BESIDE_A_ROW * self._gathered_rows
        queued = sum(segment.nbytes for segment in self._segments())
        self._memory.set(gathered + queued + self._front.nbytes)

    def _segments(self) -> list[_QueueSegment]:
        return [*self._next, *(segment for scan in self._scans for segment in scan.queue)]

    def _state(self) -> OperatorState:
        tables: dict[str, Sequence[pa.RecordBatch]] = {}
        if self._gathering:
            tables["gathering"] = [*self._gathering]
        groups = [("next", self._next), *((f"scan {number}", scan.queue) for number, scan in enumerate(self._scans))]
        for group, segments in groups:
            for number, segment in enumerate(segments):
                tables[f"{group} segment {number}"] = [segment.to_batch()]
        return OperatorState(
            values={
                "next": len(self._next),
                "scans": [
                    {
                        "version": scan.relation.version,
                        "place": scan.place,
                        "left": [segment.left for segment in scan.queue],
                    }
                    for scan in self._scans
                ],
            },
            tables=tables,
        )

    def _load(self, saved: Snapshot) -> None:
        tables, values = saved.state.tables, saved.state.values
        self._gathering = list(tables.get("gathering", ()))
        self._gathered_rows = sum(rows.num_rows for rows in self._gathering)
        self._next = [self._queued(tables[f"next segment {number}"], 0) for number in range(cast(int, values["next"]))]
        self._scans = []
        for number, scan in enumerate(cast(list[dict[str, object]], values["scans"])):
            left = cast(list[int], scan["left"])
            queue = [self._queued(tables[f"scan {number} segment {at}"], left[at]) for at in range(len(left))]
            relation = self._at_version(cast(int, scan["version"]))
            self._scans.append(_Scan(relation, cast(int, scan["place"]), queue))
        self._begin_next_cycle()

    def _queued(self, batches: Sequence[pa.RecordBatch], left: int) -> _QueueSegment:
        stored = pa.concat_batches(batches)
        rows = pa.RecordBatch.from_arrays(stored.columns[:-1], schema=self.plan.sides[0])
        matched = stored.column(stored.num_columns - 1).to_numpy(zero_copy_only=False).copy()
        return _QueueSegment(rows, self._front.answers.keys(rows), matched, left)

    def _at_version(self, version: int) -> RelationView:
        """Rows that are half-way through a version have to finish it: they have been given some of their answers."""
        relation = self._relation()
        return relation if relation.version == version else cast(RelationStore, relation).at(version)

    def _release(self) -> None:
        self._gathering, self._next = [], []
        self._scans = [_Scan(self._relation())]
        self._front.release()


@dataclass(slots=True)
class _QueueSegment:
    """Rows that arrived one after the other, and how many relation segments they have still to meet."""

    rows: pa.RecordBatch
    keys: Keys
    matched: NDArray[np.bool_]
    left: int

    BYTES_BESIDE_A_ROW = 9  # its hash and whether it has matched

    @property
    def nbytes(self) -> int:
        return int(self.rows.get_total_buffer_size()) + self.keys.hashes.nbytes + self.matched.nbytes

    def to_batch(self) -> pa.RecordBatch:
        columns = [*self.rows.columns, pa.array(self.matched)]
        return pa.RecordBatch.from_arrays(columns, [*self.rows.schema.names, "_matched"])


class _Scan:
    """The cyclic scan of one relation version, and the queue segments that are on it."""

    def __init__(self, relation: RelationView, place: int = 0, queue: list[_QueueSegment] | None = None) -> None:
        self.relation = relation
        self.place = place
        self.queue = [] if queue is None else queue

    def enter(self, segment: _QueueSegment) -> None:
        segment.left = self.relation.segments
        self.queue.append(segment)

    def advance(self) -> list[_QueueSegment]:
        """On to the next relation segment; the queue segments that have met them all leave."""
        self.place = (self.place + 1) % self.relation.segments
        for segment in self.queue:
            segment.left -= 1
        expired = [segment for segment in self.queue if segment.left == 0]
        self.queue = [segment for segment in self.queue if segment.left]
        return expired
