"""What the benchmark of the hybrid joins asks of a subject, and our own joins as subjects.

The question: which surrogate key has each row of a batch, and which rows have none? Ours answers with whole result
batches (all columns of the stream and of the relation, the load and the version); a peer has to give the row's number
and its surrogate key only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from benchmarks.key_streams import KEY, STREAM_SCHEMA
from etl import joins
from etl.storage.lookup_store import open_relation

Answer = Sequence[tuple[pa.ChunkedArray, pa.ChunkedArray]]
"""Pieces of stream row numbers and surrogate keys, null for a miss; every row of the stream is in it once."""


class Lookup(Protocol):
    """One subject with its relation opened. A stream is started, asked about batch by batch, and finished."""

    def start(self) -> None:
        """A stream begins: forget what was learnt from the one before, keep what was opened."""

    def answer(self, batch: pa.RecordBatch) -> Answer: ...

    def finish(self) -> Answer:
        """The answers that are still owed; empty for a subject that answers at once."""

    def counters(self) -> dict[str, int]:
        """What the subject counts itself; "memory_counted" is the most that any stream took."""


@dataclass
class HybridJoin:
    """An operator of the catalogue, in the way its driver uses it: offer a batch, then work until nothing is left."""

    operator_name: str
    folder: Path
    memory_bytes: int
    works_at_once: bool = True
    """False leaves rows in the queue until others push them on: MESHJOIN's way to spread a read over many rows."""

    def __post_init__(self) -> None:
        self._relation = open_relation(self.folder)
        self._results: list[pa.RecordBatch] = []
        self._operator = self._new_operator()
        self._most_memory = 0

    def start(self) -> None:
        self._most_memory = self.counters()["memory_counted"]
        # Before the next one is made: two of them would take twice the memory.
        self._operator.close()
        self._operator = self._new_operator()

    def answer(self, batch: pa.RecordBatch) -> Answer:
        self._operator.offer(joins.Rows(0, batch), self._results.append)
        if self.works_at_once:
            self._operator.work(joins.WorkBudget(), self._results.append)
        return self._taken()

    def finish(self) -> Answer:
        self._operator.offer(joins.EndOfSide(0), self._results.append)
        self._operator.work(joins.WorkBudget(), self._results.append)
        return self._taken()

    def counters(self) -> dict[str, int]:
        counters = self._operator.counters
        return {**counters.extra, "memory_counted": max(self._most_memory, counters.peak_memory_bytes)}

    def _new_operator(self) -> joins.Operator:
        return joins.build(
            self.operator_name,
            sides=[STREAM_SCHEMA],
            relation=self._relation,
            on=[(column, column) for column in KEY],
            how="left",
            memory_bytes=self.memory_bytes,
        )

    def _taken(self) -> Answer:
        answer = [(batch.column("row"), batch.column("surrogate")) for batch in self._results]
        self._results.clear()
        return answer
