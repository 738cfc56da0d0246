"""The frequent-key cache: the relation's rows for the keys that the stream asks for most, in front of everything else.

A small table of counters, indexed by the key's hash, tells frequent keys from rare ones. Keys share a counter, so the
mean of all counters and its spread are what chance gives a rare key: only what a counter has beyond them counts. A rare
key that is taken for a frequent one only wastes a place. A key enters with all its relation rows, right after a probe
has found them, so a hit is a whole answer. When the cache is full it keeps what is still asked for; counters fade with
every epoch.

The idea is that of CACHEJOIN, put in front of any strategy: with skewed streams a few thousand keys answer most rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.kernels.compare import equal_rows
from etl.kernels.hash_table import HashTable
from etl.kernels.hashing import proves_equality
from etl.keys import KeyColumns
from etl.rows import Index, RowBuffer
from etl.storage.ports import Keys

SMALLEST = 4096
"""Fewer bytes than this are not worth a cache."""
_MOST_COUNTERS = 1 << 16
_EPOCH_ROWS = 200_000


class FrequentKeyCache:
    """`schema` is that of the relation's rows with their load; `key` says where the key columns are in it."""

    def __init__(self, schema: pa.Schema, key: KeyColumns, capacity: int, frequent_after: int) -> None:
        self.schema = schema
        self._key = key
        self._capacity = capacity
        self._frequent_after = frequent_after
        # A power of two, and at most a quarter of the room.
        self._counters = np.zeros(min(_MOST_COUNTERS, 1 << (capacity // 16).bit_length() - 1), np.int32)
        self._counted_rows = 0
        self._rows_in_epoch = 0
        self._rows = RowBuffer(schema)
        self._table = HashTable()

    @property
    def nbytes(self) -> int:
        return self._counters.nbytes + self._rows.nbytes + self._table.nbytes

    def arrive(self, keys: Keys) -> None:
        """Count what is asked for."""
        self._counters += np.bincount(self._counter_of(keys.hashes), minlength=len(self._counters)).astype(np.int32)
        self._counted_rows += len(keys.hashes)
        self._rows_in_epoch += len(keys.hashes)
        if self._rows_in_epoch >= _EPOCH_ROWS:
            self._rows_in_epoch = 0
            self._counters >>= 1
            self._counted_rows = int(self._counters.sum())

    def answers(self, keys: Keys, limit: int) -> Iterator[tuple[Index, list[pa.Array]]]:
        """Positions among the keys, and the relation's rows for them; a position that comes is answered whole."""
        if not len(self._table):
            return
        stored_views = self._rows.views(self._key)
        exact = proves_equality(keys.views, stored_views)
        for positions, rows in self._table.probe(keys.hashes, keys.valid, limit):
            if not exact:
                equal = equal_rows(keys.views, positions, stored_views, rows)
                positions, rows = positions[equal], rows[equal]
            if positions.size:
                yield positions, self._rows.take(rows)

    def frequent(self, keys: Keys, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """One of the asked rows for each frequent key that is not here yet: the first that asks for it."""
        rows = np.flatnonzero(asked if keys.valid is None else asked & keys.valid)
        chance = self._counted_rows / len(self._counters)
        enough = self._frequent_after + int(chance + 2 * chance**0.5)
        candidates = rows[self._counters[self._counter_of(keys.hashes[rows])] >= enough]
        if not candidates.size:
            return np.zeros(len(keys.hashes), np.bool_)
        _, first = np.unique(keys.hashes[candidates], return_index=True)
        picked = np.zeros(len(keys.hashes), np.bool_)
        picked[candidates[first]] = True
        for positions, _ in self._table.probe(keys.hashes[candidates]):
            picked[candidates[positions]] = False
        return picked

    def learn(self, rows: pa.RecordBatch, hashes: NDArray[np.uint64]) -> None:
        """All relation rows of some frequent keys, with the hash of each one's key."""
        empty = RowBuffer(self.schema), HashTable()
        while self._bytes_with(rows, hashes, *empty) > self._capacity:
            # Too much even for an empty cache: the more frequent half of it. A key's rows share their counter.
            kept = self._above_median(hashes)
            rows, hashes = rows.filter(pa.array(kept)), hashes[kept]
            if not len(hashes):
                return
        if self._bytes_with(rows, hashes, self._rows, self._table) > self._capacity:
            self._keep(self._above_median(self._table.hashes))
        if self._bytes_with(rows, hashes, self._rows, self._table) <= self._capacity:
            self._rows.append(rows)
            self._table.insert(hashes)

    def forget(self, hashes: NDArray[np.uint64]) -> None:
        """Keys with these hashes have got other rows; they may come back after the next probe."""
        stale = np.zeros(len(self._table), np.bool_)
        for _, rows in self._table.probe(hashes):
            stale[rows] = True
        if stale.any():
            self._keep(~stale)

    def clear(self) -> None:
        self._rows = RowBuffer(self.schema)
        self._table = HashTable()

    def _bytes_with(self, rows: pa.RecordBatch, hashes: NDArray[np.uint64], held: RowBuffer, table: HashTable) -> int:
        return held.bytes_after(rows) + table.bytes_after(len(hashes)) + self._counters.nbytes

    def _above_median(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """The keys that are asked for more than most; half of them at most."""
        counts = self._counters[self._counter_of(hashes)]
        above: NDArray[np.bool_] = counts > np.median(counts) if len(counts) else np.zeros(0, np.bool_)
        return above

    def _keep(self, which: NDArray[np.bool_]) -> None:
        index = np.flatnonzero(which)
        kept = pa.RecordBatch.from_arrays(self._rows.take(index), schema=self.schema)
        hashes = self._table.hashes[index]
        self.clear()
        self._rows.append(kept)
        self._table.insert(hashes)

    def _counter_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The middle bits: the high ones are alike inside a segment, the low ones pick slots of tables."""
        return ((hashes >> np.uint64(24)) & np.uint64(len(self._counters) - 1)).astype(np.intp)


class Lesson:
    """What one probe teaches: the relation's rows of frequent keys, all rows of a key or none.

    A key's rows may come in several pieces of the probe's answer; a cache with only some of them would answer wrong.
    """

    def __init__(self, cache: FrequentKeyCache, keys: Keys, asked: NDArray[np.bool_]) -> None:
        self._cache = cache
        self._keys = keys
        self._wanted = cache.frequent(keys, asked)
        self._any = bool(self._wanted.any())
        self._rows: list[pa.RecordBatch] = []
        self._hashes: list[NDArray[np.uint64]] = []

    def hear(self, positions: Index, related: list[pa.Array]) -> None:
        if self._any and (chosen := self._wanted[positions]).any():
            picked = pa.RecordBatch.from_arrays(related, schema=self._cache.schema).filter(pa.array(chosen))
            self._rows.append(picked)
            self._hashes.append(self._keys.hashes[positions[chosen]])

    def learn(self) -> None:
        if self._rows:
            self._cache.learn(pa.concat_batches(self._rows), np.concatenate(self._hashes))
