"""Several queries over one relation: one join memory, and one disk probe for all rows that wait for a segment.

Each query is a partitioned join of its own, with its stream, its predicate's columns and its results; what they share
is the relation: which segments are in memory follows from all arrivals together, and a segment that is read answers the
waiting rows of every query (thesis 8.2.3). A query whose own wait buffer is full probes for itself. The memory is one
number for all: half of it for the segments, the rest in equal parts for the queries' wait buffers, filters and caches.

    shared = SharedScan(relation, memory_bytes=1 << 28)
    orders = shared.query(orders_schema, on=[("customer_no", "customer_no")], emit=orders_sink)
    returns = shared.query(returns_schema, on=[("customer", "customer_no")], how="left", emit=returns_sink)
    shared.offer(orders, joins.Rows(0, batch))
    shared.work(joins.WorkBudget(blocks=10))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from etl.budget import WorkBudget, WorkMeter
from etl.errors import BadInput
from etl.events import Event, RelationVersion
from etl.joins.catalogue import build
from etl.joins.contract import Emit, How, Progress
from etl.joins.hybrid.partitioned import Partitioned
from etl.joins.hybrid.segment_memory import SegmentMemory
from etl.joins.lifecycle import WORKING_PHASES
from etl.storage.ports import RelationView

_FOR_SEGMENTS = 0.5


class SharedScan:
    """The queries on one relation. `queries` says how many there will be at most: each gets that part of the memory."""

    def __init__(self, relation: RelationView, memory_bytes: int, queries: int = 2) -> None:
        if queries < 1:
            raise BadInput(f"a shared scan of relation {relation.name} for {queries} queries: it has at least one")
        self._relation = relation
        self._query_bytes = int((1 - _FOR_SEGMENTS) * memory_bytes) // queries
        self._places = queries
        self._segments = SegmentMemory(relation, int(_FOR_SEGMENTS * memory_bytes), rho=0.25, decay=0.3, epoch_rows=0)
        self._queries: list[tuple[Partitioned, Emit]] = []

    def query(
        self,
        stream: pa.Schema,
        on: Sequence[tuple[str, str]],
        emit: Emit,
        how: How = "inner",
        **settings: object,
    ) -> int:
        """A new query; its number is what `offer` takes. `settings` are those of the partitioned joins."""
        if len(self._queries) == self._places:
            raise BadInput(f"the shared scan of relation {self._relation.name} was made for {self._places} queries")
        operator = build(
            f"{self._relation.partition}-partitioned",
            sides=[stream],
            on=list(on),
            relation=self._relation,
            how=how,
            memory_bytes=self._query_bytes,
            block_bytes=min(self._query_bytes, 64 * 1024),
            **settings,  # type: ignore[arg-type]  # the operator's own
        )
        assert isinstance(operator, Partitioned)
        operator.share(self._segments)
        self._queries.append((operator, emit))
        return len(self._queries) - 1

    def offer(self, query: int, event: Event) -> None:
        """An event of one query's stream. A new relation version is for all: give it to `adopt`."""
        if isinstance(event, RelationVersion):
            raise BadInput("a relation version is for all queries: give it to adopt()")
        operator, emit = self._queries[query]
        operator.offer(event, emit)

    def adopt(self, relation: RelationView) -> None:
        """All queries look at a newer version from now on."""
        # The queries first: the first of them refuses what is not a newer version, and nothing has changed.
        for operator, emit in self._live():
            operator.offer(RelationVersion(relation), emit)
        self._segments.adopt(relation)
        self._relation = relation

    def work(self, budget: WorkBudget) -> Progress:
        """Disk probes, the segments with the most waiting rows of all queries first; each read answers all."""
        meter = WorkMeter(budget)
        while (waiting := self._waiting_rows()).any():
            if meter.spent:
                return Progress.MORE
            segments = np.array([int(waiting.argmax())], np.intp)
            blocks = self._segments.read(segments, waiting[segments])
            for operator, emit in self._live():
                operator.answer_segments(segments, emit)
            self._segments.keep_some(segments)
            meter.charge(blocks, int(waiting[segments[0]]))
        done = [operator.work(WorkBudget(blocks=0), emit) for operator, emit in self._queries]
        return Progress.DONE if done and all(progress is Progress.DONE for progress in done) else Progress.IDLE

    @property
    def memory_bytes(self) -> int:
        """What is held now: the shared segments once, and what each query holds."""
        return self._segments.nbytes + sum(operator.counters.memory_bytes for operator, _ in self._queries)

    def close(self) -> None:
        for operator, _ in self._queries:
            operator.close()
        self._segments.release()

    def _waiting_rows(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        total = np.zeros(self._relation.segments, np.int64)
        for operator, _ in self._live():
            total += operator.waiting_rows
        return total

    def _live(self) -> list[tuple[Partitioned, Emit]]:
        """The queries that are not done; the others know nothing of newer versions."""
        return [query for query in self._queries if query[0].phase in WORKING_PHASES]
