"""The join contract: one shape for every operator.

    op = joins.build(name, sides=[...], on=[...], memory_bytes=..., spill=...)
    op.offer(event, emit)              rows and what else happens, in arrival order
    op.work(budget, emit) -> Progress  reactive work while a side is open, clean-up after
    op.snapshot() -> Snapshot          at any point between two calls
    joins.restore(snapshot, ...)       a new operator that goes on from there
    op.counters, op.phase, op.close()

An operator has no clock, no threads, no network and no Spark; it reaches the disk only through its ports. Results are
pushed to `emit` as bounded record batches: the columns of side 0, then of side 1, ... . The multiset of all results
equals the join as SQL defines it, whatever the arrival order, the batch cuts, the budgets and the snapshot points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import pyarrow as pa

from etl.keys import KeyColumns
from etl.settings import Json, settings_to_json
from etl.storage.ports import RelationView, RunStore

Emit = Callable[[pa.RecordBatch], None]
How = Literal["inner", "left"]

RESULT_ROWS = 65_536
"""Default bound of the rows in one emitted batch."""


class Progress(Enum):
    """What `work` says when it hands control back."""

    MORE = "more"  # the budget ended first: call again
    IDLE = "idle"  # nothing to do until the next event
    DONE = "done"  # all sides have ended and every result has been emitted


class Phase(Enum):
    ARRIVING = "arriving"  # at least one side is open
    CLEANING_UP = "cleaning-up"  # all sides have ended; `work` owes the remaining results
    DONE = "done"
    FAILED = "failed"  # an exception left it half-way: restore a snapshot and replay
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class NoSettings:
    """For operators that have nothing to set beyond the contract."""


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """What one join is asked to do, checked: everything about it that is not state."""

    name: str
    sides: tuple[pa.Schema, ...]
    on: tuple[tuple[str, ...], ...]
    keys: tuple[KeyColumns, ...]
    how: How
    suffixes: tuple[str, ...]
    result_schema: pa.Schema
    memory_bytes: int
    block_bytes: int
    result_rows: int
    settings: object
    reason: str = ""
    """Why this join, where somebody else than the caller chose it."""

    def to_json(self) -> dict[str, Json]:
        """The arguments of `build` that make this plan again, beside the schemas and the ports."""
        return {
            "on": [list(columns) for columns in self.on],
            "how": self.how,
            "suffixes": list(self.suffixes),
            "memory_bytes": self.memory_bytes,
            "block_bytes": self.block_bytes,
            "result_rows": self.result_rows,
            "settings": settings_to_json(self.settings),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world as an operator may touch it."""

    spill: RunStore | None = None
    relation: RelationView | None = None
