"""The partitioned hybrid join: a stream against a relation on disk, with a join memory and a wait buffer.

Idea: a stream row belongs to one relation segment. If the segment is in the join memory, or the filters say that no
segment holds the key, the row is answered at once; otherwise it waits, and one disk probe of the segment serves all
rows that wait for it. Segments that were just read compete for a place in the join memory by arrival frequency.

State: the rows in the wait buffer. Everything else (which segments are in memory, frequencies, filters, the
frequent-key cache) only decides how fast a row is answered, never what the answer is; no snapshot holds it.
Invariants: a row is answered once and whole, from one relation version that is not older than its arrival; a row waits
at most until `deadline` ticks have passed; memory of all parts together stays within the budget plus one batch.
Source: thesis 6.3, algorithms 8 and 9. Departures: waiting rows have a deadline (as printed, a quiet segment waits for
ever); rows go through in batches, so the row mode of 6.3.4 answers a batch at once and the block mode lets rows of
segments in memory wait until a block of them is together; the occupancy that switches between the two is the wait
buffer's, since the input queue belongs to whoever drives the operator. A disk probe takes as many segments as its
budget allows in one kernel call, largest first. Mapped pages are the operating system's: a disk probe has no read
buffer of its own, and a segment enters the join memory as a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.budget import WorkMeter
from etl.errors import BadInput
from etl.events import Punctuation, Tick, Watermark
from etl.joins.contract import Emit, JoinPlan, Ports, Progress
from etl.joins.hybrid.front import Front
from etl.joins.hybrid.segment_memory import SegmentMemory
from etl.joins.hybrid.wait_buffer import WaitBuffer, Waiting
from etl.joins.lifecycle import Operator
from etl.joins.snapshots import OperatorState, Snapshot
from etl.storage.ports import Keys, RelationView

EndlessWait = -1
_FEW = 8
"""One row in so many is a few."""


@dataclass(frozen=True, slots=True)
class PartitionedSettings:
    """The thesis' parameters under their names here (its defaults in brackets), and the shares of the memory."""

    invocation_rows: int = 1
    """Rows that must wait for a segment before idle time is spent on it [3,000]: more rows a probe, longer waits."""
    freed_share: float = 0.4
    """How much of a full wait buffer a round of disk probes frees [r_wb 0.4]."""
    rho: float = 0.25
    """By how much a segment must be more in demand than the one it replaces [0.25]."""
    decay: float = 0.3
    """What is left of an arrival frequency after an epoch [alpha 0.3]."""
    epoch_rows: int = 0
    """Arrivals that make an epoch [tau]; 0 takes 1,000 for each segment."""
    deadline: int = EndlessWait
    """Ticks that a row may wait; -1 for no bound but the end of the stream."""
    high_mark: float = 0.8
    low_mark: float = 0.2
    """Occupancy of the wait buffer that switches to block granularity, and back to rows."""
    wait_share: float = 0.1
    filter_share: float = 0.25
    cache_share: float = 0.1
    frequent_after: int = 8
    """Arrivals after which a key is worth a place in the frequent-key cache."""

    def check(self, name: str) -> None:
        shares = self.wait_share + self.filter_share + self.cache_share
        for setting, fine in (
            ("invocation_rows", self.invocation_rows >= 1),
            ("freed_share", 0 < self.freed_share <= 1),
            ("rho", self.rho >= 0),
            ("decay", 0 < self.decay <= 1),
            ("epoch_rows", self.epoch_rows >= 0),
            ("deadline", self.deadline >= EndlessWait),
            ("low_mark", 0 <= self.low_mark <= self.high_mark),
            ("wait_share", self.wait_share > 0 and shares <= 1),
            ("filter_share", self.filter_share >= 0),
            ("cache_share", self.cache_share >= 0),
            ("frequent_after", self.frequent_after >= 1),
        ):
            if not fine:
                raise BadInput(f"{name}: setting {setting} is {getattr(self, setting)}, which is out of range")


class Partitioned(Operator):
    """What hash- and range-partitioned joins share: all of it but the kind of the relation."""

    partition: str

    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self._settings = cast(PartitionedSettings, plan.settings)
        self._settings.check(plan.name)
        relation = self._relation()
        if relation.partition != self.partition:
            raise BadInput(
                f"{plan.name} needs a relation that is partitioned by {self.partition}; relation {relation.name} is "
                f"partitioned by {relation.partition}: take {relation.partition}-partitioned, or create it anew"
            )
        memory, settings = plan.memory_bytes, self._settings
        self._front = Front(
            plan,
            relation,
            filter_bytes=int(settings.filter_share * memory),
            cache_bytes=int(settings.cache_share * memory),
            frequent_after=settings.frequent_after,
        )
        self._answers = self._front.answers
        self._instant = 0
        self._gathers_blocks = False
        self._shares = False
        self._seen = relation
        self._wait_capacity = max(1, int(settings.wait_share * memory))
        self._waiting = WaitBuffer(relation.segments)
        for_segments = int((1 - settings.wait_share - settings.cache_share) * memory) - self._front.filter_bytes
        self._segments = SegmentMemory(relation, for_segments, settings.rho, settings.decay, settings.epoch_rows)
        if saved is not None:
            self._wait_again(saved)
        self._count_memory()

    # For `shared`: several of these over one relation

    def share(self, segments: SegmentMemory) -> None:
        """Use a segment memory that others use too; whoever shares it moves it to newer versions and counts it."""
        self._segments.release()
        self._segments = segments
        self._shares = True
        self._count_memory()

    @property
    def segments_in_memory(self) -> NDArray[np.bool_]:
        """Which relation segments can be probed without the disk, to be looked at only."""
        return self._segments.in_memory

    @property
    def waiting_rows(self) -> NDArray[np.int64]:
        """How many rows wait for each segment, to be looked at only."""
        return self._waiting.rows

    def answer_segments(self, segments: NDArray[np.intp], emit: Emit) -> None:
        """Answer the rows that wait for segments that somebody has just read."""
        if self._waiting.rows[segments].any():
            self._answer_waiting(self._waiting.take(segments), emit)

    # Events

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        keys = self._answers.keys(batch)
        segment = self._segments.relation.segment_of(keys)
        self._segments.arrive(segment)
        pending = self._front.answer(batch, keys, segment, self._pushing(emit), self._bump)
        if not self._gathers_blocks:
            self._answer_from_memory(batch, keys, segment, pending, emit)
        self._wait(batch, segment, pending)
        self._relieve(emit)
        self._choose_granularity(emit)

    def _notice(self, event: Watermark | Tick | Punctuation, emit: Emit) -> None:
        """A tick makes rows due: their segments are probed whatever the budget, or they would wait for ever."""
        if not isinstance(event, Tick):
            return
        self._instant = max(self._instant, event.instant)
        if self._settings.deadline != EndlessWait:
            due = self._waiting.due(self._instant - self._settings.deadline + 1)
            if due.size:
                self._counters.blocks_read += self._disk_probe(due, emit)

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        threshold = self._settings.invocation_rows if self._open else 1
        while (ready := np.flatnonzero(self._waiting.rows >= threshold)).size:
            if meter.spent:
                return Progress.MORE
            largest_first = ready[np.argsort(-self._waiting.rows[ready], kind="stable")]
            chosen = largest_first[: self._affordable(largest_first, meter)]
            rows = int(self._waiting.rows[chosen].sum())
            meter.charge(self._disk_probe(chosen, emit), rows)
        return Progress.IDLE if self._open else Progress.DONE

    def _adopt(self, relation: RelationView, emit: Emit) -> None:
        """Rows that wait are answered from the newer version: they have seen nothing of the older one."""
        self._front.adopt(relation)
        self._segments.adopt(relation)
        seen, self._seen = self._seen, relation
        if not relation.same_segments(seen):
            waiting = self._waiting.batches()
            self._waiting = WaitBuffer(relation.segments)
            for instant, rows in waiting:
                self._wait_for_segments(rows, instant)
        self._count_memory()

    # Answering

    def _answer_from_memory(
        self,
        batch: pa.RecordBatch,
        keys: Keys,
        segment: NDArray[np.int32],
        pending: NDArray[np.bool_],
        emit: Emit,
    ) -> None:
        here = pending & self._segments.in_memory[segment]
        hits = int(np.count_nonzero(here))
        if not hits:
            return
        pending &= ~here
        self._bump("memory_hits", hits)
        if hits * _FEW <= len(here):
            # A probe walks over all rows that it is given; a few are better copied out first.
            rows, segment = batch.filter(pa.array(here)), segment[here]
            self._probe(rows, self._answers.keys(rows), segment, np.ones(hits, np.bool_), emit)
        else:
            self._probe(batch, keys, np.where(here, segment, np.int32(-1)), here, emit)

    def _probe(
        self,
        rows: pa.RecordBatch,
        keys: Keys,
        segment: NDArray[np.int32],
        asked: NDArray[np.bool_],
        emit: Emit,
    ) -> None:
        """Answer the asked rows from the blocks of their segments, in memory or mapped."""
        unmatched = asked.copy()
        lesson = self._front.lesson(keys, asked)
        table, version = self._segments.table, self._segments.relation.version
        for pairs in table.probe(segment, keys, self.plan.result_rows):
            unmatched[pairs.positions] = False
            related = table.take(self._answers.columns, pairs)
            self._push(self._answers.joined(rows, pairs.positions, related, version), emit)
            if lesson is not None:
                lesson.hear(pairs.positions, related)
        if lesson is not None:
            lesson.learn()
        self._front.push_unmatched(rows, unmatched, self._pushing(emit))

    # Waiting

    def _wait(self, batch: pa.RecordBatch, segment: NDArray[np.int32], pending: NDArray[np.bool_]) -> None:
        if pending.all():
            self._waiting.add(batch, segment, self._instant)
        elif pending.any():
            self._waiting.add(batch.filter(pa.array(pending)), segment[pending], self._instant)
        self._count_memory()

    def _relieve(self, emit: Emit) -> None:
        """A full wait buffer: probe the segments that most rows wait for until enough of it is free."""
        if self._waiting.nbytes <= self._wait_capacity:
            return
        order = np.argsort(-self._waiting.rows, kind="stable")
        waiting = np.cumsum(self._waiting.rows[order])
        kept = (1 - self._settings.freed_share) * waiting[-1]
        enough = int(np.searchsorted(waiting, waiting[-1] - kept)) + 1
        largest = order[:enough]
        self._counters.blocks_read += self._disk_probe(largest[self._waiting.rows[largest] > 0], emit)
        if self._waiting.nbytes > self._wait_capacity:
            self._waiting.shrink()
        if self._waiting.nbytes > self._wait_capacity:
            self._counters.blocks_read += self._disk_probe(np.flatnonzero(self._waiting.rows), emit)
        self._count_memory()

    def _choose_granularity(self, emit: Emit) -> None:
        occupancy = self._waiting.nbytes / self._wait_capacity
        if not self._gathers_blocks and occupancy > self._settings.high_mark:
            self._gathers_blocks = True
        elif self._gathers_blocks:
            back_to_rows = occupancy < self._settings.low_mark
            self._answer_waiting_in_memory(at_least=1 if back_to_rows else self._block_rows(), emit=emit)
            self._gathers_blocks = not back_to_rows

    def _answer_waiting_in_memory(self, at_least: int, emit: Emit) -> None:
        full = np.flatnonzero(self._segments.in_memory & (self._waiting.rows >= at_least))
        if full.size:
            self._answer_waiting(self._waiting.take(full), emit)

    def _block_rows(self) -> int:
        """How many waiting rows make a block."""
        rows = len(self._waiting)
        return max(1, self.plan.block_bytes * rows // max(1, self._waiting.nbytes))

    def _disk_probe(self, segments: NDArray[np.intp], emit: Emit) -> int:
        """Read these segments, answer all rows that wait for them, and let the segments compete for memory."""
        blocks = self._segments.read(segments, self._waiting.rows[segments])
        self._answer_waiting(self._waiting.take(segments), emit)
        if self._open or self._shares:  # otherwise nobody will ask for them again
            self._segments.keep_some(segments)
        self._bump("disk_probes", len(segments))
        self._count_memory()
        return blocks

    def _answer_waiting(self, waiting: Waiting, emit: Emit) -> None:
        keys = self._answers.keys(waiting.rows)
        self._probe(waiting.rows, keys, waiting.segment, np.ones(len(waiting.segment), np.bool_), emit)
        self._count_memory()

    def _affordable(self, segments: NDArray[np.intp], meter: WorkMeter) -> int:
        """How many of these segments the budget pays for: at least one, and at most one block too many."""
        blocks = np.cumsum(self._segments.relation.segment_blocks[segments])
        rows = np.cumsum(self._waiting.rows[segments])
        within = (blocks <= meter.blocks_left) & (rows <= meter.rows_left)
        return max(1, int(within.sum()))

    # Versions, memory, state

    def _count_memory(self) -> None:
        of_segments = 0 if self._shares else self._segments.nbytes
        self._memory.set(self._waiting.nbytes + self._front.nbytes + of_segments)

    def _state(self) -> OperatorState:
        waiting = self._waiting.batches()
        tables = {f"waiting {number}": [rows] for number, (_, rows) in enumerate(waiting)}
        instants = [instant for instant, _ in waiting]
        return OperatorState(values={"instant": self._instant, "arrived": [*instants]}, tables=tables)

    def _wait_again(self, saved: Snapshot) -> None:
        self._instant = cast(int, saved.state.values["instant"])
        for number, instant in enumerate(cast(list[int], saved.state.values["arrived"])):
            for rows in saved.state.tables[f"waiting {number}"]:
                self._wait_for_segments(rows, instant)

    def _wait_for_segments(self, rows: pa.RecordBatch, instant: int) -> None:
        self._waiting.add(rows, self._segments.relation.segment_of(self._answers.keys(rows)), instant)

    def _release(self) -> None:
        self._waiting.clear()
        self._front.release()
        if not self._shares:
            self._segments.release()
