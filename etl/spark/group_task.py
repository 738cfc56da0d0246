"""The part of the correlate host that runs in a Spark task: one partition group of one micro-batch.

What it returns are rows (kind, number, payload): Arrow IPC streams of results, late rows and rows put aside, and small
JSON documents with counts, the name of the new snapshot, or an error of ours. The snapshot itself is a durable file,
named for the load, the group and the attempt, so that a retried or speculative task never touches what another one
wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from etl import joins
from etl.errors import TerminalError
from etl.spark.correlation import Correlation
from etl.storage.durable import DurableFolder, FileStamp

RESULTS, LATE, ASIDE, SNAPSHOT, COUNTS, FAILURE = "results", "late", "aside", "snapshot", "counts", "failure"
OUTPUT = pa.schema([("kind", pa.string()), ("number", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class GroupTask:
    """Called by `mapInArrow` with the group's record batches; everything in it travels to the worker."""

    plan: Correlation
    load_id: str
    attempt: str
    watermarks: Mapping[int, int]
    snapshots: Mapping[int, FileStamp]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        group = context.partitionId()
        try:
            collected, stamp = self._run(batches, group, context.taskAttemptId())
        except TerminalError as error:
            # Raised here it would be tried again in vain and arrive as text; handed back it stays what it is.
            failure = {"error": type(error).__name__, "message": f"load {self.load_id}, group {group}: {error}"}
            yield _output(FAILURE, group, json.dumps(failure).encode())
        else:
            yield from collected.outputs(group, stamp)

    def _run(self, batches: Iterable[pa.RecordBatch], group: int, task_attempt: int) -> tuple[_Collected, FileStamp]:
        folder = DurableFolder(Path(self.plan.folder))
        operator = self._operator(folder, group)
        collected = _Collected(len(self.plan.sides))
        for batch in batches:
            self._feed(operator, batch, collected)
        while operator.work(joins.WorkBudget(), collected.results.append) is joins.Progress.MORE:
            pass
        # Spark's task attempts count anew after a restart of the driver: both are needed to make the name its own.
        name = f"{self.load_id}/group-{group:04d}-{self.attempt}-{task_attempt}.snapshot"
        stamp = folder.put(name, [operator.snapshot().to_bytes()])
        operator.close()
        return collected, stamp

    def _operator(self, folder: DurableFolder, group: int) -> joins.Operator:
        stamp = self.snapshots.get(group)
        if stamp is not None:
            return joins.restore(joins.Snapshot.from_bytes(folder.read(stamp), origin=str(folder.path(stamp.name))))
        plan = self.plan
        return joins.build(
            plan.join,
            sides=list(plan.sides),
            on=plan.on,
            memory_bytes=plan.memory_bytes,
            **plan.settings,  # type: ignore[arg-type]
        )

    def _feed(self, operator: joins.Operator, batch: pa.RecordBatch, collected: _Collected) -> None:
        sides = batch.column("side")
        for side, schema in enumerate(self.plan.sides):
            chosen = batch.column(f"row_{side}").filter(pc.equal(sides, side))
            if len(chosen) == 0:
                continue
            rows = pa.RecordBatch.from_struct_array(chosen).cast(schema)
            collected.rows[side] += rows.num_rows
            rows = self._without_late(side, rows, collected)
            operator.offer(joins.Rows(side, rows), collected.results.append)
        aside = batch.column("aside").filter(pc.less(sides, 0))
        if len(aside):
            collected.aside.append(pa.RecordBatch.from_struct_array(aside))

    def _without_late(self, side: int, rows: pa.RecordBatch, collected: _Collected) -> pa.RecordBatch:
        """Rows at or above the watermark; the others are handed back. A row without an event time is never late."""
        column = self.plan.event_times[side]
        if column is None:
            return rows
        event_time = rows.column(column).cast(pa.int64())
        watermark = self.watermarks.get(side)
        if watermark is not None:
            late = pc.fill_null(pc.less(event_time, watermark), False)
            if pc.any(late).as_py():
                collected.late[side].append(rows.filter(late))
                rows, event_time = rows.filter(pc.invert(late)), event_time.filter(pc.invert(late))
        highest = pc.max(event_time).as_py()
        if highest is not None:
            before = collected.event_time[side]
            collected.event_time[side] = highest if before is None else max(before, highest)
        return rows


class _Collected:
    """What one group has to say."""

    def __init__(self, sides: int) -> None:
        self.results: list[pa.RecordBatch] = []
        self.aside: list[pa.RecordBatch] = []
        self.late: list[list[pa.RecordBatch]] = [[] for _ in range(sides)]
        self.rows = [0] * sides
        self.event_time: list[int | None] = [None] * sides

    def outputs(self, group: int, snapshot: FileStamp) -> Iterator[pa.RecordBatch]:
        yield _output(SNAPSHOT, group, json.dumps(list(snapshot)).encode())
        for side, rows in enumerate(self.rows):
            yield _output(COUNTS, side, json.dumps({"rows": rows, "event_time": self.event_time[side]}).encode())
        for kind, number, batches in (
            (RESULTS, 0, self.results),
            (ASIDE, 0, self.aside),
            *((LATE, side, late) for side, late in enumerate(self.late)),
        ):
            if batches:
                yield _output(kind, number, _stream(batches))


def _output(kind: str, number: int, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([kind]), pa.array([number], pa.int32()), pa.array([payload])], schema=OUTPUT
    )


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
