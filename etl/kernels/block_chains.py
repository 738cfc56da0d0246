"""Block chains: entries (hash, event time, row number) by bucket, each bucket a chain of blocks that is scanned whole.

Idea: a bucket's entries lie in blocks of fixed capacity out of one pool; each bucket has its own chain. Looking for a
row's partners is a block nested loop over one chain, so what it costs is the size of the bucket, and nothing needs
to be kept in order but arrival: old entries leave by whole blocks at the head of a chain.
State: the pool (entries, successor and fill of each block, the free ones chained too), head, tail and size by bucket.
Invariants: row numbers ascend along a chain; only the last block of a chain is not full; a chain has no empty block.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import types

from etl.kernels.chunks import DEFAULT_LIMIT, Pairs, pair_chunks
from etl.kernels.compiling import Int32s, Int64s, UInt64s, helper, input_of, kernel, output_of, signed, tuple_of
from etl.kernels.scatter import scatter

__all__ = ["BlockChains", "Entries", "ENTRY_BYTES"]

ENTRY_BYTES = 24
"""What an entry takes; the block that it lies in takes 8 more."""


class Entries(NamedTuple):
    """Some entries, one array a field."""

    hashes: UInt64s
    times: Int64s
    numbers: Int64s


class BlockChains:
    """The entries of one side. `capacity` is the number of entries in a block."""

    def __init__(self, capacity: int, buckets: int = 1) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}: a block holds at least one entry")
        self._capacity = capacity
        self._pool: _Pool = (*(np.empty(0, field) for field in _POOL_FIELDS),)  # type: ignore[assignment]
        self._first_free = _END
        self._free_blocks = 0
        self._heads: Int32s = np.full(buckets, _END, np.int32)
        self._tails: Int32s = np.full(buckets, _END, np.int32)
        self._sizes: Int64s = np.zeros(buckets, np.int64)

    @property
    def sizes(self) -> Int64s:
        """Entries by bucket: a look that is not to be written to."""
        return self._sizes

    @property
    def nbytes(self) -> int:
        """All memory held, used or not."""
        chains = self._heads.nbytes + self._tails.nbytes + self._sizes.nbytes
        return chains + sum(field.nbytes for field in self._pool)

    def bytes_after(self, blocks: int) -> int:
        """The most memory held while room is made for this many more blocks."""
        added = self._blocks_after(blocks) - self._blocks
        if not added:
            return self.nbytes
        # Arrays are replaced one at a time: the old one of the largest stands beside it for a moment.
        return self.nbytes + added * (self._capacity * ENTRY_BYTES + _BLOCK_BYTES) + self._pool[0].nbytes

    def most_blocks_for(self, rows: int) -> int:
        """No more blocks than this are taken by so many rows, whichever buckets they go to."""
        return min(rows, self._sizes.size + rows // self._capacity)

    def blocks_for(self, buckets: Int32s) -> int:
        """The blocks that rows in these buckets take."""
        counts = np.bincount(buckets, minlength=self._sizes.size)
        room = np.zeros(self._sizes.size, np.int64)
        begun = self._tails != _END
        room[begun] = self._capacity - self._pool[_FILLED][self._tails[begun]]
        over = np.maximum(counts - room, 0)
        return int((-(-over // self._capacity)).sum())

    def make_buckets(self, buckets: int) -> None:
        """Room for bucket numbers below `buckets`."""
        more = buckets - self._sizes.size
        if more > 0:
            ends = np.full(more, _END, np.int32)
            self._heads = np.concatenate([self._heads, ends])
            self._tails = np.concatenate([self._tails, ends])
            self._sizes = np.concatenate([self._sizes, np.zeros(more, np.int64)])

    def append(self, buckets: Int32s, entries: Entries) -> None:
        """Entries at the ends of their buckets' chains. Numbers ascend, and are above those in the chains."""
        self._make_blocks(self.blocks_for(buckets))
        self._first_free, taken = _append(
            self._pool, self._capacity, self._chains(), self._first_free, buckets, *entries
        )
        self._free_blocks -= taken

    def drain(self, bucket: int) -> Entries:
        """Take all entries out of a bucket, in order."""
        size = int(self._sizes[bucket])
        drained = Entries(np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64))
        self._first_free, freed = _drain(self._pool, self._capacity, self._chains(), self._first_free, bucket, *drained)
        self._free_blocks += freed
        return drained

    def expire(self, first_number: int) -> None:
        """Blocks whose rows are all below this number leave; others may keep some, which a scan passes over."""
        self._first_free, freed = _expire(self._pool, self._capacity, self._chains(), self._first_free, first_number)
        self._free_blocks += freed

    def scan(
        self,
        buckets: Int32s,
        hashes: UInt64s,
        reach: tuple[Int64s, Int64s],
        first_number: int,
        limit: int = DEFAULT_LIMIT,
    ) -> Iterator[Pairs]:
        """Chunks of pairs (arriving row, stored number): equal hash, event time within reach, from `first_number` on.

        The chains must not change before the last chunk is taken.
        """
        # Rows of one bucket one after the other: its blocks stay in the cache.
        order, _ = scatter(buckets, self._sizes.size)
        asked = (order, buckets, hashes, *reach)

        def fill(cursor: tuple[int, ...], rows: Int64s, numbers: Int64s) -> tuple[int, tuple[int, ...]]:
            return _scan(self._pool, self._capacity, self._heads, *asked, first_number, cursor, rows, numbers)

        return pair_chunks(fill, (0, _FRESH, 0), hashes.size, limit)

    @property
    def _blocks(self) -> int:
        return self._pool[_NEXT].size

    def _chains(self) -> tuple[Int32s, Int32s, Int64s]:
        return self._heads, self._tails, self._sizes

    def _blocks_after(self, blocks: int) -> int:
        missing = blocks - self._free_blocks
        return self._blocks if missing <= 0 else max(2 * self._blocks, self._blocks + missing)

    def _make_blocks(self, blocks: int) -> None:
        before, after = self._blocks, self._blocks_after(blocks)
        if after == before:
            return
        pool: list[npt.NDArray[Any]] = list(self._pool)
        del self._pool  # so that each old array goes as soon as its replacement is filled
        for field, length in enumerate([after * self._capacity] * 3 + [after] * 2):
            pool[field] = _resized(pool[field], length)
        pool[_NEXT][before:] = np.arange(before + 1, after + 1)
        pool[_NEXT][-1] = self._first_free
        self._pool = tuple(pool)  # type: ignore[assignment]
        self._first_free = before
        self._free_blocks += after - before


_Pool = tuple[UInt64s, Int64s, Int64s, Int32s, Int32s]
_POOL_FIELDS = (np.uint64, np.int64, np.int64, np.int32, np.int32)
_NEXT, _FILLED = 3, 4
_BLOCK_BYTES = 8

_END = -1
_FRESH = -2

_Element = TypeVar("_Element", bound=np.generic)


def _resized(array: npt.NDArray[_Element], length: int) -> npt.NDArray[_Element]:
    resized = np.empty(length, array.dtype)
    resized[: array.size] = array
    return resized


_POOL = tuple_of(
    output_of(types.uint64),
    output_of(types.int64),
    output_of(types.int64),
    output_of(types.int32),
    output_of(types.int32),
)
_CHAINS = tuple_of(output_of(types.int32), output_of(types.int32), output_of(types.int64))
_FREE = tuple_of(types.int64, types.int64)  # the first free block now, and how many were taken or freed
_CURSOR = tuple_of(types.int64, types.int64, types.int64)


@kernel(
    _FREE(
        _POOL,
        types.int64,
        _CHAINS,
        types.int64,
        input_of(types.int32),
        input_of(types.uint64),
        input_of(types.int64),
        input_of(types.int64),
    )
)
def _append(
    pool: _Pool,
    capacity: int,
    chains: tuple[Int32s, Int32s, Int64s],
    free: int,
    buckets: Int32s,
    hashes: UInt64s,
    times: Int64s,
    numbers: Int64s,
) -> tuple[int, int]:
    stored, stored_times, stored_numbers, successor, filled = pool
    heads, tails, sizes = chains
    taken = 0
    for row in range(buckets.size):
        bucket = buckets[row]
        block = signed(tails[bucket])
        if block == _END or filled[block] == capacity:
            fresh = free
            free = signed(successor[fresh])
            successor[fresh] = _END
            filled[fresh] = 0
            if block == _END:
                heads[bucket] = fresh
            else:
                successor[block] = fresh
            tails[bucket] = fresh
            block = fresh
            taken += 1
        cell = block * capacity + filled[block]
        stored[cell] = hashes[row]
        stored_times[cell] = times[row]
        stored_numbers[cell] = numbers[row]
        filled[block] += 1
        sizes[bucket] += 1
    return free, taken


@helper
def _free_head(pool: _Pool, chains: tuple[Int32s, Int32s, Int64s], free: int, bucket: int) -> int:
    """Give the first block of a chain back; the first free block is now this one."""
    heads, tails, sizes = chains
    block = signed(heads[bucket])
    heads[bucket] = pool[3][block]
    if heads[bucket] == _END:
        tails[bucket] = _END
    sizes[bucket] -= pool[4][block]
    pool[3][block] = free
    return block


@kernel(
    _FREE(
        _POOL,
        types.int64,
        _CHAINS,
        types.int64,
        types.int64,
        output_of(types.uint64),
        output_of(types.int64),
        output_of(types.int64),
    )
)
def _drain(
    pool: _Pool,
    capacity: int,
    chains: tuple[Int32s, Int32s, Int64s],
    free: int,
    bucket: int,
    hashes: UInt64s,
    times: Int64s,
    numbers: Int64s,
) -> tuple[int, int]:
    heads = chains[0]
    freed = 0
    place = 0
    while heads[bucket] != _END:
        block = signed(heads[bucket])
        for cell in range(block * capacity, block * capacity + pool[4][block]):
            hashes[place] = pool[0][cell]
            times[place] = pool[1][cell]
            numbers[place] = pool[2][cell]
            place += 1
        free = _free_head(pool, chains, free, bucket)
        freed += 1
    return free, freed


@kernel(_FREE(_POOL, types.int64, _CHAINS, types.int64, types.int64))
def _expire(
    pool: _Pool, capacity: int, chains: tuple[Int32s, Int32s, Int64s], free: int, first_number: int
) -> tuple[int, int]:
    heads = chains[0]
    freed = 0
    for bucket in range(heads.size):
        while heads[bucket] != _END:
            block = signed(heads[bucket])
            if pool[2][block * capacity + pool[4][block] - 1] >= first_number:
                break
            free = _free_head(pool, chains, free, bucket)
            freed += 1
    return free, freed


@kernel(
    tuple_of(types.int64, _CURSOR)(
        _POOL,
        types.int64,
        input_of(types.int32),
        input_of(types.int64),
        input_of(types.int32),
        input_of(types.uint64),
        input_of(types.int64),
        input_of(types.int64),
        types.int64,
        _CURSOR,
        output_of(types.int64),
        output_of(types.int64),
    )
)
def _scan(
    pool: _Pool,
    capacity: int,
    heads: Int32s,
    order: Int64s,
    buckets: Int32s,
    hashes: UInt64s,
    lowest: Int64s,
    highest: Int64s,
    first_number: int,
    cursor: tuple[int, ...],
    rows: Int64s,
    numbers: Int64s,
) -> tuple[int, tuple[int, ...]]:
    """Write pairs until the output is full or the rows end; the cursor is a place in `order`, a block and a cell."""
    stored, stored_times, stored_numbers, successor, filled = pool
    position, block, start = cursor
    count = 0
    while position < order.size:
        row = order[position]
        wanted = hashes[row]
        if block == _FRESH:
            block = signed(heads[buckets[row]])
            start = 0
        while block != _END:
            base = block * capacity
            for place in range(start, filled[block]):
                cell = base + place
                if stored[cell] != wanted:
                    continue
                if not lowest[row] <= stored_times[cell] <= highest[row] or stored_numbers[cell] < first_number:
                    continue
                if count == rows.size:
                    return count, (position, block, place)
                rows[count] = row
                numbers[count] = stored_numbers[cell]
                count += 1
            block = signed(successor[block])
            start = 0
        block = _FRESH
        position += 1
    return count, (position, _FRESH, 0)
