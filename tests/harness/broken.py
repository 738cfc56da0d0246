"""Deliberately broken operators: each has one fault that a suite must find."""

from __future__ import annotations

import pyarrow as pa

from etl.budget import WorkMeter
from etl.joins import Emit, OperatorState, Phase, Progress, Rows
from tests.harness.flush_all import FlushAll, Generation, Position


class DropsAPair(FlushAll):
    """Loses the last result of every batch of more than one."""

    def _push(self, batch: pa.RecordBatch, emit: Emit) -> None:
        super()._push(batch.slice(0, max(1, batch.num_rows - 1)), emit)


class DoublesAPair(FlushAll):
    """Forgets which generations have met when a new one is flushed."""

    def _flush(self) -> None:
        super()._flush()
        self.met = set()


class JoinsNulls(FlushAll):
    """Takes null for a value."""

    def _emit_pairs(self, left: pa.RecordBatch, right: pa.RecordBatch, emit: Emit) -> None:
        super()._emit_pairs(left, right, emit)
        nulls = [batch.filter(batch.column(0).is_null()) for batch in (left, right)]
        if nulls[0].num_rows and nulls[1].num_rows:
            columns = [column for batch in nulls for column in batch.slice(0, 1).columns]
            self._push(pa.RecordBatch.from_arrays(columns, schema=self.plan.result_schema), emit)


class ForgetsAFlushedRun(FlushAll):
    """Never joins its first generation."""

    def _next_pair(self) -> Position | None:
        pair = super()._next_pair()
        while pair is not None and 0 in pair:
            self.met.add(pair)
            pair = super()._next_pair()
        return pair


class OvershootsItsBudget(FlushAll):
    """Looks at its budget once, then joins everything."""

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        if meter.spent:
            return super()._work(meter, emit)
        return super()._work(_Endless(meter), emit)


class _Endless(WorkMeter):
    def __init__(self, counted: WorkMeter) -> None:
        self._counted = counted

    def charge(self, blocks: int = 0, rows: int = 0) -> None:
        self._counted.charge(blocks, rows)

    @property
    def spent(self) -> bool:
        return False


class ReadsWithoutCharging(FlushAll):
    """Tells its meter of none of the blocks it reads."""

    def _join_one_block(self, pair: Position, meter: WorkMeter, emit: Emit) -> None:
        before = meter.blocks
        super()._join_one_block(pair, meter, emit)
        meter.blocks = before


class NeverSaysDone(FlushAll):
    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        progress = super()._work(meter, emit)
        return Progress.IDLE if progress is Progress.DONE else progress


class ForgetsItsPlace(FlushAll):
    """Leaves the place in an unfinished pair of runs out of its snapshot."""

    def _state(self) -> OperatorState:
        state = super()._state()
        return OperatorState({**state.values, "place": [0, 0]}, state.tables, state.runs)


class ForgetsMemoryInItsSnapshot(FlushAll):
    def _state(self) -> OperatorState:
        state = super()._state()
        return OperatorState(state.values, {}, state.runs)


class DeletesWhatASnapshotNames(FlushAll):
    """Throws away its generations when it is done, though a snapshot may need them."""

    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        progress = super()._work(meter, emit)
        if progress is Progress.DONE:
            for run in (run for pair in self.generations for run in pair if run is not None):
                self._store().delete(run)
        return progress


class HoldsTooMuch(FlushAll):
    """Never flushes before the end."""

    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        limit, flush = self.plan.memory_bytes, self._flush
        self._flush = lambda: None  # type: ignore[method-assign]
        super()._admit(side, batch, emit)
        self._flush = flush  # type: ignore[method-assign]
        assert limit


class CountsTooLittle(HoldsTooMuch):
    """Never flushes, and says that it holds nothing."""

    def _count(self) -> None:
        self._memory.set(0)


class LeavesRunsBehind(FlushAll):
    def _release(self) -> None:
        self.rows = [[], []]


class ChangesBeforeItChecks(FlushAll):
    """Counts rows that it then refuses."""

    def _check_rows(self, event: Rows) -> None:
        self._counters.rows_in[event.side] += event.batch.num_rows
        super()._check_rows(event)
        self._counters.rows_in[event.side] -= event.batch.num_rows


class GoesOnAfterFailure(FlushAll):
    """Does not notice that an exception left it half-way."""

    @property
    def phase(self) -> Phase:
        if self._phase is Phase.FAILED:
            self._phase = Phase.ARRIVING
        return super().phase


class EmitsUnbounded(FlushAll):
    """Pays no heed to `result_rows`."""

    def _emit_pairs(self, left: pa.RecordBatch, right: pa.RecordBatch, emit: Emit) -> None:
        gathered: list[pa.RecordBatch] = []
        super()._emit_pairs(left, right, gathered.append)
        if gathered:
            (whole,) = pa.Table.from_batches(gathered).combine_chunks().to_batches()
            emit(whole)


BROKEN: dict[str, list[type[FlushAll]]] = {
    "contract": [
        OvershootsItsBudget,
        ReadsWithoutCharging,
        NeverSaysDone,
        LeavesRunsBehind,
        ChangesBeforeItChecks,
        GoesOnAfterFailure,
        EmitsUnbounded,
    ],
    "exactness": [DropsAPair, DoublesAPair, JoinsNulls, ForgetsAFlushedRun],
    "restore": [ForgetsItsPlace, ForgetsMemoryInItsSnapshot, DeletesWhatASnapshotNames, DoublesAPair],
    "memory": [HoldsTooMuch, CountsTooLittle],
}

__all__ = ["BROKEN", "Generation"]
