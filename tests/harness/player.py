"""Plays scripts on operators and keeps what came out, with what is needed to judge it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

import pyarrow as pa

from etl import joins
from etl.joins import Operator, Progress, RelationVersion, Rows, WorkBudget
from etl.storage.memory_relation import create_memory_relation
from etl.storage.memory_runs import MemoryRuns
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from tests.harness.subjects import Subject
from tests.oracle import Row, inner_join, rows_of, window_join
from tests.scripts import EVENT_TIME, Grow, Script, Step

AMPLE_MEMORY = 1 << 30
MOST_CALLS = 10_000
"""More calls of `work` than any script needs: an operator that is not done by then never will be."""


class Player:
    """One operator, its ports, and the record of its life. `restored` makes a second player from a snapshot."""

    def __init__(self, subject: Subject, script: Script, operator: Operator | None = None) -> None:
        self.subject = subject
        self.script = script
        self.spill = MemoryRuns()
        self.relation = _relation_of(script, subject.partition)
        self.versions: list[Relation] = [] if self.relation is None else [self.relation]
        self.results: list[pa.RecordBatch] = []
        self.arrived_at: dict[int, int] = {}
        self.operator = operator or self._built()

    def restored(self, stored: bytes, memory_bytes: int | None = None) -> Player:
        """A new operator from the stored snapshot; what came out up to now comes along, what comes later is its own."""
        copy = object.__new__(Player)
        copy.__dict__.update(self.__dict__)
        copy.results = list(self.results)
        copy.versions = list(self.versions)
        copy.arrived_at = dict(self.arrived_at)
        copy.operator = joins.restore(
            joins.Snapshot.from_bytes(stored), spill=self._spill(), relation=self.relation, memory_bytes=memory_bytes
        )
        return copy

    def emit(self, batch: pa.RecordBatch) -> None:
        self.results.append(batch)

    def play(self, steps: Iterable[Step]) -> Player:
        for step in steps:
            self.step(step)
        return self

    def step(self, step: Step) -> None:
        if isinstance(step, WorkBudget):
            self.operator.work(step, self.emit)
        elif isinstance(step, Grow):
            self.grow(step)
        else:
            if isinstance(step, Rows) and self.relation is not None:
                self._note_arrival(step)
            self.operator.offer(step, self.emit)

    def grow(self, step: Grow) -> None:
        assert self.relation is not None
        self.relation = self.relation.append(step.rows, load_id=f"grow-{len(self.versions)}", highest=0)
        self.versions.append(self.relation)
        if self.operator.phase in (joins.Phase.ARRIVING, joins.Phase.CLEANING_UP):
            self.operator.offer(RelationVersion(self.relation), self.emit)

    def finish(self, budget: WorkBudget | None = None) -> Player:
        """Let it work until it is done."""
        for _ in range(MOST_CALLS):
            if self.operator.work(budget or WorkBudget(blocks=7), self.emit) is Progress.DONE:
                return self
        raise AssertionError(f"not done after {MOST_CALLS} calls of work")

    def judge(self) -> None:
        """Everything that came out is what the definition asks for, once each."""
        if self.relation is None:
            _assert_same(Counter(rows_of(self.results)), self._expected())
        else:
            self._judge_against_versions()

    def _expected(self) -> Counter[Row]:
        left, right = self._rows_by_side()
        windows = self.script.windows
        if windows is None or not left or not right:
            return inner_join(left, right, self._key_positions())
        first, second = (schema.get_field_index(EVENT_TIME) for schema in self.script.sides)
        return window_join(left, right, self._key_positions(), (first, second), windows)

    def _built(self) -> Operator:
        script = self.script
        return joins.build(
            self.subject.name,
            sides=script.sides,
            on=script.on,
            memory_bytes=script.memory_bytes if self.subject.keeps_to_any_budget else AMPLE_MEMORY,
            block_bytes=script.block_bytes,
            result_rows=script.result_rows,
            spill=self._spill(),
            relation=self.relation,
            how=script.how,  # type: ignore[arg-type]  # one of the two words
            **self.script.settings,  # type: ignore[arg-type]  # the operator's own
            **self.subject.settings,  # type: ignore[arg-type]  # the operator's own
        )

    def _spill(self) -> MemoryRuns | None:
        return self.spill if self.subject.entry.needs_spill else None

    def _rows_by_side(self) -> list[list[Row]]:
        offered = [step for step in self.script.steps if isinstance(step, Rows)]
        return [rows_of(step.batch for step in offered if step.side == side) for side in range(len(self.script.sides))]

    def _key_positions(self) -> list[tuple[int, int]]:
        return [(position, position) for position in range(len(self.script.on))]

    def _note_arrival(self, step: Rows) -> None:
        for number in step.batch.column("number").to_pylist():
            self.arrived_at[number] = len(self.versions) - 1

    def _judge_against_versions(self) -> None:
        """The rule for a relation that grows while rows wait.

        A result names the version it saw, which is not older than its row's arrival and holds the relation's row. All
        rows that the version at arrival held are found; a pair comes once; a left row without a match comes once.
        """
        (stream,) = self._rows_by_side()
        width = len(self.script.sides[0])
        number_at = self.script.sides[0].get_field_index("number")
        numbers = {version.version: position for position, version in enumerate(self.versions)}
        contents = [_content(version) for version in self.versions]
        found: dict[int, list[tuple[Row, int]]] = {}
        for result in rows_of(self.results):
            row, related, seen = result[:width], result[width:-2], result[-1]
            assert row in stream, f"made up: {result}"
            found.setdefault(cast(int, row[number_at]), []).append((related, numbers[cast(int, seen)]))
        for row in stream:
            number = cast(int, row[number_at])
            self._judge_row(row, self.arrived_at[number], found.get(number, []), contents)

    def _judge_row(self, row: Row, arrival: int, answers: list[tuple[Row, int]], contents: list[set[Row]]) -> None:
        on = self._key_positions()
        due = [{pair[len(row) :] for pair in inner_join([row], list(content), on)} for content in contents]
        related = [answer for answer, _ in answers]
        assert len(related) == len(set(related)), f"{row}: an answer came twice: {answers}"
        assert all(seen >= arrival for _, seen in answers), f"{row}: answered from before its arrival: {answers}"
        unmatched: Row = tuple([None] * len(self.versions[0].schema))
        if unmatched in related:
            assert self.script.how == "left", f"{row}: an inner join answered without a match"
            assert answers == [(unmatched, answers[0][1])], f"{row}: with and without a match: {answers}"
            assert not due[answers[0][1]], f"{row}: no match reported, but version {answers[0][1]} has one"
        else:
            assert all(answer in due[seen] for answer, seen in answers), f"{row}: not in that version: {answers}"
            assert due[arrival] <= set(related), f"{row}: lost {due[arrival] - set(related)}"
            assert answers or self.script.how == "inner", f"{row}: a left join gave no answer"


def _relation_of(script: Script, partition: PartitionKind) -> Relation | None:
    if script.relation is None:
        return None
    key = [columns[-1] for columns in script.on]
    batches = [script.relation]
    return create_memory_relation("relation", script.relation.schema, key, batches, partition=partition, theta=2)


def _content(relation: Relation) -> set[Row]:
    """All rows of a version, without what the store adds to them."""
    blocks = [block for segment in range(relation.segments) for block in relation.read_segment(segment)]
    return {tuple(row) for row in rows_of(block.select(relation.schema.names) for block in blocks)}


def _assert_same(found: Counter[Row], expected: Counter[Row]) -> None:
    lost, extra = expected - found, found - expected
    assert not lost, f"{lost.total()} results lost, such as {next(iter(lost))}"
    assert not extra, f"{extra.total()} results too many, such as {next(iter(extra))}"
