"""What one version of a relation consists of.

A version is the boundaries of its relation segments and a list of runs. Most versions differ from the one before
them by a run more and perhaps some folded into it, so the log writes only the difference; `applied` puts
the two together. Compaction rewrites stretches of coordinates: a run that it rewrote in part stays, with
the rewritten stretches marked dead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from etl.storage.partitioning import Partitioning
from etl.storage.ports import RunName
from etl.storage.relation_rows import RelationShape

Work: TypeAlias = Literal["create", "append", "compact"]
Interval: TypeAlias = tuple[int, int]
"""Coordinates from the first to the second, the second excluded."""


@dataclass(frozen=True, slots=True)
class RelationFile:
    """A run of the relation. A delta is a run of appended rows that compaction has not merged yet."""

    run: RunName
    delta: bool
    first_version: int
    last_version: int
    """The rows were inserted by versions `first_version` to `last_version`."""
    dead: tuple[Interval, ...] = ()
    """Stretches that another run holds by now; slices are rewritten whole, so none is dead in part."""

    def live(self, first_coordinate: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which slices, named by the first coordinate of their segment, belong to the version."""
        alive = np.ones(first_coordinate.size, np.bool_)
        for start, end in self.dead:
            alive &= (first_coordinate < np.uint64(start)) | (first_coordinate > np.uint64(end - 1))
        return alive


@dataclass(frozen=True, slots=True)
class VersionState:
    """All there is to say about one version."""

    shape: RelationShape
    partitioning: Partitioning
    version: int
    checkpoint: int
    """The newest version, up to this one, whose log entry holds the full state."""
    work: Work
    created_at: str
    load_id: str
    highest: int
    rows: int
    files: tuple[RelationFile, ...]
    """Older rows first."""
    load_runs: tuple[RunName, ...]
    """Which load made which version, up to the checkpoint; see `load_index`."""
    recent_loads: Mapping[str, int]
    """The same since the checkpoint."""

    @property
    def deltas(self) -> tuple[RelationFile, ...]:
        return tuple(file for file in self.files if file.delta)

    @property
    def is_checkpoint(self) -> bool:
        return self.checkpoint == self.version


@dataclass(frozen=True, slots=True)
class Difference:
    """What an ordinary version changes in the one before it."""

    version: int
    checkpoint: int
    work: Work
    created_at: str
    load_id: str
    highest: int
    rows: int
    added: tuple[RelationFile, ...]
    removed: tuple[str, ...]
    """Names of runs."""


def applied(before: VersionState, difference: Difference) -> VersionState:
    """The version that follows `before`."""
    kept = tuple(file for file in before.files if file.run.name not in difference.removed)
    return replace(
        before,
        version=difference.version,
        work=difference.work,
        created_at=difference.created_at,
        load_id=difference.load_id,
        highest=difference.highest,
        rows=difference.rows,
        files=(*kept, *difference.added),
        recent_loads={**before.recent_loads, difference.load_id: difference.version},
    )


def difference_of(state: VersionState, before: VersionState) -> Difference:
    """The inverse of `applied`."""
    earlier = {file.run.name for file in before.files}
    names = {file.run.name for file in state.files}
    return Difference(
        version=state.version,
        checkpoint=state.checkpoint,
        work=state.work,
        created_at=state.created_at,
        load_id=state.load_id,
        highest=state.highest,
        rows=state.rows,
        added=tuple(file for file in state.files if file.run.name not in earlier),
        removed=tuple(file.run.name for file in before.files if file.run.name not in names),
    )
