"""The correlate host: a stream-stream join of the catalogue, on the rows of one micro-batch.

Rows are tagged with their side and go to partition groups by the hash of their key, one Spark partition a group. Each
group's operator is restored from the snapshot that the previous load left, fed, given its work, and snapshotted under a
name that holds the load and the attempt. Nothing but names travels to the driver, which keeps them in the load package:
a load that is run again starts from the same snapshots, so placement, retries and speculation change no result.

One job per micro-batch. Rows that the source could not read ("aside") ride along to the driver in the same job, and
rows behind their side's watermark come back as late, untouched by the join.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from etl.errors import BadInput
from etl.spark.group_task import ASIDE, COUNTS, LATE, RESULTS, SNAPSHOT, GroupTask
from etl.storage.durable import FileStamp

SIDE = "side"
ASIDE_ROW = "aside"


@dataclass(frozen=True)
class Correlation:
    """What is joined with what. `event_times` names each side's event-time column, or None for no watermark."""

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


class CorrelationState(NamedTuple):
    """What one load hands to the next: each group's snapshot, and each side's highest event time in microseconds."""

    snapshots: Mapping[int, FileStamp]
    event_time: Mapping[int, int]

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


@dataclass(frozen=True)
class Correlated:
    """The outcome of one load: joined rows, late rows by side, rows put aside, rows read by side, and the next state."""

    results: pa.Table
    late: Mapping[int, pa.Table]
    aside: pa.Table
    rows_in: Mapping[int, int]
    state: CorrelationState


def tagged(side: Column, rows: Sequence[Column], aside: Column) -> list[Column]:
    """The columns that `correlate` expects: the side (-1 puts a row aside), a struct per side, a struct for aside."""
    return [side.alias(SIDE), *(row.alias(f"row_{number}") for number, row in enumerate(rows)), aside.alias(ASIDE_ROW)]


def correlate(
    batch: DataFrame, plan: Correlation, load_id: str, state: CorrelationState, watermarks: Mapping[int, int]
) -> Correlated:
    """Join the tagged rows of a micro-batch with each other and with what earlier loads left waiting."""
    task = GroupTask(
        join=plan.join,
        sides=tuple(schema.serialize().to_pybytes() for schema in plan.sides),
        on=plan.on,
        memory_bytes=plan.memory_bytes,
        settings=dict(plan.settings),
        folder=plan.folder,
        load_id=load_id,
        attempt=uuid.uuid4().hex[:8],
        event_times=plan.event_times,
        watermarks=dict(watermarks),
        snapshots=dict(state.snapshots),
    )
    grouped = batch.repartitionById(plan.groups, _group_of(plan)) if plan.groups > 1 else batch.coalesce(1)
    outputs = grouped.mapInArrow(task, "kind string, number int, payload binary").toArrow().to_pylist()
    return _gathered(plan, state, outputs)


def _group_of(plan: Correlation) -> Column:
    """Any stable function of the key will do: a group's rows only have to meet their partners."""
    keys = [
        sf.coalesce(*(sf.col(f"row_{number}.{name}") for number, name in enumerate(columns))) for columns in plan.on
    ]
    return sf.pmod(sf.xxhash64(*keys), sf.lit(plan.groups)).cast("int")


def _gathered(plan: Correlation, state: CorrelationState, outputs: list[dict[str, object]]) -> Correlated:
    tables: dict[tuple[str, int], list[pa.Table]] = {}
    snapshots = dict(state.snapshots)
    event_time = dict(state.event_time)
    rows_in = dict.fromkeys(range(len(plan.sides)), 0)
    for output in outputs:
        kind, number = cast(str, output["kind"]), cast(int, output["number"])
        payload = cast(bytes, output["payload"])
        if kind == SNAPSHOT:
            snapshots[number] = FileStamp(*json.loads(payload))
        elif kind == COUNTS:
            counts = json.loads(payload)
            rows_in[number] += counts["rows"]
            if counts["event_time"] is not None:
                event_time[number] = max(event_time.get(number, counts["event_time"]), counts["event_time"])
        else:
            tables.setdefault((kind, number), []).append(pa.ipc.open_stream(payload).read_all())
    late = {number: pa.concat_tables(parts) for (kind, number), parts in tables.items() if kind == LATE}
    return Correlated(
        results=_concatenated(tables.get((RESULTS, 0), [])),
        late=late,
        aside=_concatenated(tables.get((ASIDE, 0), [])),
        rows_in=rows_in,
        state=CorrelationState(snapshots, event_time),
    )


def _concatenated(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else pa.table({})
