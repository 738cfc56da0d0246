"""The front of every hybrid join: rows that can be answered without looking at a relation segment.

Three questions, the cheapest first. Is there a null in the key? It matches nothing. Is it one of the frequent keys? The
cache has its whole answer. Does no filter hold it? Then it is new. What is left goes on to the strategy behind.

The cache and the filters only save work: they never change an answer, and no snapshot holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.joins.contract import JoinPlan
from etl.joins.hybrid.answers import Answers
from etl.joins.hybrid.frequent_key_cache import SMALLEST, FrequentKeyCache, Lesson
from etl.storage.ports import CREATED_BY_COLUMN, Keys, RelationView
from etl.storage.relation_filters import FilterSet

Push = Callable[[pa.RecordBatch], None]
Flags = NDArray[np.bool_]
Count = Callable[[str, int], None]


class Front:
    """Answers what it can from the newest relation version, and learns from what the strategy behind finds."""

    def __init__(
        self, plan: JoinPlan, relation: RelationView, filter_bytes: int, cache_bytes: int, frequent_after: int
    ) -> None:
        self.answers = Answers(plan, relation.schema)
        self._result_rows = plan.result_rows
        self._relation = relation
        self._filter_bytes = filter_bytes
        self._filters = _filters(relation, filter_bytes, None)
        self._cache = _cache(relation, cache_bytes, frequent_after)

    @property
    def filter_bytes(self) -> int:
        return 0 if self._filters is None else self._filters.nbytes

    @property
    def nbytes(self) -> int:
        return self.filter_bytes + (0 if self._cache is None else self._cache.nbytes)

    def answer(self, rows: pa.RecordBatch, keys: Keys, segment: NDArray[np.int32], push: Push, count: Count) -> Flags:
        """Push the answers that are to be had here; says which rows still need one."""
        pending = np.ones(rows.num_rows, np.bool_)
        if keys.valid is not None:
            self.push_unmatched(rows, ~keys.valid, push)
            pending &= keys.valid
        if self._cache is not None:
            self._cache.arrive(keys)
            for positions, related in self._cache.answers(keys, self._result_rows):
                pending[positions] = False
                push(self.answers.joined(rows, positions, related, self._relation.version))
                count("cache_hits", len(positions))
        if self._filters is not None:
            absent = pending & ~self._filters.may_hold(segment, keys)
            if absent.any():
                pending &= ~absent
                self.push_unmatched(rows, absent, push)
                count("filtered", int(absent.sum()))
        return pending

    def push_unmatched(self, rows: pa.RecordBatch, which: Flags, push: Push) -> None:
        for batch in self.answers.unmatched(rows, which, self._relation.version):
            push(batch)

    def lesson(self, keys: Keys, asked: Flags) -> Lesson | None:
        """What a probe of the asked keys may teach, if its answers are from the newest version."""
        return None if self._cache is None else Lesson(self._cache, keys, asked)

    def adopt(self, relation: RelationView) -> None:
        """Keys that have got rows since the version before are forgotten; filters are carried over."""
        if self._cache is not None:
            changed = relation.hashes_added_since(self._relation.version)
            if changed is None:
                self._cache.clear()
            else:
                self._cache.forget(changed)
        self._filters = _filters(relation, self._filter_bytes, self._filters)
        self._relation = relation

    def release(self) -> None:
        self._filters = None
        self._cache = None


def _filters(relation: RelationView, limit: int, previous: FilterSet | None) -> FilterSet | None:
    """Filters within their share of the memory; None where it is not enough for one."""
    filters = relation.filters(limit, previous)
    return filters if filters.segments else None


def _cache(relation: RelationView, capacity: int, frequent_after: int) -> FrequentKeyCache | None:
    if capacity < SMALLEST:
        return None
    schema = pa.schema([*relation.schema, (CREATED_BY_COLUMN, pa.string())])
    key: Sequence[int] = [relation.schema.get_field_index(name) for name in relation.key]
    return FrequentKeyCache(schema, tuple(key), capacity, frequent_after)
