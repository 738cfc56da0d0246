"""The parts of the resolve host that run in Spark's tasks: one sends rows to partitions, one resolves a partition.

Rows go to partitions by the relation's own map: a partition is a stretch of its segments, so that a task meets few of
them. Both functions travel to the workers with the plan and the names of the relation versions; what the workers keep
from batch to batch is in their process memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from etl.errors import TerminalError
from etl.spark.payloads import document_payload, failure_payload, table_payload
from etl.spark.process_memory import PROCESS_MEMORY
from etl.spark.resolution import AssignKeys, DropDuplicates, Resolution
from etl.spark.resolve_part import PLACE, Part, resolve_part
from etl.storage.ports import RelationView, keys_of

PARTITION = "partition of the row"
ROWS, QUARANTINED, LOADED, UNKNOWN, COUNTS = "rows", "quarantined", "loaded", "unknown", "counts"
_ROWS_OF_A_PARTITION = 1 << 40


class RelationPlace(NamedTuple):
    """One version of a relation, for another process to open."""

    folder: str
    version: int


@dataclass(frozen=True)
class Routing:
    """For `mapInArrow`: rows with the partition that they belong to, and their place in the load."""

    place: RelationPlace
    step: DropDuplicates | AssignKeys
    partitions: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        relation = PROCESS_MEMORY.relation(Path(self.place.folder), self.place.version)
        at = _partition_id() * _ROWS_OF_A_PARTITION
        for batch in batches:
            places = np.arange(at, at + batch.num_rows)
            partition = self._partition_of(batch, relation)
            # Rows without a key match nothing, so they may go anywhere.
            partition = np.where(partition < 0, places % self.partitions, partition).astype(np.int32)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(places), pa.array(partition)], [*batch.schema.names, PLACE, PARTITION]
            )
            at += batch.num_rows

    def _partition_of(
        self, batch: pa.RecordBatch, relation: RelationView
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        stands_for = {related: name for name, related in self.step.on}
        segment = relation.segment_of(keys_of([batch.column(stands_for[name]) for name in relation.key]))
        return np.where(segment < 0, -1, segment.astype(np.int64) * self.partitions // relation.segments)


@dataclass(frozen=True)
class ResolveTask:
    """For `mapInArrow`: the payloads of one partition, looked up and without duplicates."""

    plan: Resolution
    places: Mapping[str, RelationPlace]
    load_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived = [batch for batch in batches if batch.num_rows]
        if not arrived:
            return
        try:
            part = self._resolved(pa.Table.from_batches(arrived))
        except TerminalError as error:
            yield failure_payload(error, f"load {self.load_id}, partition {_partition_id()}")
        else:
            yield from _payloads(part)

    def _resolved(self, rows: pa.Table) -> Part:
        if PARTITION in rows.column_names:
            rows = rows.drop_columns([PARTITION])
        relations = {
            name: PROCESS_MEMORY.relation(Path(place.folder), place.version) for name, place in self.places.items()
        }
        lookups = PROCESS_MEMORY.lookups(self.plan.join, self.plan.memory_bytes)
        return resolve_part(rows, self.plan, relations, self.load_id, lookups)


def _payloads(part: Part) -> Iterator[pa.RecordBatch]:
    """What is empty stays away."""
    yield document_payload(COUNTS, 0, {"duplicates": part.duplicates})
    tables = [(QUARANTINED, 0, part.quarantined), (ROWS, 0, part.rows)]
    tables += [(UNKNOWN, number, keys) for number, keys in enumerate(part.unknown)]
    if part.loaded is not None:
        tables.append((LOADED, 0, part.loaded))
    for kind, number, table in tables:
        if table.num_rows:
            yield table_payload(kind, number, table)


def _partition_id() -> int:
    context = TaskContext.get()
    assert context is not None, "this runs in a Spark task"
    return int(context.partitionId())
