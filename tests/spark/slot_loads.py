"""Loads through slot tasks without Spark: what a driver and its workers do, in one process and on real files."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from etl import joins
from etl.joins.parallel.partition_groups import Placement
from etl.spark.correlation import Correlation
from etl.spark.group_inputs import GroupInputs
from etl.spark.group_runs import GroupRuns
from etl.spark.group_state import GroupState
from etl.spark.slot_task import SlotOutcome, SlotTask
from etl.storage.durable import DurableFolder
from tests.oracle import Row, rows_of

SIDES = (
    pa.schema([("place", pa.string()), ("number", pa.int64())]),
    pa.schema([("place", pa.string()), ("amount", pa.int32())]),
)
LAYOUT = ((0, 1), (2, 3))
TaggedRow = tuple[int, Row]
States = Mapping[int, GroupState]


def plan_in(folder: Path, join: str = "symmetric-hash", groups: int = 3, **others: object) -> Correlation:
    return Correlation(
        join=join,
        sides=SIDES,
        on=(("place", "place"),),
        groups=groups,
        folder=str(folder),
        event_times=(None, None),
        **others,  # type: ignore[arg-type]
    )


def group_of(place: object, groups: int) -> int:
    return zlib.crc32(str(place).encode()) % groups


def tagged_batch(rows: Sequence[TaggedRow], groups: int) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {
        "side": pa.array([side for side, _ in rows], pa.int32()),
        "group": pa.array([group_of(row[0], groups) for _, row in rows], pa.int32()),
    }
    for number, schema in enumerate(SIDES):
        for position, place in enumerate(LAYOUT[number]):
            values = [row[position] if side == number else None for side, row in rows]
            columns[f"packed_{place}"] = pa.array(values, schema.types[position])
    columns["aside"] = pa.array([None] * len(rows), pa.struct([("payload", pa.string())]))
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class Loads:
    """A pipeline's loads: what was published, and the states that the next load starts from."""

    plan: Correlation
    states: States = field(default_factory=dict)
    published: list[States] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)

    @property
    def folder(self) -> DurableFolder:
        return DurableFolder(Path(self.plan.folder))

    @property
    def load_id(self) -> str:
        return f"test/{len(self.published):08d}"

    def attempt(self, rows: Sequence[TaggedRow], placement: Placement | None = None) -> list[SlotOutcome]:
        """Run the next load; nothing of it counts before `publish`."""
        placement = placement or Placement.even(self.plan.groups, 1)
        task = SlotTask(self.plan, LAYOUT, self.load_id, uuid.uuid4().hex[:8], {}, self.states)
        outcomes = []
        for slot in range(placement.slots):
            held = placement.groups_on(slot)
            mine = [(side, row) for side, row in rows if group_of(row[0], self.plan.groups) in held]
            batches = [tagged_batch(mine, self.plan.groups)] if mine else []
            outcomes.append(task.run(slot, f"{task.attempt}-{slot}", batches))
        return outcomes

    def publish(self, outcomes: Sequence[SlotOutcome]) -> None:
        for outcome in outcomes:
            self.states = {**self.states, **outcome.states}
            self.results += rows_of(outcome.results)
        self.published.append(self.states)

    def run(self, *loads: Sequence[TaggedRow]) -> None:
        for rows in loads:
            self.publish(self.attempt(rows))

    def forget_files(self, kept: int = 1) -> None:
        """As retention does: what no kept state names goes, unless it is of the newest load."""
        needed = {name for states in self.published[-kept:] for state in states.values() for name in state.file_names()}
        newest = f"test/{len(self.published) - 1:08d}/"
        for name in self.folder.names():
            if name not in needed and not name.startswith(newest):
                self.folder.delete(name)

    def owed(self) -> list[Row]:
        """What the operators would still give if both sides ended: restored from their files, wherever they live."""
        return [row for group, state in self.states.items() for row in rows_of(self._ended(state))]

    def _ended(self, state: GroupState) -> Iterator[pa.RecordBatch]:
        snapshot = joins.Snapshot.from_bytes(state.base.read(self.folder))
        spill = GroupRuns(Path(self.plan.folder), snapshot.state.runs) if self.plan.spills else None
        operator = joins.restore(snapshot, spill=spill)
        for section in state.log:
            GroupInputs.from_buffer(section.read(self.folder), section.file).offer_to(operator, lambda _: None)
        owed: list[pa.RecordBatch] = []
        for side in (0, 1):
            operator.offer(joins.EndOfSide(side), owed.append)
        while operator.work(joins.WorkBudget(), owed.append) is not joins.Progress.DONE:
            pass
        yield from owed
