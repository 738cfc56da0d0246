"""The resolve host: codes, duplicates and surrogate keys for the rows of one micro-batch, in one pass over them.

There are two ways, with the same results to the last row and number. A load of some ten thousand rows goes to the
driver as Arrow and is resolved there: one Spark job, no shuffle. A larger one is resolved in Spark's tasks: rows go to
partitions by the relation's own map, each task looks up its rows in all relations, and the driver only numbers the new
keys and puts them in. Either way the joins that look up keep their memory from batch to batch (`process_memory`).

Nothing is committed here: the outcome says what each relation has to learn.

Rows that wait: with `Resolution.carry`, rows whose segment of the first relation with keys would be read for too few of
them stay out of the load, whole and untouched, and come back as `carried` of the next one. What of a load waits is
decided once; see `Decision`.

Limits: the resolved rows of a load pass through the driver's memory. Rows wait on the driver's way only, and a deadline
counts loads: while the stream brings none, nothing is due. Of two duplicates one may be loaded while the other waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructType

from etl.errors import BadInput
from etl.spark.payloads import PAYLOADS, Payload, collected
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolution import (
    AssignKeys,
    Carry,
    Decision,
    DropDuplicates,
    Members,
    Resolution,
    ResolvedLoad,
    TranslateCodes,
    Way,
)
from etl.spark.resolve_part import PLACE, Part, check, finished, resolve_part, together
from etl.spark.resolve_task import (
    COUNTS,
    LOADED,
    PARTITION,
    QUARANTINED,
    UNKNOWN,
    RelationPlace,
    ResolveTask,
    Routing,
)
from etl.spark.waiting_rows import divide
from etl.storage.relation import Relation

__all__ = [
    "resolve",
    "Resolution",
    "ResolvedLoad",
    "TranslateCodes",
    "DropDuplicates",
    "AssignKeys",
    "Carry",
    "Decision",
    "Members",
    "Way",
]


def resolve(
    batch: DataFrame | pa.Table,
    plan: Resolution,
    relations: Mapping[str, Relation],
    load_id: str,
    *,
    way: Way = "auto",
    expected_rows: int | None = None,
    carried: pa.Table | None = None,
    decision: Decision | None = None,
) -> ResolvedLoad:
    """Resolve the rows of a load against these versions of the relations, which are given by name.

    `expected_rows` chooses the way when that is left open; the number of the load before is a good guess, since both
    ways give the same. Without it a job of its own counts the rows. Rows that are in the driver stay there.

    `carried` is what waited after the load before, `decision` what an earlier attempt of this load has decided.
    """
    if isinstance(batch, DataFrame):
        if _chosen(way, batch, plan, expected_rows, carried, load_id) == "tasks":
            return _in_tasks(batch, plan, relations, load_id)
        batch = batch.toArrow()
    elif way == "tasks":
        raise BadInput(f"load {load_id}: its rows are in the driver already; give a DataFrame to resolve in tasks")
    return _in_driver(batch, plan, relations, load_id, carried, decision)


def _chosen(
    way: Way, batch: DataFrame, plan: Resolution, expected_rows: int | None, carried: pa.Table | None, load_id: str
) -> Way:
    if plan.carry is not None or carried is not None:
        if way == "tasks":
            raise BadInput(f"load {load_id}: rows wait in the driver only; resolve without carry, or with way='driver'")
        return "driver"
    if way != "auto":
        return way
    rows = batch.count() if expected_rows is None else expected_rows
    return "driver" if rows <= plan.driver_rows else "tasks"


def _in_driver(
    rows: pa.Table,
    plan: Resolution,
    relations: Mapping[str, Relation],
    load_id: str,
    carried: pa.Table | None,
    decision: Decision | None,
) -> ResolvedLoad:
    check(plan, relations, rows.column_names)
    lookups = PROCESS_MEMORY.lookups(plan.join, plan.memory_bytes)
    divided = divide(rows, carried, plan, relations, lookups, decision)
    part = resolve_part(divided.due, plan, relations, load_id, lookups)
    return replace(finished(part, plan, relations), waiting=divided.waiting, decision=divided.decision)


def _in_tasks(batch: DataFrame, plan: Resolution, relations: Mapping[str, Relation], load_id: str) -> ResolvedLoad:
    check(plan, relations, batch.columns)
    places = {name: _place(relations[name], load_id) for name in plan.relations}
    tasks = _routed(batch, plan, places).mapInArrow(ResolveTask(plan, places, load_id), PAYLOADS)
    nothing = _nothing(batch, plan, relations, load_id)
    parts = [nothing, *(_part(payload, nothing) for payload in collected(tasks))]
    return finished(together(parts, plan, relations), plan, relations)


def _routed(batch: DataFrame, plan: Resolution, places: Mapping[str, RelationPlace]) -> DataFrame:
    step = plan.routing
    if step is None:  # only codes: each row stands for itself
        return batch
    partitions = plan.partitions or batch.sparkSession.sparkContext.defaultParallelism
    schema = StructType([*batch.schema, *_ADDED])
    routed = batch.mapInArrow(Routing(places[step.relation], step, partitions), schema)
    return routed.repartitionById(partitions, sf.col(f"`{PARTITION}`"))


_ADDED = StructType().add(PLACE, LongType(), nullable=False).add(PARTITION, IntegerType(), nullable=False)


def _part(payload: Payload, nothing: Part) -> Part:
    """A part of which only this payload is there."""
    if payload.kind == COUNTS:
        return replace(nothing, duplicates=cast(int, payload.document()["duplicates"]))
    table = payload.table()
    if payload.kind == UNKNOWN:
        unknown = list(nothing.unknown)
        unknown[payload.number] = table.cast(unknown[payload.number].schema)
        return replace(nothing, unknown=unknown)
    if payload.kind == QUARANTINED:
        return replace(nothing, quarantined=table.cast(nothing.quarantined.schema))
    if payload.kind == LOADED:
        return replace(nothing, loaded=table)
    return replace(nothing, rows=table.cast(nothing.rows.schema))


def _nothing(batch: DataFrame, plan: Resolution, relations: Mapping[str, Relation], load_id: str) -> Part:
    """What comes of no rows: the schemas that all parts have, also when no task has any."""
    fields = list(to_arrow_schema(batch.schema, timezone=batch.sparkSession.conf.get("spark.sql.session.timeZone")))
    if plan.routing is not None:
        fields.append(pa.field(PLACE, pa.int64()))
    rows = pa.schema(fields).empty_table()
    lookups = PROCESS_MEMORY.lookups(plan.join, plan.memory_bytes)
    return resolve_part(rows, plan, relations, load_id, lookups)


def _place(relation: Relation, load_id: str) -> RelationPlace:
    if relation.folder is None:
        raise BadInput(f"load {load_id}: relation {relation.name} is in memory, where Spark's tasks cannot open it")
    return RelationPlace(str(relation.folder), relation.version)
