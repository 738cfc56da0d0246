"""The bucketed window join: what a slot runs for each of its partition groups (thesis 7.4.4).

Idea: two streams join on equal keys and close event times (`etl.joins.window.time_windows` has the definition). A
group's rows are spread over buckets of theta to 2 * theta rows by an extendible directory, both sides together.
Arriving rows are joined at once, by a block nested loop over the other side's part of their bucket: that scan is what
a row costs, and why the buckets are kept small.
State: the directory; per side, rows in blocks by arrival, chains of entries (hash, event time, row number) by bucket,
and the watermark.
Invariants: a stored row has a key and an event time; its entry lies in the bucket of its hash; a row is stored only
while the other side is open. `Watermark(side, t)` says that later rows of this side are not older than t: the other
side's blocks that no such row can reach leave whole. A split or merge changes no result; it is left undone
where memory does not allow it.
Departures: the thesis keeps rows inside the buckets and defers the fresh ones of half-full blocks; here rows stay where
they arrived, so that a split moves 24 bytes a row and expiry is a matter of whole blocks, and every row is joined
when it arrives, so nothing is owed later. The scan compares hashes; keys are compared where the hash does not prove
them equal.
Limits: in memory only; rows over the budget are refused, as by `symmetric-hash`. A late row (behind its own side's
watermark) that comes all the same is joined with what is left of the other side, and counted in `late_rows`: its host
takes late rows out before, if pairs must not be missed. One key with more than 2 * theta rows is one large bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from etl.budget import WorkMeter
from etl.errors import BadInput, MemoryBudgetExceeded
from etl.events import Punctuation, Tick, Watermark
from etl.joins.catalogue import register
from etl.joins.contract import Emit, JoinPlan, Ports, Progress
from etl.joins.lifecycle import Operator
from etl.joins.parallel.buckets import Buckets
from etl.joins.parallel.extendible_directory import ExtendibleDirectory
from etl.joins.parallel.row_blocks import RowBlocks
from etl.joins.results import joined_pairs
from etl.joins.snapshots import OperatorState, Snapshot
from etl.joins.window.time_windows import TimeWindows, check_windows
from etl.kernels.block_chains import Entries
from etl.kernels.columns import ColumnView, view
from etl.kernels.compare import equal_rows
from etl.kernels.compiling import Int64s, UInt64s
from etl.kernels.hashing import hash_columns, proves_equality
from etl.settings import Json


@dataclass(frozen=True, slots=True)
class BucketedWindowSettings:
    """`windows` are in the unit of the event times: microseconds for timestamps.

    Rows expire by blocks of a `row_blocks`-th of the memory, or of `block_bytes` if that is more: many small blocks
    let rows go sooner, but pairs are gathered block by block.
    """

    event_times: tuple[str, str] = ("event_time", "event_time")
    windows: tuple[int, int] = (600_000_000, 600_000_000)
    theta_rows: int = 512
    row_blocks: int = 64

    def __post_init__(self) -> None:
        check_windows(self.event_times, self.windows)
        # A snapshot's settings come back as lists.
        object.__setattr__(self, "event_times", tuple(self.event_times))
        object.__setattr__(self, "windows", tuple(self.windows))
        if self.theta_rows < 1:
            raise BadInput(f"theta_rows is {self.theta_rows}: a bucket holds at least one row")
        if self.row_blocks < 1:
            raise BadInput(f"row_blocks is {self.row_blocks}: rows lie in at least one block")


@register(
    "bucketed-window",
    family="parallel",
    predicates=("equality", "time window"),
    spills="nothing",
    paper="thesis 7.4.4",
    settings=BucketedWindowSettings,
)
class BucketedWindow(Operator):
    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        settings = cast(BucketedWindowSettings, plan.settings)
        self._windows = TimeWindows.bind(plan.name, plan.sides, settings.event_times, settings.windows)
        super().__init__(plan, ports, saved)
        self._watermarks: list[int | None] = [None, None]
        self._rows = [self._no_rows(side) for side in (0, 1)]
        self._buckets = Buckets(ExtendibleDirectory(settings.theta_rows), plan.block_bytes)
        empty = [
            self._key_views(side, pa.RecordBatch.from_pylist([], schema)) for side, schema in enumerate(plan.sides)
        ]
        self._hash_proves = proves_equality(*empty)
        if saved is not None:
            self._load(saved)
        self._count_memory()

    def _refuse_rows(self, side: int, batch: pa.RecordBatch) -> None:
        if 1 - side not in self._open:
            return
        rows = self._rows[side].bytes_after(batch) + self._rows[1 - side].nbytes
        if rows + self._buckets.most_bytes_after(side, batch.num_rows) <= self.plan.memory_bytes:
            return
        arriving = self._joinable(side, batch)
        needed = rows + self._buckets.bytes_after(side, self._buckets.directory.bucket_of(arriving.hashes))
        if needed > self.plan.memory_bytes:
            raise MemoryBudgetExceeded(
                f"{self.plan.name}: {batch.num_rows} more rows on side {side} need {needed} bytes, memory_bytes is "
                f"{self.plan.memory_bytes}; it spills nothing: give more, shorten the windows or send watermarks"
            )

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        arriving = self._joinable(side, batch)
        if not arriving.batch.num_rows:
            return
        watermark = self._watermarks[side]
        if watermark is not None:
            self._bump("late_rows", int((arriving.times < watermark).sum()))
        self._join(side, arriving, emit)
        if 1 - side in self._open:
            self._store(side, arriving)
            self._bump("splits", self._buckets.split_large(self._bytes_for_buckets()))
            self._count_memory()

    def _notice(self, event: Watermark | Tick | Punctuation, emit: Emit) -> None:
        if not isinstance(event, Watermark):
            return
        current = self._watermarks[event.side]
        if current is not None and event.instant <= current:
            return
        self._watermarks[event.side] = event.instant
        waiting = 1 - event.side
        rows = self._rows[waiting]
        if rows.expire(self._windows.needed_from(waiting, event.instant)):
            self._buckets.expire(waiting, rows.first_number)
            self._bump("merges", self._buckets.merge_small(self._bytes_for_buckets()))
            self._count_memory()

    def _end(self, side: int, emit: Emit) -> None:
        waiting = 1 - side
        self._rows[waiting] = self._no_rows(waiting)
        self._buckets.clear(waiting)
        self._count_memory()

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        return Progress.IDLE if self._open else Progress.DONE

    def _state(self) -> OperatorState:
        stored = {f"side {side}": rows.to_batches() for side, rows in enumerate(self._rows)}
        return OperatorState(
            values={
                "watermarks": cast(Json, list(self._watermarks)),
                "directory": self._buckets.directory.to_json(),
            },
            tables={name: batches for name, batches in stored.items() if batches},
        )

    def _load(self, saved: Snapshot) -> None:
        self._watermarks = list(cast(list[int | None], saved.state.values["watermarks"]))
        directory = ExtendibleDirectory.from_json(cast(dict[str, Json], saved.state.values["directory"]))
        self._buckets = Buckets(directory, self.plan.block_bytes)
        for side in (0, 1):
            for batch in saved.state.tables.get(f"side {side}", ()):
                self._store(side, self._joinable(side, batch))

    def _release(self) -> None:
        self._rows = []
        del self._buckets

    def _join(self, side: int, arriving: _Arriving, emit: Emit) -> None:
        """Emit the pairs of arriving rows with what the other side holds."""
        other, stored = 1 - side, self._rows[1 - side]
        buckets = self._buckets.directory.bucket_of(arriving.hashes)
        self._counters.rows_compared += self._buckets.rows_to_scan(other, buckets)
        reach = self._windows.reach(side, arriving.times)
        found = self._buckets.scan(
            other, buckets, arriving.hashes, reach, stored.first_number, limit=self.plan.result_rows
        )
        for rows, numbers in found:
            joined: list[pa.RecordBatch] = []
            for piece, block, places in stored.by_block(rows, numbers):
                if not self._hash_proves:
                    equal = equal_rows(arriving.views, piece, block.views(self.plan.keys[other]), places)
                    piece, places = piece[equal], places[equal]
                if piece.size:
                    joined.extend(joined_pairs(self.plan, side, (arriving.batch, piece), (block, places)))
            for results in _together(joined):
                self._push(results, emit)

    def _store(self, side: int, arriving: _Arriving) -> None:
        rows = self._rows[side]
        first = rows.next_number
        rows.append(arriving.batch, arriving.times)
        buckets = self._buckets.directory.bucket_of(arriving.hashes)
        self._buckets.insert(
            side, buckets, Entries(arriving.hashes, arriving.times, np.arange(first, rows.next_number))
        )

    def _joinable(self, side: int, batch: pa.RecordBatch) -> _Arriving:
        """The rows that can join: with a key and an event time."""
        batch = self._windows.timed(side, batch)
        views = self._key_views(side, batch)
        keys = hash_columns(views)
        if keys.valid is not None:
            batch = batch.filter(pa.array(keys.valid))
            views = self._key_views(side, batch)
            keys = hash_columns(views)
        return _Arriving(batch, views, keys.hashes, self._windows.times(side, batch))

    def _key_views(self, side: int, batch: pa.RecordBatch) -> list[ColumnView]:
        return [view(batch.column(position)) for position in self.plan.keys[side]]

    def _no_rows(self, side: int) -> RowBlocks:
        row_blocks = cast(BucketedWindowSettings, self.plan.settings).row_blocks
        return RowBlocks(self.plan.sides[side], max(self.plan.block_bytes, self.plan.memory_bytes // row_blocks))

    def _bytes_for_buckets(self) -> int:
        return self.plan.memory_bytes - sum(rows.nbytes for rows in self._rows)

    def _count_memory(self) -> None:
        self._memory.set(sum(rows.nbytes for rows in self._rows) + self._buckets.nbytes)


class _Arriving(NamedTuple):
    """Rows of one batch that can join, with what is asked of them more than once."""

    batch: pa.RecordBatch
    views: list[ColumnView]
    hashes: UInt64s
    times: Int64s


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of all, unless strings pass the 2 GiB of a plain string column."""
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        return batches
