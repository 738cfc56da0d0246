"""Hash-partitioned hybrid join: a stream against a relation on disk, one relation segment at a time.

Idea: arriving rows wait by relation segment, so that reading a segment serves all rows that wait for it. A disk probe
takes the segment with the most waiting bytes; it happens in `work`, or at once when waiting rows fill the memory.
State: per relation segment the rows that wait for it; the relation version in use.
Invariants: a row waits in exactly one segment and is answered whole, from one version, when that segment is probed;
that version is not older than the row's arrival. A key with a null matches nothing and never waits.
Source: thesis 6.3, in its simplest form: every segment stays on disk, there is no join memory of hot segments yet and
no invocation threshold, and the disk probe reads all blocks of a segment (its base and its delta runs) in one unit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.budget import WorkMeter
from etl.joins.catalogue import register
from etl.joins.contract import Emit, JoinPlan, Ports, Progress
from etl.joins.lifecycle import Operator
from etl.joins.results import taken
from etl.joins.snapshots import OperatorState, Snapshot
from etl.kernels.columns import ColumnView, view
from etl.kernels.hashing import KeyHashes, hash_columns
from etl.kernels.scatter import scatter
from etl.rows import Index
from etl.storage.ports import RelationView


@register(
    "hash-partitioned",
    family="hybrid",
    predicates=("equality",),
    spills="nothing",
    paper="thesis 6.3",
    streams=1,
    with_relation=True,
)
class HashPartitioned(Operator):
    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self._current = self._relation()
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in range(self._current.segments)]
        self._waiting_bytes = np.zeros(self._current.segments, np.int64)
        if saved is not None:
            for batch in saved.state.tables.get("waiting", ()):
                self._wait(batch, hash_columns(self._key_views(batch)))

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        keys = hash_columns(self._key_views(batch))
        if keys.valid is not None:
            if self.plan.how == "left":
                self._emit_unmatched(batch, ~keys.valid, emit)
            batch = batch.filter(pa.array(keys.valid))
            keys = KeyHashes(keys.hashes[keys.valid], None)
        self._wait(batch, keys)
        while self._memory.used > self.plan.memory_bytes:
            self._disk_probe(emit)

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        while self._waiting_bytes.any():
            if meter.spent:
                return Progress.MORE
            blocks, rows = self._disk_probe(emit)
            meter.charge(blocks, rows)
        return Progress.IDLE if self._open else Progress.DONE

    def _adopt(self, relation: RelationView, emit: Emit) -> None:
        """Rows that wait are answered from the newer version; they have seen nothing of the older one."""
        self._current = relation

    def _state(self) -> OperatorState:
        waiting = [batch for batches in self._waiting for batch in batches]
        return OperatorState(tables={"waiting": waiting} if waiting else {})

    def _release(self) -> None:
        self._waiting = []
        self._waiting_bytes = np.zeros(0, np.int64)

    def _key_views(self, batch: pa.RecordBatch) -> list[ColumnView]:
        return [view(batch.column(position)) for position in self.plan.keys[0]]

    def _wait(self, batch: pa.RecordBatch, keys: KeyHashes) -> None:
        segment_of_row = self._current.segment_of(keys.hashes)
        order, offsets = scatter(segment_of_row, self._current.segments)
        for segment in np.flatnonzero(np.diff(offsets)):
            rows = batch.take(pa.array(order[offsets[segment] : offsets[segment + 1]]))
            self._waiting[segment].append(rows)
            self._waiting_bytes[segment] += rows.get_total_buffer_size()
        self._memory.set(int(self._waiting_bytes.sum()))

    def _disk_probe(self, emit: Emit) -> tuple[int, int]:
        """Answer all rows that wait for the fullest segment; the blocks read and the rows compared."""
        segment = int(self._waiting_bytes.argmax())
        rows = pa.concat_batches(self._waiting[segment])
        self._waiting[segment] = []
        self._waiting_bytes[segment] = 0
        blocks_before = self._current.counters.blocks_read
        matched = np.zeros(rows.num_rows, np.bool_)
        views = self._key_views(rows)
        for positions, related in self._current.probe(segment, views, hash_columns(views)):
            matched[positions] = True
            self._emit_matched(rows, positions, related, emit)
        if self.plan.how == "left":
            self._emit_unmatched(rows, ~matched, emit)
        self._memory.set(int(self._waiting_bytes.sum()))
        return self._current.counters.blocks_read - blocks_before, rows.num_rows

    def _emit_matched(self, rows: pa.RecordBatch, positions: Index, related: pa.RecordBatch, emit: Emit) -> None:
        for start, piece in self._pieces(positions):
            self._push_joined(rows, piece, related.slice(start, len(piece)).columns, emit)

    def _emit_unmatched(self, rows: pa.RecordBatch, which: NDArray[np.bool_], emit: Emit) -> None:
        for _, piece in self._pieces(np.flatnonzero(which)):
            nothing = [pa.nulls(len(piece), field.type) for field in self._current.schema]
            self._push_joined(rows, piece, [*nothing, pa.nulls(len(piece), pa.string())], emit)

    def _pieces(self, index: Index) -> Iterator[tuple[int, Index]]:
        for start in range(0, len(index), self.plan.result_rows):
            yield start, index[start : start + self.plan.result_rows]

    def _push_joined(self, rows: pa.RecordBatch, index: Index, related: list[pa.Array], emit: Emit) -> None:
        seen = pa.array(np.full(len(index), self._current.version, np.int64))
        columns = [*taken(rows, index), *related, seen]
        self._push(pa.RecordBatch.from_arrays(columns, schema=self.plan.result_schema), emit)
