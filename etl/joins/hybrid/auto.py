"""`auto`: the strategy and its settings chosen from the relation, the memory, and a sample of the stream.

The relation decides between hash and range: it is partitioned one way. What is left to choose is whether a cyclic scan
is cheaper than probes, and how the memory is divided. The rules, first that fits:

1. The relation fits into the memory: hold all of it, without filters or cache.
2. A batch asks for so many keys that a probe touches most of every segment anyway: MESHJOIN reads them in order.
3. Otherwise the partitioned join. Keys that repeat in the sample are worth a cache, the more the more they repeat; a
   stream that meets few segments is worth join memory, and then the cache gets less.

The choice is an ordinary operator under its own name; `describe()` has the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa

from etl.errors import BadInput
from etl.joins.catalogue import make, register
from etl.joins.contract import JoinPlan, Ports
from etl.joins.hybrid.meshjoin import MeshJoinSettings
from etl.joins.hybrid.partitioned import PartitionedSettings
from etl.joins.lifecycle import Operator
from etl.joins.snapshots import Snapshot
from etl.storage.ports import RelationView, keys_of

_HELD_SHARE = 0.85
_DENSE_SHARE = 0.5
_REPEATED = 0.2
_LOCAL = 0.25


@dataclass(frozen=True, slots=True)
class AutoSettings:
    sample: pa.RecordBatch | None = None
    """Rows of the stream, a batch or more, in its schema; without them the stream is taken to have no pattern."""


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    settings: object
    reason: str


@register(
    "auto",
    family="hybrid",
    predicates=("equality",),
    spills="nothing",
    paper="beyond the thesis",
    settings=AutoSettings,
    streams=1,
    with_relation=True,
)
def auto(plan: JoinPlan, ports: Ports, saved: Snapshot | None) -> Operator:
    """The operator that was chosen; its snapshots know it by its own name."""
    assert ports.relation is not None
    sample = cast(AutoSettings, plan.settings).sample
    if sample is not None and not sample.schema.equals(plan.sides[0]):
        raise BadInput(f"auto: the sample has the columns {sample.schema.names}, the stream has {plan.sides[0].names}")
    choice = choose(plan, ports.relation, sample)
    return make(replace(plan, name=choice.name, settings=choice.settings, reason=choice.reason), ports, saved)


def choose(plan: JoinPlan, relation: RelationView, sample: pa.RecordBatch | None) -> Choice:
    """What fits this relation, this memory and, if there is a sample, this stream."""
    partitioned = f"{relation.partition}-partitioned"
    held = int(relation.segment_bytes.sum()) + relation.block_table().index_bytes
    size = f"relation {relation.name} takes {held:,} bytes, the memory is {plan.memory_bytes:,}"
    if held <= _HELD_SHARE * plan.memory_bytes:
        settings = PartitionedSettings(filter_share=0.0, cache_share=0.0)
        return Choice(partitioned, settings, f"{size}: all of it is held in memory")
    if sample is None or sample.num_rows == 0:
        return Choice(partitioned, PartitionedSettings(), f"{size}; no sample of the stream: a bit of everything")
    repeated, local = _patterns(plan, relation, sample)
    if sample.num_rows >= _DENSE_SHARE * relation.rows and repeated < _REPEATED:
        reason = f"a batch of {sample.num_rows:,} rows asks for much of {relation.rows:,}: a scan in order serves it"
        return Choice("meshjoin", MeshJoinSettings(), f"{size}; {reason}")
    seen = f"{repeated:.0%} of the sample's rows repeat a key, 80 % of them meet {local:.0%} of the segments"
    if repeated >= _REPEATED and local > _LOCAL:
        return Choice(partitioned, PartitionedSettings(cache_share=0.3), f"{size}; {seen}: a large frequent-key cache")
    if local <= _LOCAL:
        return Choice(partitioned, PartitionedSettings(cache_share=0.05), f"{size}; {seen}: join memory for those")
    return Choice(partitioned, PartitionedSettings(cache_share=0.0), f"{size}; {seen}: no pattern, so no cache")


def _patterns(plan: JoinPlan, relation: RelationView, sample: pa.RecordBatch) -> tuple[float, float]:
    """The share of rows whose key came before, and the share of segments that 80 % of the rows go to."""
    keys = keys_of([sample.column(position) for position in plan.keys[0]])
    repeated = 1 - len(np.unique(keys.hashes)) / sample.num_rows
    segment = relation.segment_of(keys)
    arrivals = np.sort(np.bincount(segment[segment >= 0], minlength=relation.segments))[::-1]
    reached = np.cumsum(arrivals) >= 0.8 * arrivals.sum()
    return repeated, (int(reached.argmax()) + 1) / relation.segments
