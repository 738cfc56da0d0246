"""What the correlate host is told, and what one load hands to the next: plain data, for the driver and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

import pyarrow as pa

from etl import joins
from etl.errors import BadInput
from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import Rebalancing
from etl.spark.balance import Balance
from etl.spark.group_state import GroupState, Section

GIBIBYTE = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Correlation:
    """What is joined with what, and how the work is divided.

    - `on` pairs key columns, one of each side. `event_times` names each side's event-time column, or None for no
      watermark.
    - `folder` holds the state; the driver and all workers must see it.
    - `groups` never changes in the life of a pipeline. `slots` is the number of Spark partitions they are worked on in,
      to begin with or, without `rebalancing`, for good; None takes as many as Spark runs tasks at once.
    - `where` they are worked on: in "tasks" of Spark, or all in the "driver", which spares the shuffle and the way to
      the Python workers. The driver must then hold all that waits; slots and rebalancing have no say.
    - `memory_bytes` is what one group's operator may hold, `live_bytes` what a process may hold between two loads.
    - `slot_rows` is what a slot can do in a load, in rows that are taken or given: the unit of `rebalancing`.
    """

    join: str
    sides: tuple[pa.Schema, ...]
    on: tuple[tuple[str, ...], ...]
    groups: int
    folder: str
    event_times: tuple[str | None, ...]
    memory_bytes: int = 256 * 1024 * 1024
    settings: Mapping[str, object] = field(default_factory=dict)
    slots: int | None = None
    where: Literal["tasks", "driver"] = "tasks"
    live_bytes: int = GIBIBYTE
    slot_rows: int = 1_000_000
    rebalancing: Rebalancing | None = None

    def __post_init__(self) -> None:
        for name in ("groups", "slots", "slot_rows"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise BadInput(f"correlation by {self.join}: {name} is {number}, there is at least one")
        if self.where not in ("tasks", "driver"):
            raise BadInput(f"correlation by {self.join}: where is {self.where!r}, it can be 'tasks' or 'driver'")
        if len(self.event_times) != len(self.sides):
            raise BadInput(
                f"correlation by {self.join}: {len(self.sides)} sides, but event_times has {len(self.event_times)} "
                "entries; name a column or None for each side"
            )

    @property
    def spills(self) -> bool:
        """Whether the operators need a place for runs."""
        return any(entry.name == self.join and entry.needs_spill for entry in joins.catalogue())

    def first_placement(self, parallelism: int) -> Placement:
        slots = 1 if self.where == "driver" else min(self.slots or parallelism, self.groups)
        return Placement.even(self.groups, slots)


class CorrelationState(NamedTuple):
    """What one load hands to the next.

    The state of each group that has had rows, each side's highest event time in microseconds, and where groups are
    worked on; None before the first load.
    """

    groups: Mapping[int, GroupState]
    event_time: Mapping[int, int]
    balance: Balance | None = None

    def check_fits(self, plan: Correlation) -> None:
        """Rows wait in the group that their key chose; with another number of groups they would never be found."""
        groups = len(self.groups) if self.balance is None else self.balance.placement.groups
        if groups not in (0, plan.groups):
            raise BadInput(
                f"correlation by {plan.join} has {plan.groups} groups, but its state in {plan.folder} is of {groups}: "
                "keep that number, or start the pipeline over"
            )

    def balance_for(self, plan: Correlation, parallelism: int) -> Balance:
        """Where the next load is worked on. A plan without rebalancing has its own way in every load."""
        if self.balance is None:
            return Balance(plan.first_placement(parallelism))
        if plan.rebalancing is None or plan.where == "driver":
            return Balance(plan.first_placement(parallelism), self.balance.epoch)
        return self.balance

    def file_names(self) -> frozenset[str]:
        """Every file of the correlation's folder that this state stands on.

        A run of a living operator may be gone before the state is: its operator went on and deleted it.
        """
        return frozenset[str]().union(*(group.file_names() for group in self.groups.values()))

    def to_json(self) -> dict[str, object]:
        return {
            "groups": {str(group): state.to_json() for group, state in sorted(self.groups.items())},
            "event_time": {str(side): instant for side, instant in sorted(self.event_time.items())},
            "balance": None if self.balance is None else self.balance.to_json(),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> CorrelationState:
        event_time = cast(Mapping[str, int], stored["event_time"])
        balance = cast(Mapping[str, object] | None, stored.get("balance"))
        return cls(
            _groups_from_json(stored),
            {int(side): instant for side, instant in event_time.items()},
            None if balance is None else Balance.from_json(balance),
        )


EMPTY_STATE = CorrelationState({}, {})


def _groups_from_json(stored: Mapping[str, object]) -> dict[int, GroupState]:
    if "snapshots" in stored:
        # As the first packages had it: a snapshot file for each group, and no log.
        stamps = cast(Mapping[str, tuple[str, int, str]], stored["snapshots"])
        return {int(group): GroupState(Section(name, 0, size, sum_)) for group, (name, size, sum_) in stamps.items()}
    groups = cast(Mapping[str, Mapping[str, object]], stored["groups"])
    return {int(group): GroupState.from_json(state) for group, state in groups.items()}
