"""Symmetric hash join: the reference for all stream-stream joins, in memory only.

Idea: each side has a hash table of its rows. Arriving rows probe the other side's table, then enter their own, so every
pair is found exactly once: when its later row arrives.
State: per side, the rows and a table from key hash to row number.
Invariants: a stored row has no null in its key; rows are stored only while the other side is open, because only its
arrivals could meet them. When a side ends, what waited for its rows is let go.
Source: the background of all the papers (Wilschut and Apers); RPJ section 2.1 starts from it.
Limits: it spills nothing. Rows that would take it past its memory budget are refused with nothing changed; take an
operator that spills, or give more memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.budget import WorkMeter
from etl.errors import MemoryBudgetExceeded
from etl.joins.catalogue import register
from etl.joins.contract import Emit, JoinPlan, Ports, Progress
from etl.joins.lifecycle import Operator
from etl.joins.results import joined_pairs
from etl.joins.snapshots import OperatorState, Snapshot
from etl.kernels.columns import ColumnView, view
from etl.kernels.compare import equal_rows
from etl.kernels.hash_table import HashTable
from etl.kernels.hashing import KeyHashes, hash_columns, proves_equality
from etl.keys import KeyColumns
from etl.rows import Index, RowBuffer


@register(
    "symmetric-hash",
    family="progressive",
    predicates=("equality",),
    spills="nothing",
    paper="background of RPJ 2.1, DINER 2, MJoin 2",
)
class SymmetricHash(Operator):
    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self._tables = [_SideTable(schema, keys) for schema, keys in zip(plan.sides, plan.keys, strict=True)]
        if saved is not None:
            for side, table in enumerate(self._tables):
                for batch in saved.state.tables.get(f"side {side}", ()):
                    table.insert(batch, hash_columns(table.key_views(batch)).hashes)
        self._count_memory()

    def _refuse_rows(self, side: int, batch: pa.RecordBatch) -> None:
        if 1 - side not in self._open:
            return
        own, other = self._tables[side], self._tables[1 - side]
        needed = own.bytes_after(batch) + other.nbytes
        if needed > self.plan.memory_bytes:
            raise MemoryBudgetExceeded(
                f"symmetric-hash: {batch.num_rows} more rows on side {side} need {needed} bytes, "
                f"memory_bytes is {self.plan.memory_bytes}; it spills nothing: give more or take a join that spills"
            )
        self._memory.peak_at(needed)

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        own, other = self._tables[side], self._tables[1 - side]
        views = own.key_views(batch)
        keys = hash_columns(views)
        for arriving, stored in other.matches(views, keys, self.plan.result_rows):
            for joined in joined_pairs(self.plan, side, (batch, arriving), (other.rows, stored)):
                self._push(joined, emit)
        if 1 - side in self._open:
            own.insert(*_without_nulls(batch, keys))
            self._count_memory()

    def _end(self, side: int, emit: Emit) -> None:
        waiting = 1 - side
        self._tables[waiting] = _SideTable(self.plan.sides[waiting], self.plan.keys[waiting])
        self._count_memory()

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        return Progress.IDLE if self._open else Progress.DONE

    def _state(self) -> OperatorState:
        stored = {f"side {side}": table.rows for side, table in enumerate(self._tables)}
        return OperatorState(tables={name: rows.to_batches() for name, rows in stored.items() if len(rows)})

    def _release(self) -> None:
        self._tables = []

    def _count_memory(self) -> None:
        first, second = self._tables
        self._memory.set(first.nbytes + second.nbytes)


class _SideTable:
    """One side's rows, found by key."""

    def __init__(self, schema: pa.Schema, keys: KeyColumns) -> None:
        self.rows = RowBuffer(schema)
        self._keys = keys
        self._table = HashTable()
        self._hash_proves = proves_equality(self.key_views(pa.RecordBatch.from_pylist([], schema)))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self._table.nbytes

    def bytes_after(self, batch: pa.RecordBatch) -> int:
        return self.rows.bytes_after(batch) + self._table.bytes_after(batch.num_rows)

    def key_views(self, batch: pa.RecordBatch) -> list[ColumnView]:
        return [view(batch.column(position)) for position in self._keys]

    def insert(self, batch: pa.RecordBatch, hashes: NDArray[np.uint64]) -> None:
        self.rows.append(batch)
        self._table.insert(hashes)

    def matches(self, views: Sequence[ColumnView], keys: KeyHashes, limit: int) -> Iterator[tuple[Index, Index]]:
        """Pairs (arriving row, stored row) with equal keys, in bounded pieces."""
        for arriving, stored in self._table.probe(keys.hashes, keys.valid, limit):
            if self._hash_proves:
                yield arriving, stored
                continue
            equal = equal_rows(views, arriving, self.rows.views(self._keys), stored)
            if equal.all():
                yield arriving, stored
            elif equal.any():
                yield arriving[equal], stored[equal]


def _without_nulls(batch: pa.RecordBatch, keys: KeyHashes) -> tuple[pa.RecordBatch, NDArray[np.uint64]]:
    if keys.valid is None:
        return batch, keys.hashes
    return batch.filter(pa.array(keys.valid)), keys.hashes[keys.valid]
