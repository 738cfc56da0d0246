"""What the correlate host is told, and what one load hands to the next: plain data, for the driver and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import pyarrow as pa

from etl.errors import BadInput
from etl.storage.durable import FileStamp


@dataclass(frozen=True)
class Correlation:
    """What is joined with what. `event_times` names each side's event-time column, or None for no watermark.

    `folder` holds the snapshots; the driver and all workers must see it.
    """

    join: str
    sides: tuple[pa.Schema, ...]
    on: tuple[tuple[str, str], ...]
    groups: int
    folder: str
    event_times: tuple[str | None, ...]
    memory_bytes: int = 256 * 1024 * 1024
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise BadInput(f"correlation by {self.join}: groups is {self.groups}, there is at least one")
        if len(self.event_times) != len(self.sides):
            raise BadInput(
                f"correlation by {self.join}: {len(self.sides)} sides, but event_times has {len(self.event_times)} "
                "entries; name a column or None for each side"
            )


class CorrelationState(NamedTuple):
    """What one load hands to the next: each group's snapshot, and each side's highest event time in microseconds."""

    snapshots: Mapping[int, FileStamp]
    event_time: Mapping[int, int]

    def check_fits(self, plan: Correlation) -> None:
        """Rows wait in the group that their key chose; with another number of groups they would never be found."""
        if self.snapshots and set(self.snapshots) != set(range(plan.groups)):
            raise BadInput(
                f"correlation by {plan.join} has {plan.groups} groups, but its snapshots in {plan.folder} are of "
                f"{len(self.snapshots)}: keep that number, or start the pipeline over"
            )

    def to_json(self) -> dict[str, object]:
        return {
            "snapshots": {str(group): list(stamp) for group, stamp in sorted(self.snapshots.items())},
            "event_time": {str(side): instant for side, instant in sorted(self.event_time.items())},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> CorrelationState:
        snapshots = cast(dict[str, tuple[str, int, str]], stored["snapshots"])
        event_time = cast(dict[str, int], stored["event_time"])
        return cls(
            {int(group): FileStamp(*stamp) for group, stamp in snapshots.items()},
            {int(side): instant for side, instant in event_time.items()},
        )


EMPTY_STATE = CorrelationState({}, {})
