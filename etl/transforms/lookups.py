"""Live joins that look up keys: one for each relation, kept from load to load.

Idea: a load asks each relation for the keys of its rows. What makes that cheap (relation segments in memory, filters,
frequent keys) is worth most in the next load, so the hybrid joins that do it live on. When the relation has a
newer version the join is told; only an older version, or a relation that has outgrown its part of the memory, makes
a new one. A join that failed is thrown away: it has no state that a load depends on.

State: the live joins, least recently asked first, each with its part of `memory_bytes`.
Invariants: an answer comes from exactly the version that was asked for, whatever was asked before; all parts together
are at most `memory_bytes`. Look-ups of several threads go one after the other.
Limits: at most `MOST_RELATIONS` joins are kept; a relation that is opened anew is another relation, so whoever looks up
again and again keeps it open and moves it by `at`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl import joins
from etl.budget import BLOCK_BYTES
from etl.errors import BadInput
from etl.joins.hybrid.partitioned import Partitioned
from etl.storage.ports import RelationView

Pairs = Sequence[tuple[str, str]]
"""Columns of the load's rows, each with the relation's column that it stands for."""

MEMORY_BYTES = 256 * 1024 * 1024
MOST_RELATIONS = 16

# Names that no column of a relation has, so that the two sides of the join never share one.
_ROW = "row of the load"
_ASKED = "asked "
_CREATED_BY = "load that brought it"
_SMALLEST_PART = 4 * 1024 * 1024
_FEW_ROWS = 10_000
_ROOM_TO_GROW = 2
_HELD_SHARE = 0.8
_SCANS = ("meshjoin",)


@dataclass(frozen=True)
class LookedUp:
    """For each row: what the relation holds beyond the key, which load brought it, and whether it is known at all."""

    found: pa.Table
    created_by: pa.ChunkedArray
    known: pa.ChunkedArray


class Lookups:
    """Look-ups in any number of relations by one strategy of the catalogue, within one memory budget."""

    def __init__(self, join: str = "auto", memory_bytes: int = MEMORY_BYTES) -> None:
        self.join = join
        self.memory_bytes = memory_bytes
        self._live: dict[int, _LiveJoin] = {}
        self._lock = threading.Lock()

    def look_up(self, rows: pa.Table, relation: RelationView, on: Pairs) -> LookedUp:
        """Ask the relation for each row's key; row i of the answer belongs to row i of the rows."""
        asked = _asked(rows, relation, on)
        with self._lock:
            answers = self._answers(asked, relation)
        if answers.num_rows != rows.num_rows:
            raise BadInput(f"relation {relation.name} holds a key more than once: it cannot be used to look up keys")
        beyond_key = [name for name in relation.schema.names if name not in relation.key]
        wanted = answers.select([*beyond_key, _CREATED_BY]).take(pa.array(_places(answers.column(_ROW))))
        created_by = wanted.column(_CREATED_BY)
        return LookedUp(wanted.select(beyond_key), created_by, created_by.is_valid())

    def segments_in_memory(self, relation: RelationView) -> NDArray[np.bool_]:
        """Which segments of this version rows could be looked up in without the disk, as far as is known."""
        with self._lock:
            live = self._live.get(id(relation.opening))
            if live is not None and isinstance(live.operator, Partitioned) and live.relation.same_segments(relation):
                return live.operator.segments_in_memory.copy()
        nothing_to_read: NDArray[np.bool_] = relation.segment_blocks == 0
        return nothing_to_read

    @property
    def memory_used(self) -> int:
        """What the live joins hold now, by their own count."""
        with self._lock:
            return sum(live.operator.counters.memory_bytes for live in self._live.values())

    def describe(self) -> Mapping[str, str]:
        """For each relation: which join looks it up, and why."""
        with self._lock:
            return {
                live.relation.name: f"{live.operator.plan.name}: {live.operator.plan.reason or 'as asked'}"
                for live in self._live.values()
            }

    def close(self) -> None:
        """Release all memory; a later look-up begins anew."""
        with self._lock:
            for live in self._live.values():
                live.operator.close()
            self._live.clear()

    def __enter__(self) -> Lookups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self, asked: pa.Table, relation: RelationView) -> pa.Table:
        live = self._live_at(relation, asked)
        try:
            return live.answer(asked, relation)
        except BaseException:
            # Nothing of it is needed again: the next look-up makes another one.
            self._let_go(relation)
            raise

    def _live_at(self, relation: RelationView, asked: pa.Table) -> _LiveJoin:
        name = id(relation.opening)
        live = self._live.pop(name, None)
        if live is not None and live.serves(relation):
            self._live[name] = live
            return live
        if live is not None:
            live.operator.close()
        while len(self._live) >= MOST_RELATIONS:
            self._live.pop(next(iter(self._live))).operator.close()
        parts = _divided(self.memory_bytes, [*(held.relation for held in self._live.values()), relation], self.join)
        for held, part in zip(list(self._live), parts[:-1], strict=True):
            # Before the new one is made: the parts together are the promise. It comes back when it is asked again.
            if self._live[held].part > part:
                self._live.pop(held).operator.close()
        self._live[name] = live = _LiveJoin(self.join, relation, asked, parts[-1])
        return live

    def _let_go(self, relation: RelationView) -> None:
        live = self._live.pop(id(relation.opening), None)
        if live is not None:
            live.operator.close()


class _LiveJoin:
    """An operator that answers whole loads: it is never told that its stream has ended."""

    def __init__(self, join: str, relation: RelationView, asked: pa.Table, part: int) -> None:
        self.relation = relation
        self.part = part
        self._rows_at_first = relation.rows
        batches = asked.to_batches()
        # `auto` looks at the stream before it chooses.
        settings: dict[str, pa.RecordBatch] = {"sample": batches[0]} if join == "auto" and batches else {}
        self.operator = joins.build(
            join,
            sides=[asked.schema],
            on=[(_ASKED + name, name) for name in relation.key],
            relation=relation,
            how="left",
            memory_bytes=part,
            block_bytes=min(BLOCK_BYTES, part),
            **settings,
        )

    def serves(self, relation: RelationView) -> bool:
        """Not an older version, and not a relation that has outgrown what was chosen for it."""
        few_enough = _ROOM_TO_GROW * max(_FEW_ROWS, self._rows_at_first)
        return relation.version >= self.relation.version and relation.rows <= few_enough

    def answer(self, asked: pa.Table, relation: RelationView) -> pa.Table:
        results: list[pa.RecordBatch] = []
        if relation.version > self.relation.version:
            self.operator.offer(joins.RelationVersion(relation), results.append)
            self.relation = relation
        for batch in asked.to_batches():
            self.operator.offer(joins.Rows(0, batch), results.append)
        while self.operator.work(joins.WorkBudget(), results.append) is joins.Progress.MORE:
            pass
        names = [*asked.column_names, *relation.schema.names, _CREATED_BY, "version"]
        return pa.Table.from_batches(results, self.operator.plan.result_schema).rename_columns(names)


def looked_up(rows: pa.Table, relation: RelationView, on: Pairs, lookups: Lookups | None) -> LookedUp:
    """By these look-ups, or by some that live for this one question."""
    if lookups is not None:
        return lookups.look_up(rows, relation, on)
    with Lookups() as of_its_own:
        return of_its_own.look_up(rows, relation, on)


def _asked(rows: pa.Table, relation: RelationView, on: Pairs) -> pa.Table:
    """The keys under names of their own, in the relation's order, and the place of each row."""
    stands_for = {related: name for name, related in on}
    if set(stands_for) != set(relation.key) or len(on) != len(relation.key):
        raise BadInput(
            f"relation {relation.name} is keyed by {', '.join(map(repr, relation.key))}, on names "
            f"{', '.join(map(repr, stands_for)) or 'nothing'}: name each key column once"
        )
    columns, fields = [], []
    for related in relation.key:
        name, type_ = stands_for[related], relation.schema.field(related).type
        if name not in rows.column_names:
            raise BadInput(f"the rows have no key column {name!r}; their columns are {rows.column_names}")
        if rows.schema.field(name).type != type_:
            raise BadInput(
                f"key column {name!r} of the rows is {rows.schema.field(name).type}, {related!r} of relation "
                f"{relation.name} is {type_}: cast one of them"
            )
        columns.append(rows.column(name))
        fields.append(pa.field(_ASKED + related, type_))
    columns.append(pa.chunked_array([pa.array(np.arange(rows.num_rows))]))
    return pa.table(columns, schema=pa.schema([*fields, (_ROW, pa.int64())]))


def _places(row: pa.ChunkedArray) -> NDArray[np.int64]:
    """Where the answer of each row lies; every row was answered once."""
    places: NDArray[np.int64] = np.empty(len(row), np.int64)
    places[row.to_numpy()] = np.arange(len(row))
    return places


def _divided(memory_bytes: int, relations: Sequence[RelationView], join: str) -> list[int]:
    """Each relation's part: equal parts, but none more than it has use for while another could use it."""
    wanted = [memory_bytes if join in _SCANS else _useful(relation) for relation in relations]
    parts = [0] * len(relations)
    left = memory_bytes
    smallest_first = sorted(range(len(relations)), key=lambda number: wanted[number])
    for served, number in enumerate(smallest_first):
        parts[number] = max(1, min(wanted[number], left // (len(relations) - served)))
        left -= parts[number]
    return parts


def _useful(relation: RelationView) -> int:
    """Memory that holds all of the relation, with room to grow."""
    held = int(relation.segment_bytes.sum()) + relation.block_table().index_bytes
    return max(_SMALLEST_PART, int(_ROOM_TO_GROW * held / _HELD_SHARE))
