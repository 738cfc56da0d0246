"""The relation segments that one or several partitioned joins hold in memory, and the reads that they share.

It joins the choice (`join_memory`) with the bytes: the block table of the current relation version in which the chosen
segments are copies. Several queries over one relation share one of these: their arrivals add up, a segment that one of
them brings in serves all, and what it takes is counted once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etl.joins.hybrid.join_memory import ArrivalFrequency, JoinMemory
from etl.storage.block_table import BlockTable
from etl.storage.ports import RelationView

Numbers = NDArray[np.intp]


class SegmentMemory:
    """`capacity` is what copies of segments and the addresses of a table with copies may take together."""

    def __init__(self, relation: RelationView, capacity: int, rho: float, decay: float, epoch_rows: int) -> None:
        self.relation = relation
        self.table: BlockTable = relation.block_table()
        self._capacity = capacity
        self._rho = rho
        self._decay = decay
        self._epoch_rows = epoch_rows
        self._start_over()

    @property
    def nbytes(self) -> int:
        return self.table.pinned_bytes

    def arrive(self, segment: NDArray[np.int32]) -> None:
        """Rows have arrived for these segments; a negative number is none."""
        self._frequency.arrive(segment[segment >= 0])

    def read(self, segments: Numbers, rows: NDArray[np.int64]) -> int:
        """A disk probe by so many rows of those of the segments that are not in memory; returns the blocks read."""
        cold = ~self.in_memory[segments]
        self.table.read_ahead(segments[cold], rows[cold])
        return self.relation.count_reads(segments[cold])

    def keep_some(self, segments: Numbers) -> None:
        """Segments that were just read compete for a place."""
        cold = segments[~self.in_memory[segments]]
        if cold.size and self._chosen.consider(cold, self._frequency.counts, self._sizes):
            self._pin()

    def adopt(self, relation: RelationView) -> None:
        """Look at a newer version; where the segments are others, what was known of the old ones is gone."""
        if relation is self.relation:
            return  # another query that shares this memory was first
        same = relation.same_segments(self.relation)
        self.relation = relation
        if same:
            self._chosen.fit(self._room(), self._frequency.counts, relation.segment_bytes)
            self._pin()
        else:
            self._start_over()

    def release(self) -> None:
        self._chosen = JoinMemory(0, self._rho)
        self._pin()

    def _start_over(self) -> None:
        segments = self.relation.segments
        self._frequency = ArrivalFrequency(segments, self._decay, self._epoch_rows or 1_000 * segments)
        self._chosen = JoinMemory(self._room(), self._rho)
        self._pin()

    def _room(self) -> int:
        return max(0, self._capacity - self.relation.block_table().index_bytes)

    def _pin(self) -> None:
        """Copies of what was chosen, those that are there already reused."""
        held = np.fromiter(sorted(self._chosen.held), np.intp, len(self._chosen.held))
        self.table = self.relation.block_table().pinned(held, self.table)
        self._sizes = self.relation.segment_bytes
        # A segment without rows needs no disk to be read.
        self.in_memory: NDArray[np.bool_] = self.relation.segment_blocks == 0
        self.in_memory[held] = True
