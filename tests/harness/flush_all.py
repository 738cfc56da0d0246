"""`flush-all`: the simplest join that spills, to prove the harness with. Row at a time: not for the product.

When memory is over its budget, both sides' rows become one generation of two sealed runs. Rows of one generation have
met in memory; rows of different generations have not, so `work` joins side 0 of each with side 1 of every other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pyarrow as pa

from etl.budget import WorkMeter
from etl.joins import Emit, JoinPlan, NoSettings, Operator, OperatorState, Ports, Progress, Snapshot
from etl.joins.catalogue import _ENTRIES, register
from etl.storage.ports import RunName, RunStore

Position = tuple[int, int]
Generation = tuple[RunName | None, RunName | None]


class FlushAll(Operator):
    """State: rows in memory by side, generations on disk, pairs of generations that have met, the place in the next."""

    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self.rows: list[list[pa.RecordBatch]] = [[], []]
        self.generations: list[Generation] = []
        self.met: set[Position] = set()
        self.place: Position = (0, 0)
        if saved is not None:
            self._load(saved)
        self._count()

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        for stored in self.rows[1 - side]:
            pair = (batch, stored) if side == 0 else (stored, batch)
            self._emit_pairs(*pair, emit)
        self.rows[side].append(_copied(batch))
        self._count()
        if self._memory.used > self.plan.memory_bytes:
            self._flush()

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        if not self._open and any(self.rows):
            self._flush()
        while (pair := self._next_pair()) is not None:
            if meter.spent:
                return Progress.MORE
            self._join_one_block(pair, meter, emit)
        return Progress.IDLE if self._open else Progress.DONE

    def _state(self) -> OperatorState:
        return OperatorState(
            values={
                "generations": [[None if run is None else run.name for run in pair] for pair in self.generations],
                "met": [list(pair) for pair in sorted(self.met)],
                "place": list(self.place),
            },
            tables={f"side {side}": list(batches) for side, batches in enumerate(self.rows) if batches},
            runs=tuple(run for pair in self.generations for run in pair if run is not None),
        )

    def _release(self) -> None:
        for run in (run for pair in self.generations for run in pair if run is not None):
            self._drop_run(run)
        self.rows = [[], []]

    def _flush(self) -> None:
        self.generations.append(cast(Generation, tuple(self._written(batches) for batches in self.rows)))
        self.rows = [[], []]
        self._counters.flushes += 1
        self._count()

    def _written(self, batches: list[pa.RecordBatch]) -> RunName | None:
        if not batches:
            return None
        writer = self._store().writer("flush-all", batches[0].schema)
        for batch in batches:
            writer.append(batch)
        return writer.seal()

    def _next_pair(self) -> Position | None:
        """The first pair that has not met; a later generation only adds pairs behind it, so `place` stays true."""
        count = len(self.generations)
        pairs = [(left, right) for left in range(count) for right in range(count) if left != right]
        for left, right in sorted(pairs, key=lambda pair: (max(pair), pair)):
            runs = self.generations[left][0], self.generations[right][1]
            if (left, right) not in self.met and None not in runs:
                return left, right
        return None

    def _join_one_block(self, pair: Position, meter: WorkMeter, emit: Emit) -> None:
        """One unit of work: two blocks."""
        left_run = cast(RunName, self.generations[pair[0]][0])
        right_run = cast(RunName, self.generations[pair[1]][1])
        left, right = self._store().open(left_run), self._store().open(right_run)
        left_block, right_block = left.block(self.place[0]), right.block(self.place[1])
        meter.charge(blocks=2, rows=left_block.num_rows)
        self._emit_pairs(left_block, right_block, emit)
        row, column = self.place
        self.place = (row, column + 1) if column + 1 < len(right) else (row + 1, 0)
        if self.place[0] == len(left):
            self.place = (0, 0)
            self.met.add(pair)

    def _emit_pairs(self, left: pa.RecordBatch, right: pa.RecordBatch, emit: Emit) -> None:
        right_rows = _keyed(right, self.plan.keys[1])
        pairs = [
            (first, second)
            for first, key in enumerate(_keyed(left, self.plan.keys[0]))
            for second, other in enumerate(right_rows)
            if None not in key and key == other
        ]
        for start in range(0, len(pairs), self.plan.result_rows):
            piece = pairs[start : start + self.plan.result_rows]
            columns = [
                *left.take(pa.array([first for first, _ in piece])).columns,
                *right.take(pa.array([second for _, second in piece])).columns,
            ]
            self._push(pa.RecordBatch.from_arrays(columns, schema=self.plan.result_schema), emit)

    def _count(self) -> None:
        self._memory.set(sum(batch.get_total_buffer_size() for batches in self.rows for batch in batches))

    def _store(self) -> RunStore:
        assert self._ports.spill is not None
        return self._ports.spill

    def _load(self, saved: Snapshot) -> None:
        runs = {run.name: run for run in saved.state.runs}
        values = saved.state.values
        names = cast(list[list[str]], values["generations"])
        self.generations = [cast(Generation, tuple(runs.get(name) for name in pair)) for pair in names]
        self.met = {(left, right) for left, right in cast(list[list[int]], values["met"])}
        self.place = cast(Position, tuple(cast(list[int], values["place"])))
        for side in (0, 1):
            self.rows[side] = list(saved.state.tables.get(f"side {side}", ()))


@contextmanager
def entered(
    operator: type[Operator], name: str = "flush-all", spills: str = "all rows", settings: type = NoSettings
) -> Iterator[str]:
    """The operator in the catalogue for as long as the context lasts."""
    register(name, family="test", predicates=("equality",), spills=spills, paper="none", settings=settings)(operator)
    try:
        yield name
    finally:
        del _ENTRIES[name]


def _keyed(batch: pa.RecordBatch, keys: tuple[int, ...]) -> list[tuple[object, ...]]:
    return list(zip(*(batch.column(position).to_pylist() for position in keys), strict=True))


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the rest of the buffers that a slice looks into."""
    return pa.RecordBatch.from_pylist(batch.to_pylist(), batch.schema)
