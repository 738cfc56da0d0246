"""Rows that wait for the next load: the wait buffer of the hybrid join, carried over inside the load package.

Idea: a disk probe of a relation segment costs the same for one row as for a thousand. Rows of segments that are not in
memory and that few rows ask for are put back, as they came, until enough of them are together or one is due.

State: a table of rows with the number of loads that each has waited (`WAITED`); it belongs to the package of the load.
Invariants: all rows of a segment wait or none does; no row waits longer than the deadline; a decision that is handed in
gives the same rows again, because the version that it was made from says which segment a key belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.errors import BadInput
from etl.spark.resolution import Carry, Decision, Resolution
from etl.storage.relation import Relation
from etl.transforms.lookups import Lookups
from etl.transforms.ordering import hashed

WAITED = "_waited"
"""The column of a waiting row that says for how many loads it has waited."""


@dataclass(frozen=True)
class Divided:
    """`due`: the rows to resolve now; `waiting`: the others; None, like the decision, where nothing may wait."""

    due: pa.Table
    waiting: pa.Table | None = None
    decision: Decision | None = None


def divide(
    rows: pa.Table,
    carried: pa.Table | None,
    plan: Resolution,
    relations: Mapping[str, Relation],
    lookups: Lookups,
    decision: Decision | None,
) -> Divided:
    """Add what waited to the rows of the load, and tell those that are due from those that wait."""
    waited = np.zeros(rows.num_rows, np.int32)
    if carried is not None:
        waited = np.concatenate([_loads_waited(carried), waited])
        rows = pa.concat_tables([_as_rows(carried, rows.schema), rows])
    if plan.carry is None:
        return Divided(rows)
    step = plan.keys[0]
    relation = relations[step.relation]
    if decision is not None and decision.version != relation.version:
        relation = relation.at(decision.version)
    stands_for = {related: name for name, related in step.on}
    segment = relation.segment_of(hashed(rows, [stands_for[name] for name in relation.key]))
    if decision is None:
        in_memory = lookups.segments_in_memory(relation)
        decision = Decision(relation.version, _sparse(segment, waited, in_memory, plan.carry))
    waits = np.isin(segment, decision.segments)
    waiting = rows.filter(pa.array(waits)).append_column(WAITED, pa.array(waited[waits] + np.int32(1)))
    return Divided(rows.filter(pa.array(~waits)), waiting, decision)


def _sparse(
    segment: NDArray[np.int32], waited: NDArray[np.int32], in_memory: NDArray[np.bool_], carry: Carry
) -> tuple[int, ...]:
    """The segments whose rows wait; a key with a null in it has none and is due."""
    keyed = segment >= 0
    asking = np.bincount(segment[keyed], minlength=in_memory.size)
    longest = np.zeros(in_memory.size, np.int32)
    np.maximum.at(longest, segment[keyed], waited[keyed])
    wait = (asking > 0) & (asking < carry.invocation_rows) & ~in_memory & (longest < carry.deadline_loads)
    return tuple(np.flatnonzero(wait).tolist())


def _loads_waited(carried: pa.Table) -> NDArray[np.int32]:
    if WAITED not in carried.column_names:
        raise BadInput(f"carried rows have no column {WAITED!r}: hand in `waiting` of the load before as it is")
    waited: NDArray[np.int32] = carried.column(WAITED).to_numpy().astype(np.int32)
    return waited


def _as_rows(carried: pa.Table, schema: pa.Schema) -> pa.Table:
    rows = carried.drop_columns([WAITED])
    if not rows.schema.equals(schema):
        try:
            return rows.select(schema.names).cast(schema)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise BadInput(
                f"rows that waited have the columns {rows.column_names}, those of this load {schema.names}: let the "
                f"pipeline run once without carry before its rows change ({error})"
            ) from error
    return rows
