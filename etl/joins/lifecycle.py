"""The life of an operator: which events are legal in which phase, and what happens around each call.

Check first, change second: an event that is refused changes nothing and the operator goes on. Any other exception
leaves it FAILED, because its state may be half-way; recovery is to restore the last snapshot and to replay.

Operators subclass `Operator` and write only what is theirs: `_admit`, `_end`, `_work`, `_state`, and whichever of
the optional hooks they need. The base class owns phases, counters, the logical clock and the retiring of runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pyarrow as pa

from etl.budget import MemoryMeter, WorkBudget, WorkMeter
from etl.clock import LogicalClock
from etl.errors import BadInput, IllegalEvent
from etl.events import EndOfSide, Event, Punctuation, RelationVersion, Rows, Tick, Watermark
from etl.joins.contract import Emit, JoinPlan, Phase, Ports, Progress
from etl.joins.snapshots import OperatorState, Snapshot
from etl.settings import Json, settings_to_json
from etl.statistics import Counters
from etl.storage.ports import RelationView, RunName

LEGAL_EVENTS: Mapping[Phase, frozenset[type]] = {
    Phase.ARRIVING: frozenset({Rows, EndOfSide, Watermark, Tick, Punctuation, RelationVersion}),
    Phase.CLEANING_UP: frozenset({Tick, RelationVersion}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CLOSED: frozenset(),
}
"""Beyond this table: an event that names a side needs that side open, and RelationVersion needs a relation."""

WORKING_PHASES = frozenset({Phase.ARRIVING, Phase.CLEANING_UP})


class Operator(ABC):
    """Base of all joins. `saved` is None for a new operator, a snapshot for a restored one."""

    def __init__(self, plan: JoinPlan, ports: Ports, saved: Snapshot | None) -> None:
        self.plan = plan
        self._ports = ports
        self._memory = MemoryMeter(plan.memory_bytes)
        self._phase = Phase.ARRIVING
        self._open = set(range(len(plan.sides)))
        self._clock = LogicalClock()
        self._counters = Counters(rows_in=[0] * len(plan.sides))
        self._named_by_snapshots: set[str] = set()
        self._retired: list[RunName] = []
        if saved is not None:
            self._resume(saved)

    # What a caller uses.

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def counters(self) -> Counters:
        """A copy: what was counted up to now."""
        counters = self._counters.copy()
        counters.memory_bytes = self._memory.used
        counters.peak_memory_bytes = max(counters.peak_memory_bytes, self._memory.peak)
        return counters

    def offer(self, event: Event, emit: Emit) -> None:
        """Take one event; results that it completes go to `emit`."""
        self._check(event)
        self._clock.advance()
        try:
            self._take(event, emit)
        except BaseException:
            self._phase = Phase.FAILED
            raise

    def work(self, budget: WorkBudget, emit: Emit) -> Progress:
        """Use the time in which no rows come; returns within the budget, at most one block above it."""
        if self._phase is Phase.DONE:
            return Progress.DONE
        if self._phase not in WORKING_PHASES:
            raise IllegalEvent(f"{self.plan.name}: cannot work, the operator is {self._phase.value}")
        meter = WorkMeter(budget)
        try:
            progress = self._work(meter, emit)
        except BaseException:
            self._phase = Phase.FAILED
            raise
        self._counters.blocks_read += meter.blocks
        self._counters.rows_compared += meter.rows
        if progress is Progress.DONE:
            self._phase = Phase.DONE
        return progress

    def snapshot(self) -> Snapshot:
        """The whole state between two calls; it stays true while this operator goes on."""
        if self._phase in (Phase.FAILED, Phase.CLOSED):
            raise IllegalEvent(f"{self.plan.name}: no snapshot of an operator that is {self._phase.value}")
        state = self._state()
        self._named_by_snapshots.update(run.name for run in state.runs)
        return Snapshot(
            operator=self.plan.name,
            arguments=self.plan.to_json(),
            sides=self.plan.sides,
            lifecycle={
                "phase": self._phase.value,
                "open": [*sorted(self._open)],
                "instant": self._clock.instant,
                "counters": cast(Json, self.counters.to_json()),
            },
            state=state,
            relation_version=None if self._ports.relation is None else self._relation().version,
        )

    @property
    def retired_runs(self) -> tuple[RunName, ...]:
        """Runs that this operator no longer needs but that a snapshot names: their owner deletes them when it may."""
        return tuple(self._retired)

    def describe(self) -> dict[str, Json]:
        """What it is and why it is set so, for people."""
        return {
            "join": self.plan.name,
            "on": [" = ".join(columns) for columns in self.plan.on],
            "how": self.plan.how,
            "memory_bytes": self.plan.memory_bytes,
            "settings": settings_to_json(self.plan.settings),
            **({"reason": self.plan.reason} if self.plan.reason else {}),
        }

    def close(self) -> None:
        """Release memory and the runs that no snapshot names. Closing twice is harmless."""
        if self._phase is not Phase.CLOSED:
            self._phase = Phase.CLOSED
            self._release()
            self._memory.set(0)

    # What an operator writes.

    @abstractmethod
    def _admit(self, side: int, batch: pa.RecordBatch, emit: Emit) -> None:
        """Take rows: emit what they complete with rows in reach, keep what later rows need, flush what is too much."""

    @abstractmethod
    def _work(self, meter: WorkMeter, emit: Emit) -> Progress:
        """Do units of work until the meter is spent; DONE only when no side is open and nothing is owed."""

    @abstractmethod
    def _state(self) -> OperatorState: ...

    def _refuse_rows(self, side: int, batch: pa.RecordBatch) -> None:
        """Raise if these rows cannot be taken; nothing has been changed yet."""

    def _end(self, side: int, emit: Emit) -> None:
        """A side has ended; `_open` no longer holds it."""

    def _notice(self, event: Watermark | Tick | Punctuation, emit: Emit) -> None:
        """Hints that change no result: an operator that has no use for them need not look."""

    def _adopt(self, relation: RelationView, emit: Emit) -> None:
        """The relation has a newer version."""

    def _release(self) -> None:
        """Let go of memory and runs."""

    # What operators share.

    def _push(self, batch: pa.RecordBatch, emit: Emit) -> None:
        self._counters.results += batch.num_rows
        emit(batch)

    def _pushing(self, emit: Emit) -> Emit:
        """`emit` that counts."""
        return lambda batch: self._push(batch, emit)

    def _bump(self, counter: str, by: int) -> None:
        """Add to a counter of the operator's own."""
        self._counters.extra[counter] = self._counters.extra.get(counter, 0) + by

    def _drop_run(self, run: RunName) -> None:
        """Delete a run, or retire it if a snapshot may still need it."""
        assert self._ports.spill is not None
        if run.name in self._named_by_snapshots:
            self._retired.append(run)
        else:
            self._ports.spill.delete(run)

    def _relation(self) -> RelationView:
        assert self._ports.relation is not None
        return self._ports.relation

    # The frame around the operator's own code.

    def _check(self, event: Event) -> None:
        kind = type(event)
        if kind not in LEGAL_EVENTS[self._phase]:
            raise IllegalEvent(f"{self.plan.name}: {kind.__name__} is not legal, the operator is {self._phase.value}")
        side = getattr(event, "side", None)
        if side is not None and side not in self._open:
            if 0 <= side < len(self.plan.sides):
                raise IllegalEvent(f"{self.plan.name}: {kind.__name__} on side {side}, which has ended")
            raise BadInput(f"{self.plan.name}: there is no side {side}, sides are 0 to {len(self.plan.sides) - 1}")
        if kind is Rows:
            self._check_rows(cast(Rows, event))
        elif kind is RelationVersion:
            self._check_relation(cast(RelationVersion, event).relation)

    def _check_rows(self, event: Rows) -> None:
        expected = self.plan.sides[event.side]
        if not event.batch.schema.equals(expected):
            raise BadInput(
                f"{self.plan.name}: side {event.side} was built for {_columns(expected)}, "
                f"the batch has {_columns(event.batch.schema)}"
            )
        self._refuse_rows(event.side, event.batch)

    def _check_relation(self, offered: RelationView) -> None:
        name, current = self.plan.name, self._ports.relation
        if current is None:
            raise IllegalEvent(f"{name} joins streams only: it takes no RelationVersion")
        if _identity(offered) != _identity(current):
            raise BadInput(
                f"{name} was built for relation {current.name}, the event brings another one named {offered.name}: "
                "its columns, its key or its partitioning differ; build a join for it"
            )
        if offered.version < current.version:
            raise BadInput(
                f"{name}: version {offered.version} of relation {current.name} is older than version "
                f"{current.version}, which is in use: offer that version or a newer one"
            )

    def _take(self, event: Event, emit: Emit) -> None:
        if isinstance(event, Rows):
            self._counters.rows_in[event.side] += event.batch.num_rows
            if event.batch.num_rows:
                self._admit(event.side, event.batch, emit)
        elif isinstance(event, EndOfSide):
            self._open.remove(event.side)
            self._end(event.side, emit)
            if not self._open:
                self._phase = Phase.CLEANING_UP
        elif isinstance(event, RelationVersion):
            self._ports = replace(self._ports, relation=event.relation)
            self._adopt(event.relation, emit)
        else:
            self._notice(event, emit)

    def _resume(self, saved: Snapshot) -> None:
        lifecycle = saved.lifecycle
        self._phase = Phase(lifecycle["phase"])
        self._open = set(cast(list[int], lifecycle["open"]))
        self._clock = LogicalClock(cast(int, lifecycle["instant"]))
        self._counters = Counters.from_json(cast(dict[str, object], lifecycle["counters"]))
        self._named_by_snapshots = {run.name for run in saved.state.runs}


def _identity(relation: RelationView) -> tuple[object, ...]:
    """What all versions of one relation share."""
    return relation.name, relation.schema, relation.key, relation.partition


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
