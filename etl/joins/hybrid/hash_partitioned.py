"""The hash-partitioned hybrid join (thesis 6.3): the partitioned join over a relation partitioned by hash.

It spreads arrivals evenly over the segments, whatever the keys: each segment costs about the same.
"""

from __future__ import annotations

from etl.joins.catalogue import register
from etl.joins.hybrid.partitioned import Partitioned, PartitionedSettings


@register(
    "hash-partitioned",
    family="hybrid",
    predicates=("equality",),
    spills="nothing",
    paper="thesis 6.3",
    settings=PartitionedSettings,
    streams=1,
    with_relation=True,
)
class HashPartitioned(Partitioned):
    partition = "hash"
