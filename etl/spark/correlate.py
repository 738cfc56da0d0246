"""The correlate host: a stream-stream join of the catalogue, on the rows of one micro-batch.

Rows are tagged with their side and belong to a partition group by the hash of their key. There are many more groups
than slots; a slot is a Spark partition, and works on its groups one after the other. Each group's operator goes on from
the state that the previous load left, kept alive in the worker or restored from its files, is fed and given its work;
what it took is logged under a name that holds the load and the attempt. Results and states travel to the driver, which
keeps them in the load package: a load that is run again starts from the same states, so placement, retries and
speculation change no result. See README.md beside this file.

One job per micro-batch. Rows that the source could not read ("aside") ride along to the driver in the same job, and
rows behind their side's watermark come back as late, untouched by the join.

Limits: the results of a load pass through the driver's memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from etl.errors import TerminalError
from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import Reorganisation
from etl.spark.balance import Balance
from etl.spark.correlation import EMPTY_STATE, Correlation, CorrelationState
from etl.spark.group_state import GroupState
from etl.spark.packed_rows import layout_of, packed, value_of
from etl.spark.payloads import PAYLOADS, Payload, collected
from etl.spark.slot_task import ASIDE, COUNTS, GROUPS, LATE, RESULTS, SlotTask

__all__ = ["EMPTY_STATE", "Correlated", "Correlation", "CorrelationState", "correlate", "tagged"]


@dataclass(frozen=True)
class Correlated:
    """The outcome of one load: joined rows, late rows by side, rows put aside, rows read by side, and the next state.

    `results` and `aside` are tables without columns when there are none. The others are for display: where the groups
    of this load were worked on, each group's work in rows, and the reorganisation if this load ended an epoch.
    """

    results: pa.Table
    late: Mapping[int, pa.Table]
    aside: pa.Table
    rows_in: Mapping[int, int]
    state: CorrelationState
    placement: Placement | None = None
    work: Mapping[int, int] = field(default_factory=dict)
    reorganisation: Reorganisation | None = None


def tagged(side: Column, rows: Sequence[Column], aside: Column) -> list[Column]:
    """The columns that `correlate` expects: the side (-1 puts a row aside), a struct per side, a struct for aside."""
    return [side.alias("side"), *(row.alias(f"row_{number}") for number, row in enumerate(rows)), aside.alias("aside")]


def correlate(
    batch: DataFrame, plan: Correlation, load_id: str, state: CorrelationState, watermarks: Mapping[int, int]
) -> Correlated:
    """Join the tagged rows of a micro-batch with each other and with what earlier loads left waiting."""
    state.check_fits(plan)
    balance = state.balance_for(plan, batch.sparkSession.sparkContext.defaultParallelism)
    layout = layout_of(batch.schema, plan.sides)
    task = SlotTask(plan, layout, load_id, uuid.uuid4().hex[:8], dict(watermarks), dict(state.groups))
    rows = batch.selectExpr("side", f"{_group_of(plan)} AS group", *packed(layout, plan.sides), "aside")
    if plan.where == "driver":
        payloads = _in_driver(rows, task)
    else:
        payloads = collected(_placed(rows, balance.placement).mapInArrow(task, PAYLOADS))
    return _Gathered(plan, balance.placement, payloads).correlated(state, balance)


def _placed(rows: DataFrame, placement: Placement) -> DataFrame:
    """Each row in the Spark partition that is its group's slot."""
    if placement.slots == 1:
        return rows.coalesce(1)
    slot_of = ", ".join(map(str, placement.slot_of))
    return rows.repartitionById(placement.slots, sf.expr(f"get(array({slot_of}), group)"))


def _in_driver(rows: DataFrame, task: SlotTask) -> Iterator[Payload]:
    """What one task with all groups would say, from this process."""
    try:
        outcome = task.run(0, f"{task.attempt}-driver", rows.toArrow().to_batches())
    except TerminalError as error:
        raise type(error)(f"load {task.load_id}, {error}") from error
    for output in outcome.outputs(0):
        for kind, number, content in zip(*output.columns, strict=True):
            yield Payload(kind.as_py(), number.as_py(), content.as_buffer())


def _group_of(plan: Correlation) -> str:
    """As SQL. Any stable function of the key will do: a group's rows only have to meet their partners."""
    keys = [f"coalesce({', '.join(value_of(side, name) for side, name in enumerate(names))})" for names in plan.on]
    return f"CAST(pmod(xxhash64({', '.join(keys)}), {plan.groups}) AS INT)"


class _Gathered:
    """What the slots said, put together."""

    def __init__(self, plan: Correlation, placement: Placement, payloads: Iterable[Payload]) -> None:
        self._plan = plan
        self._answered: set[int] = set()
        self._tables: dict[tuple[str, int], list[pa.Table]] = {}
        self._states: dict[int, GroupState] = {}
        self._work: dict[int, int] = {}
        self._event_time: dict[int, int] = {}
        self._rows_in = dict.fromkeys(range(len(plan.sides)), 0)
        for payload in payloads:
            self._take(payload)
        _check_slots(plan, placement, self._answered)

    def correlated(self, before: CorrelationState, balance: Balance) -> Correlated:
        plan = self._plan
        event_time = dict(before.event_time)
        for side, instant in self._event_time.items():
            event_time[side] = max(instant, event_time.get(side, instant))
        next_balance, reorganisation = balance.after(self._work, plan.slot_rows, plan.rebalancing)
        return Correlated(
            results=_concatenated(self._tables.get((RESULTS, 0), [])),
            late={number: pa.concat_tables(parts) for (kind, number), parts in self._tables.items() if kind == LATE},
            aside=_concatenated(self._tables.get((ASIDE, 0), [])),
            rows_in=self._rows_in,
            state=CorrelationState({**before.groups, **self._states}, event_time, next_balance),
            placement=balance.placement,
            work=self._work,
            reorganisation=reorganisation,
        )

    def _take(self, payload: Payload) -> None:
        if payload.kind == GROUPS:
            self._answered.add(payload.number)
            groups = cast(list[tuple[int, dict[str, object], int]], payload.document()["groups"])
            for group, state, work in groups:
                self._states[group] = GroupState.from_json(state)
                self._work[group] = work
        elif payload.kind == COUNTS:
            side, counts = payload.number, cast(dict[str, int | None], payload.document())
            self._rows_in[side] += counts["rows"] or 0
            if (instant := counts["event_time"]) is not None:
                self._event_time[side] = max(instant, self._event_time.get(side, instant))
        else:
            self._tables.setdefault((payload.kind, payload.number), []).append(payload.table())


def _check_slots(plan: Correlation, placement: Placement, answered: set[int]) -> None:
    """All slots answer, or none when Spark saw that there are no rows at all."""
    if answered and answered != set(range(placement.slots)):
        raise TerminalError(
            f"correlation by {plan.join} has {placement.slots} slots, but Spark ran {sorted(answered)}: it merged "
            "partitions; set spark.sql.adaptive.enabled to false"
        )


def _concatenated(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts) if parts else pa.table({})
