"""The correlate host: a stream-stream join of the catalogue, on the rows of one micro-batch.

Rows are tagged with their side and go to partition groups by the hash of their key, one Spark partition a group. Each
group's operator is restored from the snapshot that the previous load left, fed, given its work, and snapshotted under a
name that holds the load and the attempt. Results and names travel to the driver, which keeps them in the load package:
a load that is run again starts from the same snapshots, so placement, retries and speculation change no result.

One job per micro-batch. Rows that the source could not read ("aside") ride along to the driver in the same job, and
rows behind their side's watermark come back as late, untouched by the join.

Limits: the results of a load pass through the driver's memory.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from etl import errors
from etl.errors import HeadraceError, TerminalError
from etl.spark.correlation import EMPTY_STATE, Correlation, CorrelationState
from etl.spark.group_task import ASIDE, COUNTS, FAILURE, LATE, RESULTS, SNAPSHOT, GroupTask
from etl.storage.durable import FileStamp

__all__ = ["EMPTY_STATE", "Correlated", "Correlation", "CorrelationState", "correlate", "tagged"]


@dataclass(frozen=True)
class Correlated:
    """The outcome of one load: joined rows, late rows by side, rows put aside, rows read by side, and the next state.

    `results` and `aside` are tables without columns when there are none.
    """

    results: pa.Table
    late: Mapping[int, pa.Table]
    aside: pa.Table
    rows_in: Mapping[int, int]
    state: CorrelationState


def tagged(side: Column, rows: Sequence[Column], aside: Column) -> list[Column]:
    """The columns that `correlate` expects: the side (-1 puts a row aside), a struct per side, a struct for aside."""
    return [side.alias("side"), *(row.alias(f"row_{number}") for number, row in enumerate(rows)), aside.alias("aside")]


def correlate(
    batch: DataFrame, plan: Correlation, load_id: str, state: CorrelationState, watermarks: Mapping[int, int]
) -> Correlated:
    """Join the tagged rows of a micro-batch with each other and with what earlier loads left waiting."""
    state.check_fits(plan)
    task = GroupTask(plan, load_id, uuid.uuid4().hex[:8], dict(watermarks), dict(state.snapshots))
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
    snapshots: dict[int, FileStamp] = {}
    event_time = dict(state.event_time)
    rows_in = dict.fromkeys(range(len(plan.sides)), 0)
    for output in outputs:
        kind, number = cast(str, output["kind"]), cast(int, output["number"])
        payload = cast(bytes, output["payload"])
        if kind == FAILURE:
            raise _failure(**json.loads(payload))
        if kind == SNAPSHOT:
            snapshots[number] = FileStamp(*json.loads(payload))
        elif kind == COUNTS:
            counts = json.loads(payload)
            rows_in[number] += counts["rows"]
            if counts["event_time"] is not None:
                event_time[number] = max(event_time.get(number, counts["event_time"]), counts["event_time"])
        else:
            tables.setdefault((kind, number), []).append(pa.ipc.open_stream(payload).read_all())
    _check_groups(plan, snapshots)
    return Correlated(
        results=_concatenated(tables.get((RESULTS, 0), [])),
        late={number: pa.concat_tables(parts) for (kind, number), parts in tables.items() if kind == LATE},
        aside=_concatenated(tables.get((ASIDE, 0), [])),
        rows_in=rows_in,
        state=CorrelationState(snapshots or state.snapshots, event_time),
    )


def _check_groups(plan: Correlation, snapshots: Mapping[int, FileStamp]) -> None:
    """All groups answer, or none when Spark saw that there are no rows at all."""
    if snapshots and set(snapshots) != set(range(plan.groups)):
        raise TerminalError(
            f"correlation by {plan.join} has {plan.groups} groups, but Spark ran {sorted(snapshots)}: it merged "
            "partitions; set spark.sql.adaptive.enabled to false"
        )


def _failure(error: str, message: str) -> HeadraceError:
    """The task's own error, free of the pages that Spark would wrap around it."""
    kind = getattr(errors, error, TerminalError)
    return cast(HeadraceError, kind(message))


def _concatenated(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else pa.table({})
