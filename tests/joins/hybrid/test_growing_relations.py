"""Any life of a hybrid join over a relation that grows and is compacted: each row is answered once, whole, in time.

The suites of the harness let the relation grow; here segments are split and merged as well while rows wait, versions
of all ages are in use at once, and rows have deadlines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl import joins
from etl.joins import EndOfSide, Progress, RelationVersion, Rows, Tick, WorkBudget
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.joins.hybrid.lookups import STREAM, Customer, Sink, asking, built, customers, stored
from tests.oracle import Row, rows_of

LIVES: list[tuple[str, PartitionKind, dict[str, object]]] = [
    ("hash-partitioned", "hash", {"deadline": 2, "invocation_rows": 3}),
    ("range-partitioned", "range", {"cache_share": 0.4, "frequent_after": 1, "wait_share": 0.3}),
    ("range-partitioned", "range", {"high_mark": 0.01, "low_mark": 0.005, "filter_share": 0.0}),
    ("meshjoin", "hash", {"queue_rows": 5, "scan_when_idle": False}),
    ("meshjoin", "range", {"cache_share": 0.4, "frequent_after": 1, "filter_share": 0.2}),
]

numbers = st.lists(st.integers(0, 30), min_size=1, max_size=12)
Step = tuple[str, list[int]]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), numbers),
        st.tuples(st.just("ask"), numbers),
        st.tuples(st.just("grow"), numbers),
        st.tuples(st.just("compact"), st.just([0])),
        st.tuples(st.just("tick"), st.just([0])),
        st.tuples(st.just("work"), st.lists(st.integers(0, 3), min_size=1, max_size=1)),
        st.tuples(st.just("restore"), st.just([0])),
    ),
    max_size=25,
)


class Life:
    """One join, its relation's versions by number, and which version was the newest when each row arrived."""

    def __init__(self, relation: Relation, known: Sequence[Customer], join: str, settings: dict[str, object]) -> None:
        self.relation = relation
        self.contents: dict[int, list[Customer]] = {relation.version: list(known)}
        self.arrived: dict[Row, int] = {}
        self.results = Sink()
        self.operator = built(relation, join, how="left", memory_bytes=6000, block_bytes=128, **settings)
        self.instant = 0

    def play(self, action: str, given: list[int]) -> None:
        if action == "ask":
            self._ask(given)
        elif action == "grow":
            added = [(number, f"version {self.relation.version + 1}, {place}") for place, number in enumerate(given)]
            self._move(self.relation.append(stored(added), f"load {self.relation.version}", highest=0), added)
        elif action == "compact":
            self._move(self.relation.compact(), [])
        elif action == "tick":
            self.instant += 1
            self.operator.offer(Tick(self.instant), self.results.append)
        elif action == "work":
            self.operator.work(WorkBudget(blocks=given[0]), self.results.append)
        else:
            snapshot = joins.Snapshot.from_bytes(self.operator.snapshot().to_bytes())
            self.operator = joins.restore(snapshot, relation=self.relation)

    def finish(self) -> None:
        self.operator.offer(EndOfSide(0), self.results.append)
        assert self.operator.work(WorkBudget(), self.results.append) is Progress.DONE

    def judge(self) -> None:
        answers: dict[Row, list[Row]] = {}
        for result in self.results.take():
            answers.setdefault(result[:2], []).append(result[2:])
        assert answers.keys() == self.arrived.keys(), "a row was lost or made up"
        for row, answer in answers.items():
            (seen,) = {found[-1] for found in answer}
            assert isinstance(seen, int)
            assert seen >= self.arrived[row], f"{row}: answered from before its arrival"
            owed: list[Row] = [customer for customer in self.contents[seen] if customer[0] == row[0]]
            assert Counter(found[:2] for found in answer) == Counter(owed or [(None, None)])

    def _ask(self, given: list[int]) -> None:
        # No text comes twice, so that every row can be told from every other.
        first = len(self.arrived)
        batch = asking(*given).batch
        texts = [f"row {first + place}" for place in range(len(given))]
        batch = batch.from_arrays([batch.column(0), texts], schema=STREAM)
        self.arrived.update(dict.fromkeys(rows_of([batch]), self.relation.version))
        self.operator.offer(Rows(0, batch), self.results.append)

    def _move(self, relation: Relation, added: list[Customer]) -> None:
        self.contents[relation.version] = self.contents[self.relation.version] + added
        self.relation = relation
        self.operator.offer(RelationVersion(relation), self.results.append)


@pytest.mark.parametrize(("join", "kind", "chosen"), LIVES, ids=lambda value: str(value))
@given(first=st.lists(st.integers(0, 30), max_size=20), played=steps)
@settings(max_examples=60, deadline=None)
def test_every_row_is_answered_once_and_whole(
    join: str, kind: PartitionKind, chosen: dict[str, object], first: list[int], played: list[Step]
) -> None:
    known = [(number, f"first {place}") for place, number in enumerate(first)]
    life = Life(customers(known, theta=2, partition=kind), known, join, chosen)
    for action, given_numbers in played:
        life.play(action, given_numbers)
    life.finish()
    life.judge()
