"""One hybrid join under a stream of arrivals, on a virtual clock: when would each result have come out?

Idea: the operators are the real ones over real files; only time is made up. Rows are offered when they have arrived and
the operator is free; when nothing has arrived, it gets one unit of work. What it reads from the relation is charged to
a disk model, the rows that it touches to a processor, and each result is stamped with the clock at its emission. Rows
that arrive meanwhile queue up.

State: the clock, the next row to offer, and what the relation's counters said last.
Invariants: deterministic; one thing at a time (no overlap of disk, processor and operator).
Limits: the source hands rows over at intervals (`handover_seconds`), so a delay is up to that much longer than a join
fed row by row would show; every block read pays an access, also one that follows the block before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.joins import EndOfSide, Operator, Progress, Rows, WorkBudget
from etl.storage.disk_model import DiskModel, VirtualClock
from etl.storage.relation import Relation
from etl.streams.arrival_models import Arrivals

STREAM = pa.schema(
    [("key", pa.int64()), ("row_number", pa.int64()), ("arrival", pa.float64()), ("payload", pa.binary(40))]
)
"""A stream row of 64 bytes."""

DELAY_BOUNDS: NDArray[np.float64] = np.geomspace(1e-3, 6000.0, 320)
"""From a millisecond to 100 minutes, each bound a twentieth above the one before."""

_ONE_UNIT = WorkBudget(blocks=1)


@dataclass(frozen=True, slots=True)
class Machine:
    """What an access to the disk, the bytes behind it, and a row in memory cost."""

    access_seconds: float
    bytes_per_second: float
    seconds_per_row: float
    """For each stream row taken, each relation row read, and each result."""
    handover_seconds: float
    """How often the source hands rows over."""
    most_rows_at_once: int
    """How many rows the operator is offered at once, when more have queued up."""


class Window(NamedTuple):
    """From when to when a simulation measures; it goes on until its end and starts at zero."""

    start: float
    end: float


@dataclass(slots=True)
class Measured:
    """What one simulation saw in its window, and the answer as a whole."""

    results_in_window: int = 0
    delay_seconds: float = 0.0
    delays: NDArray[np.int64] = field(default_factory=lambda: np.zeros(DELAY_BOUNDS.size + 1, np.int64))
    """Results by delay, between `DELAY_BOUNDS`."""
    owed_results: int = 0
    owed_seconds: float = 0.0
    """Results that were still owed when the window ended, and how long they had been by then."""
    disk_seconds: float = 0.0
    processor_seconds: float = 0.0
    most_buffered: int = 0
    buffered: list[tuple[float, int]] = field(default_factory=list)
    """Rows that had arrived and were not offered yet, at instants of the run."""
    results: int = 0
    row_number_sum: int = 0
    peak_memory_bytes: int = 0

    def at_full_size(self, scale: float) -> Measured:
        """With buffered rows counted as those that they stand for."""
        buffered = [(instant, round(rows * scale)) for instant, rows in self.buffered]
        return replace(self, most_buffered=round(self.most_buffered * scale), buffered=buffered)

    @property
    def mean_delay(self) -> float:
        return self.delay_seconds / self.results_in_window if self.results_in_window else float("nan")

    @property
    def mean_delay_with_owed(self) -> float:
        """As if all that was owed had come when the window ended: leaving rows to wait gains nothing."""
        results = self.results_in_window + self.owed_results
        return (self.delay_seconds + self.owed_seconds) / results if results else float("nan")

    @property
    def median_delay(self) -> float:
        """Half of the results came sooner: the upper bound of the bin, which is at most a twentieth too much."""
        if not self.results_in_window:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.delays), self.results_in_window / 2))
        return float(DELAY_BOUNDS[min(at, DELAY_BOUNDS.size - 1)])

    @property
    def answer(self) -> tuple[int, int]:
        """The same for every exact join of the same inputs."""
        return self.results, self.row_number_sum


def pooled(runs: Sequence[Measured]) -> Measured:
    """Several runs as one: their results together, times and buffers on average."""
    return Measured(
        results_in_window=sum(run.results_in_window for run in runs),
        delay_seconds=sum(run.delay_seconds for run in runs),
        delays=np.sum([run.delays for run in runs], axis=0),
        owed_results=sum(run.owed_results for run in runs),
        owed_seconds=sum(run.owed_seconds for run in runs),
        disk_seconds=fmean(run.disk_seconds for run in runs),
        processor_seconds=fmean(run.processor_seconds for run in runs),
        most_buffered=round(fmean(run.most_buffered for run in runs)),
        peak_memory_bytes=max(run.peak_memory_bytes for run in runs),
    )


def stream_rows(arrivals: Arrivals) -> pa.RecordBatch:
    """All rows of a stream, in the order of arrival."""
    rows = arrivals.keys.size
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(40), rows, [None, pa.py_buffer(bytes(40 * rows))])
    columns = [pa.array(arrivals.keys), pa.array(np.arange(rows)), pa.array(arrivals.instants), payload]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM)


def simulate(
    operator: Operator, relation: Relation, stream: pa.RecordBatch, machine: Machine, window: Window
) -> Measured:
    """Run the operator through the whole stream; results after the window are counted in the answer only."""
    return _Simulation(operator, relation, stream, machine, window).run()


class _Simulation:
    def __init__(
        self, operator: Operator, relation: Relation, stream: pa.RecordBatch, machine: Machine, window: Window
    ) -> None:
        self._operator = operator
        self._relation = relation
        self._stream = stream
        self._instants: NDArray[np.float64] = stream.column("arrival").to_numpy()
        self._machine = machine
        self._window = window
        self._clock = VirtualClock()
        self._disk = DiskModel(machine.access_seconds, machine.bytes_per_second, self._clock)
        self._offered = 0
        self._over = False
        self._blocks_read = relation.counters.blocks_read
        self._bytes_read = relation.counters.bytes_read
        self._row_bytes = float(relation.segment_bytes.sum()) / max(1, relation.rows)
        self._measured = Measured()

    def run(self) -> Measured:
        while self._clock.seconds < self._window.end:
            arrived = int(np.searchsorted(self._instants, self._clock.seconds, side="right"))
            self._note_buffered(arrived - self._offered)
            if arrived > self._offered:
                self._offer(min(arrived, self._offered + self._machine.most_rows_at_once))
            elif not self._work():
                self._sleep()
        self._finish()
        self._measured.peak_memory_bytes = self._operator.counters.peak_memory_bytes
        return self._measured

    def _offer(self, end: int) -> None:
        rows = self._stream.slice(self._offered, end - self._offered)
        self._offered = end
        self._touch(rows.num_rows)
        self._operator.offer(Rows(0, rows), self._emit)
        self._pay_for_reads()

    def _work(self) -> bool:
        """One unit of work; whether there was any."""
        before = self._clock.seconds
        self._operator.work(_ONE_UNIT, self._emit)
        self._pay_for_reads()
        return self._clock.seconds > before

    def _sleep(self) -> None:
        """Until the source hands over rows again, or to the end."""
        awake = self._window.end
        if self._offered < self._instants.size:
            awake = min(awake, float(self._instants[self._offered]) + self._machine.handover_seconds)
        self._clock.advance(awake - self._clock.seconds)

    def _finish(self) -> None:
        """What is owed still comes, after the window, so that answers can be compared."""
        self._over = True
        while self._offered < self._instants.size:
            self._offer(min(self._instants.size, self._offered + self._machine.most_rows_at_once))
        self._operator.offer(EndOfSide(0), self._emit)
        while self._operator.work(WorkBudget(), self._emit) is not Progress.DONE:
            pass

    def _emit(self, results: pa.RecordBatch) -> None:
        self._pay_for_reads()
        self._touch(results.num_rows)
        measured, now = self._measured, self._clock.seconds
        measured.results += results.num_rows
        measured.row_number_sum += int(results.column("row_number").to_numpy().sum())
        arrivals = results.column("arrival").to_numpy()
        if self._over:
            waited = self._window.end - arrivals
            measured.owed_results += results.num_rows
            measured.owed_seconds += float(waited.sum())
        elif self._in_window():
            measured.results_in_window += results.num_rows
            delays = now - arrivals
            measured.delay_seconds += float(delays.sum())
            measured.delays += np.bincount(np.searchsorted(DELAY_BOUNDS, delays), minlength=measured.delays.size)

    def _pay_for_reads(self) -> None:
        """Charge what was read since the last look: an access for each block, and the bytes."""
        counters = self._relation.counters
        blocks, size = counters.blocks_read - self._blocks_read, counters.bytes_read - self._bytes_read
        if not blocks:
            return
        begun = self._clock.seconds
        for number in range(blocks):
            self._disk.access(("block", self._blocks_read + number), 0, size // blocks)
        if self._in_window():
            self._measured.disk_seconds += self._clock.seconds - begun
        self._blocks_read, self._bytes_read = counters.blocks_read, counters.bytes_read
        self._touch(round(size / self._row_bytes))

    def _touch(self, rows: int) -> None:
        seconds = rows * self._machine.seconds_per_row
        self._clock.advance(seconds)
        if self._in_window():
            self._measured.processor_seconds += seconds

    def _in_window(self) -> bool:
        return not self._over and self._window.start <= self._clock.seconds <= self._window.end

    def _note_buffered(self, rows: int) -> None:
        if self._in_window():
            self._measured.most_buffered = max(self._measured.most_buffered, rows)
            self._measured.buffered.append((self._clock.seconds, rows))
