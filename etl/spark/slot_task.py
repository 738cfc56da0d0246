"""The part of the correlate host that runs in a Spark task: the partition groups of one slot in one micro-batch.

It returns payloads: tables of results, late rows and rows put aside, and documents with counts and the new states of
its groups. The state itself is in durable files whose names hold the load, the slot and the attempt, so that a retried
or speculative task never touches what another one wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from etl.errors import TerminalError
from etl.spark.correlation import Correlation
from etl.spark.group_operator import GroupOperators
from etl.spark.group_state import GroupState, TaskFile
from etl.spark.packed_rows import Layout
from etl.spark.payloads import document_payload, failure_payload, table_payload
from etl.spark.task_inputs import TaskInputs
from etl.storage.durable import DurableFolder

RESULTS, LATE, ASIDE, GROUPS, COUNTS = "results", "late", "aside", "groups", "counts"
PAYLOAD_BYTES = 64 * 1024 * 1024
"""Results beyond this go into another payload: Spark holds a value in one piece, and no more than 2 GiB of it."""


@dataclass(frozen=True)
class SlotTask:
    """Called by `mapInArrow` with the slot's record batches; everything in it travels to the worker."""

    plan: Correlation
    layout: Layout
    load_id: str
    attempt: str
    watermarks: Mapping[int, int]
    groups: Mapping[int, GroupState]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        slot = context.partitionId()
        try:
            # Spark's task attempts count anew after a restart of the driver: both are needed to make a name its own.
            outcome = self.run(slot, f"{self.attempt}-{context.taskAttemptId()}", batches)
        except TerminalError as error:
            yield failure_payload(error, f"load {self.load_id}, slot {slot}")
        else:
            yield from outcome.outputs(slot)

    def run(self, slot: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> SlotOutcome:
        """Sort the rows out, feed each group's operator, publish the new states."""
        folder = DurableFolder(Path(self.plan.folder))
        file = TaskFile(folder, f"{self.load_id}/slot-{slot:04d}-{attempt}.groups")
        operators = GroupOperators(self.plan, folder, file, prefix=f"{self.load_id}/run-{attempt}-")
        outcome = SlotOutcome(TaskInputs.read(self.plan, self.layout, self.watermarks, batches))
        try:
            for group in outcome.inputs.groups:
                self._feed(operators, group, outcome)
            outcome.states = operators.finish()
        finally:
            operators.abandon()
        return outcome

    def _feed(self, operators: GroupOperators, group: int, outcome: SlotOutcome) -> None:
        inputs = outcome.inputs.of_group(group)
        results: list[pa.RecordBatch] = []
        try:
            operators.feed(group, self.groups.get(group), inputs, results.append)
        except TerminalError as error:
            raise type(error)(f"group {group}: {error}") from error
        outcome.results += results
        outcome.work[group] = sum(batch.num_rows for batch in (*inputs.rows.values(), *results))


@dataclass
class SlotOutcome:
    """What one slot has to say: its inputs sorted out, results, and each touched group's new state and work in rows."""

    inputs: TaskInputs
    results: list[pa.RecordBatch] = field(default_factory=list)
    states: dict[int, GroupState] = field(default_factory=dict)
    work: dict[int, int] = field(default_factory=dict)

    def outputs(self, slot: int) -> Iterator[pa.RecordBatch]:
        groups = [[group, state.to_json(), self.work[group]] for group, state in self.states.items()]
        yield document_payload(GROUPS, slot, {"groups": groups})
        for side, rows in enumerate(self.inputs.rows):
            yield document_payload(COUNTS, side, {"rows": rows, "event_time": self.inputs.event_time.get(side)})
        for batches in _payloads(self.results):
            yield table_payload(RESULTS, 0, pa.Table.from_batches(batches))
        for side, late in self.inputs.late.items():
            yield table_payload(LATE, side, pa.Table.from_batches([late]))
        if self.inputs.aside is not None:
            yield table_payload(ASIDE, 0, pa.Table.from_batches([self.inputs.aside]))


def _payloads(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Stretches of the batches, none much larger than a payload should be."""
    stretch: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        stretch.append(batch)
        size += batch.nbytes
        if size >= PAYLOAD_BYTES:
            yield stretch
            stretch, size = [], 0
    if stretch:
        yield stretch
