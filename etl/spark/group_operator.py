"""The partition groups of a task in one load: bring operators to their last state, feed them, write down the next.

The operator is always one that was restored from the state's base and took the state's log, here or in an earlier load
of this worker. That holds from the first load, which writes the base of an empty operator, and after a new base, when
the operator that was snapshotted is let go: it may count its memory otherwise than its restored copy, spill at another
moment, and so emit a result in another load than the copy would. Then a replay would lose that result or repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from etl import joins
from etl.errors import BadInput
from etl.spark.correlation import Correlation
from etl.spark.group_inputs import GroupInputs
from etl.spark.group_runs import GroupRuns
from etl.spark.group_state import GroupState, TaskFile
from etl.spark.live_operators import LIVE_OPERATORS, LiveOperator
from etl.storage.durable import DurableFolder
from etl.storage.ports import RunName

MOST_LOG_ENTRIES = 32
"""A longer log is replaced by a base, however small: each entry is a file to open when the group is restored."""
LEAST_BASE_BYTES = 4 * 1024 * 1024
"""A log shorter than this is never replaced for its size: replaying it takes a moment."""
GROUPS_A_BASE = 8
"""In one load, one group in so many writes a base: those that owe one take turns, so that no load pays for all."""


class GroupOperators:
    """The groups of one task. Operators are handed on to later loads only after everything was published."""

    def __init__(self, plan: Correlation, folder: DurableFolder, file: TaskFile, prefix: str) -> None:
        self._plan = plan
        self._folder = folder
        self._file = file
        self._prefix = prefix
        self._fed: dict[int, LiveOperator] = {}

    def feed(self, group: int, state: GroupState | None, inputs: GroupInputs, emit: joins.Emit) -> None:
        """Take the inputs and log them."""
        live = self._fed[group] = self._opened(group, state)
        if live.runs is not None:
            live.runs.prefix = f"{self._prefix}group-{group:04d}-"
        for section in () if state is None else state.log[len(live.state.log) :]:
            origin = str(self._folder.path(section.file))
            GroupInputs.from_buffer(section.read(self._folder), origin).offer_to(live.operator, _drop)
        inputs.offer_to(live.operator, emit)
        log = () if state is None else state.log
        live.state = GroupState(live.state.base, (*log, self._file.append(inputs.to_parts())), _run_files(live.runs))

    def finish(self) -> dict[int, GroupState]:
        """Publish what was written; returns the new states. From now on later loads may go on with the operators."""
        for group in self._to_snapshot():
            live = self._fed[group]
            live.state = self._new_base(live)
        states = {group: live.state for group, live in self._fed.items()}
        self._file.publish()
        while self._fed:
            group, live = self._fed.popitem()
            if live.state.log:
                LIVE_OPERATORS.keep((self._plan.folder, group), live, self._plan.live_bytes)
            else:
                live.close()
        return states

    def abandon(self) -> None:
        """Leave no trace; harmless after `finish`."""
        self._file.abandon()
        while self._fed:
            self._fed.popitem()[1].close()

    def _opened(self, group: int, state: GroupState | None) -> LiveOperator:
        if state is None:
            return self._restored(self._first_base(), None)
        live = LIVE_OPERATORS.take((self._plan.folder, group), state)
        if live is not None:
            return live
        origin = str(self._folder.path(state.base.file))
        snapshot = joins.Snapshot.from_bytes(state.base.read(self._folder), origin)
        if snapshot.operator != self._plan.join:
            raise BadInput(
                f"{origin} is of join {snapshot.operator}, the pipeline asks for {self._plan.join}: "
                f"keep {snapshot.operator}, or start the pipeline over"
            )
        return self._restored(snapshot, state)

    def _first_base(self) -> joins.Snapshot:
        plan = self._plan
        operator = joins.build(
            plan.join,
            sides=list(plan.sides),
            on=plan.on,
            memory_bytes=plan.memory_bytes,
            spill=self._runs(()),
            **plan.settings,  # type: ignore[arg-type]
        )
        return operator.snapshot()

    def _restored(self, snapshot: joins.Snapshot, state: GroupState | None) -> LiveOperator:
        runs = self._runs(snapshot.state.runs)
        base = self._file.append([snapshot.to_bytes()]) if state is None else state.base
        return LiveOperator(joins.restore(snapshot, spill=runs), runs, GroupState(base, (), _run_files(runs)))

    def _runs(self, known: Sequence[RunName]) -> GroupRuns | None:
        return GroupRuns(Path(self._plan.folder), known) if self._plan.spills else None

    def _to_snapshot(self) -> list[int]:
        """The groups that get a new base now: of those that owe one, the ones with the longest logs."""
        owing = [(live.state.log_bytes, group) for group, live in self._fed.items() if _owes_base(live.state)]
        return [group for _, group in sorted(owing, reverse=True)[: -(-len(self._fed) // GROUPS_A_BASE)]]

    def _new_base(self, live: LiveOperator) -> GroupState:
        """A base is also where the plan's memory takes the place of what the operator had so far."""
        snapshot = live.operator.snapshot()
        if live.operator.plan.memory_bytes != self._plan.memory_bytes:
            resized = joins.restore(snapshot, spill=live.runs, memory_bytes=self._plan.memory_bytes)
            snapshot = resized.snapshot()
        base = self._file.append([snapshot.to_bytes()])
        known = _run_files(GroupRuns(Path(self._plan.folder), snapshot.state.runs)) if self._plan.spills else ()
        return GroupState(base, (), known)


def _owes_base(state: GroupState) -> bool:
    return len(state.log) > MOST_LOG_ENTRIES or state.log_bytes > max(state.base.size, LEAST_BASE_BYTES)


def _run_files(runs: GroupRuns | None) -> tuple[str, ...]:
    return () if runs is None else runs.file_names()


def _drop(batch: pa.RecordBatch) -> None:
    """Results of a replay went out with their load."""
