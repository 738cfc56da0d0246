"""The range-partitioned hybrid join (thesis 6.3): the partitioned join over a relation partitioned by range.

It keeps what is near in key near in storage: a stream that dwells on a part of the keys meets few segments.
"""

from __future__ import annotations

from etl.joins.catalogue import register
from etl.joins.hybrid.partitioned import Partitioned, PartitionedSettings


@register(
    "range-partitioned",
    family="hybrid",
    predicates=("equality",),
    spills="nothing",
    paper="thesis 6.3",
    settings=PartitionedSettings,
    streams=1,
    with_relation=True,
)
class RangePartitioned(Partitioned):
    partition = "range"
