"""Counters that every operator keeps and that hosts, benchmarks and tests read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the operator was built; they go on through snapshot and restore."""

    rows_in: list[int]
    results: int = 0
    blocks_read: int = 0
    rows_compared: int = 0
    flushes: int = 0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    extra: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Counters:
        return Counters(**asdict(self))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Counters:
        return cls(**stored)  # type: ignore[arg-type]  # the snapshot's checksum vouches for the shape
