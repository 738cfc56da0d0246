"""Buckets: both sides' entries under one extendible directory, split and merged as they grow and shrink.

State: the directory; per side, a chain of entries for each bucket; buckets that no split makes smaller, with the size
at which that was found.
Invariants: an entry lies in the bucket that the directory names for its hash. Tuning is a matter of speed: it stops
where it would hold more memory than it is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etl.joins.parallel.extendible_directory import ExtendibleDirectory
from etl.kernels.block_chains import ENTRY_BYTES, BlockChains, Entries
from etl.kernels.chunks import Pairs
from etl.kernels.compiling import Int32s, Int64s, UInt64s

MOST_ENTRIES = 64
"""Entries in a block of a chain: 1.5 KiB; smaller where the operator's blocks are smaller."""


class Buckets:
    def __init__(self, directory: ExtendibleDirectory, block_bytes: int) -> None:
        self.directory = directory
        self._capacity = min(MOST_ENTRIES, max(2, block_bytes // ENTRY_BYTES))
        self._chains = [BlockChains(self._capacity, directory.numbers) for _ in (0, 1)]
        self._cannot_split: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        return self.directory.nbytes + sum(chains.nbytes for chains in self._chains)

    def bytes_after(self, side: int, buckets: Int32s) -> int:
        """The most memory held while rows in these buckets are inserted."""
        chains = self._chains[side]
        return self.nbytes - chains.nbytes + chains.bytes_after(chains.blocks_for(buckets))

    def most_bytes_after(self, side: int, rows: int) -> int:
        """The same for so many rows in whichever buckets."""
        chains = self._chains[side]
        return self.nbytes - chains.nbytes + chains.bytes_after(chains.most_blocks_for(rows))

    def rows_to_scan(self, side: int, buckets: Int32s) -> int:
        """How many rows of this side rows in these buckets are compared with."""
        return int(self._chains[side].sizes[buckets].sum())

    def scan(
        self,
        side: int,
        buckets: Int32s,
        hashes: UInt64s,
        reach: tuple[Int64s, Int64s],
        first_number: int,
        limit: int,
    ) -> Iterator[Pairs]:
        """Pairs (arriving row, number of a row of this side) with equal hashes and event times within reach."""
        return self._chains[side].scan(buckets, hashes, reach, first_number, limit)

    def insert(self, side: int, buckets: Int32s, entries: Entries) -> None:
        self._chains[side].append(buckets, entries)

    def expire(self, side: int, first_number: int) -> None:
        """Entries of rows below this number are let go, block by block."""
        self._chains[side].expire(first_number)
        self._cannot_split.clear()

    def clear(self, side: int) -> None:
        self._chains[side] = BlockChains(self._capacity, self.directory.numbers)

    def split_large(self, most_bytes: int) -> int:
        """Split what is above 2 * theta, and the halves again; the number of splits."""
        splits = 0
        waiting = [bucket for bucket in self.directory.overfull(self._sizes()) if self._may_split(bucket)]
        while waiting:
            bucket = waiting.pop()
            if self._bytes_while_splitting(bucket) > most_bytes:
                break
            fresh = self._split(bucket)
            if fresh is not None:
                splits += 1
                large = self.directory.overfull(self._sizes())
                waiting.extend(half for half in (bucket, fresh) if half in large)
        return splits

    def merge_small(self, most_bytes: int) -> int:
        """Merge what is below theta with its buddy, as long as there is one that it fits; the number of merges."""
        merges = 0
        while (pair := self.directory.next_merge(self._sizes())) is not None:
            if self.nbytes + self.directory.nbytes + _copies(self._sizes()[list(pair)].sum()) > most_bytes:
                break
            self._merge(*pair)
            merges += 1
        return merges

    def _sizes(self) -> Int64s:
        return self._chains[0].sizes + self._chains[1].sizes

    def _may_split(self, bucket: int) -> bool:
        """Looking costs a copy of the bucket: one that could not be split is looked at again when it has doubled."""
        return bool(self._sizes()[bucket] >= 2 * self._cannot_split.get(bucket, 0))

    def _bytes_while_splitting(self, bucket: int) -> int:
        """Each side's halves take one block more than the whole at most; numbers of buckets may double."""
        chains = sum(chains.bytes_after(1) + 2 * chains.sizes.nbytes for chains in self._chains)
        return self.directory.bytes_after_split(bucket) + chains + _copies(self._sizes()[bucket])

    def _split(self, bucket: int) -> int | None:
        """The new bucket, or None if all hashes are alike as far as the directory can tell."""
        parts = [chains.drain(bucket) for chains in self._chains]
        hashes = np.concatenate([part.hashes for part in parts])
        deepest = np.uint64((1 << self.directory.most_depth) - 1)
        fresh: int | None = None
        if np.bitwise_or.reduce(hashes ^ hashes[0]) & deepest:
            bit = np.uint64(self.directory.split_bit(bucket))
            fresh = self.directory.split(bucket)
        else:
            self._cannot_split[bucket] = hashes.size
        for chains, part in zip(self._chains, parts, strict=True):
            chains.make_buckets(self.directory.numbers)
            chosen = np.full(part.hashes.size, bucket, np.int32)
            if fresh is not None:
                chosen[(part.hashes & bit) != 0] = fresh
            chains.append(chosen, part)
        return fresh

    def _merge(self, bucket: int, buddy: int) -> None:
        self.directory.merge(bucket, buddy)
        for chains in self._chains:
            halves = chains.drain(bucket), chains.drain(buddy)
            hashes, times, numbers = (np.concatenate(fields) for fields in zip(*halves, strict=True))
            order = np.argsort(numbers)
            in_order = Entries(hashes[order].view(np.uint64), times[order], numbers[order])
            chains.append(np.full(order.size, bucket, np.int32), in_order)


def _copies(rows: int) -> int:
    """Bytes of the copies that a split or merge of so many rows makes on its way."""
    return 2 * int(rows) * (ENTRY_BYTES + 8)
