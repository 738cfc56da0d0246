"""What the tests of the hybrid joins share: customers in a relation, a stream that asks for them, and what is owed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from etl import joins
from etl.joins import EndOfSide, Operator, Progress, Rows, WorkBudget
from etl.storage.memory_relation import create_memory_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.ports import keys_of
from etl.storage.relation import Relation
from tests.oracle import Row, inner_join, rows_of

STREAM = pa.schema([("nr", pa.int64()), ("text", pa.string())])
CUSTOMERS = pa.schema([pa.field("number", pa.int64(), nullable=False), ("name", pa.string())])
ON = [("nr", "number")]
KINDS: tuple[PartitionKind, ...] = ("hash", "range")

Customer = tuple[int, str]


def customers(rows: Sequence[Customer] = (), theta: int = 65_536, partition: PartitionKind = "hash") -> Relation:
    return create_memory_relation("customers", CUSTOMERS, ("number",), [stored(rows)], theta=theta, partition=partition)


def numbered(count: int, theta: int, partition: PartitionKind = "hash") -> Relation:
    """Customers 0 to count - 1, one row each."""
    return customers(named(range(count)), theta, partition)


def named(numbers: Iterable[int]) -> list[Customer]:
    return [(number, f"name {number}") for number in numbers]


def stored(rows: Sequence[Customer]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"number": number, "name": name} for number, name in rows], CUSTOMERS)


def asking(*numbers: int | None) -> Rows:
    """A row a number, its text saying where it stands."""
    texts = [f"row {position}" for position in range(len(numbers))]
    return Rows(0, pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=STREAM))


def built(relation: Relation, join: str = "", /, **arguments: object) -> Operator:
    """The partitioned join that fits the relation, unless another is named."""
    return joins.build(
        join or f"{relation.partition}-partitioned",
        sides=[STREAM],
        on=ON,
        relation=relation,
        **arguments,  # type: ignore[arg-type]
    )


class Sink(list[pa.RecordBatch]):
    """Where results go; `take` empties it."""

    def take(self) -> list[Row]:
        rows = rows_of(self)
        self.clear()
        return rows

    def take_numbers(self) -> Counter[int | None]:
        """How often each number was answered."""
        return Counter(cast(int | None, row[0]) for row in self.take())


def answered(operator: Operator, *events: joins.Event) -> Counter[Row]:
    """All results after these events and the end of the stream."""
    results = Sink()
    for event in (*events, EndOfSide(0)):
        operator.offer(event, results.append)
    assert operator.work(WorkBudget(), results.append) is Progress.DONE
    return Counter(results.take())


def owed(events: Sequence[Rows], known: Sequence[Customer], version: int, how: str = "inner") -> Counter[Row]:
    """By definition: all answers from one version whose rows no load has brought."""
    rows = rows_of(event.batch for event in events)
    found = inner_join(rows, [(*customer, "", version) for customer in known], on=[(0, 0)])
    if how == "left":
        matched = {row[:2] for row in found}
        found.update((*row, None, None, None, version) for row in rows if row not in matched)
    return found


def by_segment(relation: Relation, numbers: Iterable[int]) -> Mapping[int, list[int]]:
    """Which of these numbers each relation segment would hold."""
    asked = list(numbers)
    found: dict[int, list[int]] = {}
    for number, segment in zip(asked, relation.segment_of(keys_of([pa.array(asked, pa.int64())])), strict=True):
        found.setdefault(int(segment), []).append(number)
    return found


def blocks_read(relation: Relation) -> int:
    return relation.counters.blocks_read


def no_results(batch: pa.RecordBatch) -> None:
    raise AssertionError(f"{batch.num_rows} results where none is due")
