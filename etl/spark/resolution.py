"""What the resolve host is told, and what it gives back: plain data, for the driver and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from etl.errors import BadInput
from etl.transforms.code_translation import CodeColumn, UnknownCode
from etl.transforms.lookups import MEMORY_BYTES, Pairs

Way = Literal["auto", "driver", "tasks"]
"""Where rows are looked up: in the driver, in Spark's tasks, or wherever their number makes it quicker."""

DRIVER_ROWS = 200_000


@dataclass(frozen=True)
class TranslateCodes:
    """Codes of the rows, by the relation of that name; see `etl.transforms.code_translation`."""

    relation: str
    columns: tuple[CodeColumn, ...]
    unknown: UnknownCode


@dataclass(frozen=True)
class DropDuplicates:
    """Rows whose key was loaded before; see `etl.transforms.duplicate_detection`."""

    relation: str
    on: Pairs
    prefer: tuple[str, ...] = ()
    attributes: Pairs = ()


@dataclass(frozen=True)
class AssignKeys:
    """Surrogate keys of one relation; see `etl.transforms.surrogate_keys`."""

    relation: str
    on: Pairs
    key_column: str
    attributes: Pairs = ()
    gives: str = ""
    """The column that the rows get; named like the relation's when nothing is said."""
    marks_new: str = ""
    """A further column that says whether this load is the first with the key; none when nothing is said."""

    @property
    def column(self) -> str:
        return self.gives or self.key_column


@dataclass(frozen=True)
class Carry:
    """When rows may wait for the next load, so that a disk probe of their segment serves more of them.

    A row waits when fewer than `invocation_rows` rows ask for its segment of the first relation with keys, the segment
    is not in memory, and none of them has waited for `deadline_loads` loads.
    """

    invocation_rows: int
    deadline_loads: int

    def __post_init__(self) -> None:
        if self.invocation_rows < 1 or self.deadline_loads < 1:
            raise BadInput(
                f"carrying over with invocation_rows={self.invocation_rows}, deadline_loads={self.deadline_loads}: "
                "both are at least 1"
            )


@dataclass(frozen=True)
class Resolution:
    """The steps, in the only order that is right, and the means.

    Codes first: a row that is quarantined must leave no trace in the relations, so that a corrected copy of it is new.
    Then duplicates, so that only rows that will be loaded get keys. Then keys.
    """

    codes: TranslateCodes | None = None
    duplicates: DropDuplicates | None = None
    keys: tuple[AssignKeys, ...] = ()
    carry: Carry | None = None
    join: str = "auto"
    memory_bytes: int = MEMORY_BYTES
    """For the look-ups of each process: the driver, and each Python worker."""
    driver_rows: int = DRIVER_ROWS
    """Loads of up to so many rows are resolved in the driver, when the way is left open."""
    partitions: int = 0
    """Into how many Spark partitions the rows of a larger load go; 0 for as many as Spark runs at once."""

    def __post_init__(self) -> None:
        if self.codes is None and self.duplicates is None and not self.keys:
            raise BadInput("a resolution without codes, duplicates and keys has nothing to do: name a step")
        if self.carry is not None and not self.keys:
            raise BadInput("rows wait for segments of the first relation with keys, and there is none: name its keys")

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of all relations that are asked, each once."""
        steps = [self.codes, self.duplicates, *self.keys]
        return tuple(dict.fromkeys(step.relation for step in steps if step is not None))

    @property
    def routing(self) -> DropDuplicates | AssignKeys | None:
        """Whose key brings rows together in one partition: rows that may be duplicates of each other have to meet."""
        return self.duplicates or (self.keys[0] if self.keys else None)


@dataclass(frozen=True)
class Members:
    """What a relation has to learn from a load: rows to append, and the highest number then given out."""

    rows: pa.Table
    highest: int


@dataclass(frozen=True)
class Decision:
    """Which rows of a load wait: those of these segments of the relation in this version, as it was looked at first.

    A load that is run again must come to the same rows, whatever is in memory by then; so its decision is made durable
    before anything is committed, and handed in again.
    """

    version: int
    segments: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        return {"version": self.version, "segments": list(self.segments)}

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Decision:
        version, segments = stored["version"], stored["segments"]
        assert isinstance(version, int)
        assert isinstance(segments, list)
        return cls(version, tuple(segments))


@dataclass(frozen=True)
class ResolvedLoad:
    """One load against one version of each relation.

    `rows`: those to load, in their order, with the columns that codes and keys give; `quarantined`: rows with unknown
    codes, as they came; `duplicates`: how many rows were dropped; `members`: by relation; `waiting`: rows for
    `carried` of the next load; `decision`: why those.
    """

    rows: pa.Table
    quarantined: pa.Table
    duplicates: int
    members: Mapping[str, Members]
    versions: Mapping[str, int]
    waiting: pa.Table | None = None
    decision: Decision | None = field(default=None)
