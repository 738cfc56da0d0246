"""One version of a relation with its files open: what reading, appending and compacting have in common."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from etl.storage.block_table import BlockTable, LiveSlices, block_table
from etl.storage.load_index import LoadIndex
from etl.storage.ports import RunStore
from etl.storage.relation_log import VersionLog
from etl.storage.relation_runs import OpenRun
from etl.storage.relation_state import RelationFile, VersionState
from etl.storage.run_accounting import ReadCounter
from etl.storage.writers import Writers, run_label

WallClock: TypeAlias = Callable[[], datetime]

CHECKPOINT_EVERY = 32
"""Reading a version takes at most so many log entries."""
MOST_DELTAS = 8
"""An append that would make more delta runs takes up some of them."""


@dataclass(frozen=True, slots=True)
class RelationParts:
    """What the versions of one relation share."""

    log: VersionLog
    runs: RunStore
    writers: Writers
    clock: WallClock
    scratch: Path | None
    """Where rows are set aside for the time of a bulk load or a compaction; None for in memory."""
    checkpoint_every: int = CHECKPOINT_EVERY
    most_deltas: int = MOST_DELTAS
    folder: Path | None = None
    """Where the relation lies, for other processes to open it; None for in memory."""
    load_index: LoadIndex = field(init=False)
    reads: ReadCounter = field(default_factory=ReadCounter)

    def __post_init__(self) -> None:
        object.__setattr__(self, "load_index", LoadIndex(self.runs))


class OpenVersion:
    """A state and its runs, opened on first use and handed on to the versions made from this one."""

    def __init__(self, parts: RelationParts, state: VersionState, earlier: "OpenVersion | None" = None) -> None:
        self.parts = parts
        self.state = state
        self._table: BlockTable | None = None
        at_hand = {} if earlier is None else earlier._runs
        # Only what this version names is held on to: a process that lives long sees very many runs go by.
        self._runs: dict[str, OpenRun] = {
            file.run.name: at_hand[file.run.name] for file in state.files if file.run.name in at_hand
        }

    @property
    def table(self) -> BlockTable:
        if self._table is None:
            slices = [self.slices(file) for file in self.state.files]
            self._table = block_table(self.state.shape, self.state.partitioning, slices)
        return self._table

    def slices(self, file: RelationFile) -> LiveSlices:
        run = self._open(file)
        return LiveSlices(run, file.live(run.first_coordinate))

    def rows_in(self, files: Iterable[RelationFile]) -> Iterator[pa.RecordBatch]:
        """The stored rows of these files that belong to the version, slice by slice."""
        for file in files:
            run, live = self.slices(file)
            yield from (run.rows_of(number) for number in live.nonzero()[0].tolist())

    def forget(self) -> None:
        """Let go of the runs; whoever holds rows or a table of them keeps those."""
        self._table = None
        self._runs.clear()

    def find(self, load_id: str) -> int | None:
        """The version up to this one that the load made."""
        if load_id in self.state.recent_loads:
            return self.state.recent_loads[load_id]
        return self.parts.load_index.find(self.state.load_runs, load_id)

    def newest(self) -> "OpenVersion":
        return self.at(self.parts.log.newest(known=self.state.version))

    def at(self, version: int) -> "OpenVersion":
        if version == self.state.version:
            return self
        return OpenVersion(self.parts, self.parts.log.read(version, self.state), self)

    def _open(self, file: RelationFile) -> OpenRun:
        if file.run.name not in self._runs:
            reader = self.parts.runs.open(file.run, check_content=False)
            try:
                self._runs[file.run.name] = OpenRun(reader, self.state.shape, file.run)
            finally:
                reader.close()  # the blocks keep the file mapped
        return self._runs[file.run.name]


def with_checkpoint(parts: RelationParts, state: VersionState, token: str, now: bool = False) -> VersionState:
    """The state as it will be committed: every so often, or `now`, with everything written down."""
    if not now and state.version - state.checkpoint < parts.checkpoint_every:
        return state
    load_runs = parts.load_index.extended(state.load_runs, state.recent_loads, run_label("loads", token))
    return replace(state, checkpoint=state.version, load_runs=load_runs, recent_loads={})


def timestamp(clock: WallClock) -> str:
    return clock().isoformat(timespec="milliseconds")
