"""The extendible directory: buckets of theta to 2 * theta rows inside a partition group (thesis 7.4.4).

Idea: a directory of 2**depth entries, found by the low bits of the key hash, names each key's bucket. A bucket has a
local depth: all its keys share that many low bits. A bucket above 2 * theta is split by its next bit, doubling the
directory if need be; one below theta is merged with its buddy if the two make less than 2 * theta together.
State: the entries, and each bucket's local depth and low bits. Rows belong to whoever uses the directory; it is told
their numbers and tells which buckets to split or merge.
Invariants: a bucket of local depth l has the 2**(depth - l) entries that share its l low bits; bucket numbers are
small and used again; the directory is no deeper than its deepest bucket.
Departures: the thesis computes a buddy for directories where a bucket's entries are neighbours. With low bits the buddy
differs in bit (local depth - 1). Equal hashes cannot be told apart by any number of bits: the depth has a bound, and
a bucket at the bound stays as large as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from etl.errors import BadInput
from etl.kernels.compiling import Int32s, Int64s, UInt64s
from etl.settings import Json

MOST_DEPTH = 18
"""Default bound of the depth: a directory of 1 MiB."""

_NOT_USED = -1


class ExtendibleDirectory:
    """Which bucket a hash is in, and which buckets are too large or too small."""

    def __init__(self, theta: float, most_depth: int = MOST_DEPTH) -> None:
        if theta <= 0:
            raise BadInput(f"theta is {theta}: a bucket holds theta to 2 * theta rows, so it is above 0")
        if not 0 <= most_depth <= 30:
            raise BadInput(f"most_depth is {most_depth}: it is from 0 to 30, a directory has 2**depth entries")
        self.theta = theta
        self.most_depth = most_depth
        self._entries: Int32s = np.zeros(1, np.int32)
        self._local_depths: Int32s = np.zeros(1, np.int32)
        self._low_bits: Int32s = np.zeros(1, np.int32)

    @property
    def depth(self) -> int:
        return self._entries.size.bit_length() - 1

    @property
    def numbers(self) -> int:
        """One above the highest bucket number there is room for: the length of an array by bucket."""
        return self._local_depths.size

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._local_depths != _NOT_USED).tolist())

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes + self._local_depths.nbytes + self._low_bits.nbytes

    def bytes_after_split(self, bucket: int) -> int:
        """The most memory held while this bucket is split."""
        entries = self._entries.nbytes * (3 if self.local_depth(bucket) == self.depth else 1)
        return entries + 3 * (self._local_depths.nbytes + self._low_bits.nbytes)

    def bucket_of(self, hashes: UInt64s) -> Int32s:
        """The bucket of each hash."""
        return self._entries[(hashes & np.uint64(self._entries.size - 1)).astype(np.int64)]

    def local_depth(self, bucket: int) -> int:
        return int(self._local_depths[bucket])

    def split_bit(self, bucket: int) -> int:
        """The value of the bit that tells the two halves apart: keys that have it go to the new bucket."""
        return 1 << self.local_depth(bucket)

    def overfull(self, sizes: Int64s) -> tuple[int, ...]:
        """Buckets to split, by their sizes (one for each number)."""
        large = (sizes > 2 * self.theta) & (self._local_depths < self.most_depth) & (self._local_depths != _NOT_USED)
        return tuple(np.flatnonzero(large).tolist())

    def next_merge(self, sizes: Int64s) -> tuple[int, int] | None:
        """Two buddies to merge, one of them below theta and both together below 2 * theta; None when all is well."""
        small: Int64s = np.flatnonzero((sizes < self.theta) & (self._local_depths > 0))
        last_bits = np.int32(1) << (self._local_depths[small] - 1)
        buddies = self._entries[self._low_bits[small] ^ last_bits]
        fits = (self._local_depths[buddies] == self._local_depths[small]) & (
            sizes[small] + sizes[buddies] < 2 * self.theta
        )
        found = np.flatnonzero(fits)
        return (int(small[found[0]]), int(buddies[found[0]])) if found.size else None

    def buddy(self, bucket: int) -> int | None:
        """The bucket that this one was split from or into last, as long as it has not been split further."""
        local = self.local_depth(bucket)
        if local <= 0:
            return None
        buddy = int(self._entries[self._low_bits[bucket] ^ (1 << (local - 1))])
        return buddy if self._local_depths[buddy] == local else None

    def split(self, bucket: int) -> int:
        """Cut a bucket by its next bit; the number of the new bucket, which takes the keys with `split_bit`."""
        local = self.local_depth(bucket)
        if local == _NOT_USED or local >= self.most_depth:
            raise BadInput(f"bucket {bucket} cannot be split: its local depth is {local}, at most {self.most_depth}")
        if local == self.depth:
            self._entries = np.concatenate([self._entries, self._entries])
        number = self._free_number()
        bit = 1 << local
        self._local_depths[[bucket, number]] = local + 1
        self._low_bits[number] = self._low_bits[bucket] | bit
        self._entries[self._low_bits[number] :: 2 * bit] = number
        return number

    def merge(self, bucket: int, buddy: int) -> None:
        """Unite two buddies under the first one's number."""
        if self.buddy(bucket) != buddy:
            raise BadInput(f"buckets {bucket} and {buddy} are no buddies: only what a split made can be merged")
        local = self.local_depth(bucket) - 1
        self._low_bits[bucket] = min(self._low_bits[bucket], self._low_bits[buddy])
        self._entries[self._low_bits[bucket] :: 1 << local] = bucket
        self._local_depths[bucket] = local
        self._local_depths[buddy] = _NOT_USED
        deepest = int(self._local_depths.max())
        if deepest < self.depth:
            self._entries = self._entries[: 1 << deepest].copy()

    def to_json(self) -> dict[str, Json]:
        """Bucket numbers are not kept: the buckets come back numbered in the order of their low bits."""
        kept = sorted((int(self._low_bits[bucket]), self.local_depth(bucket)) for bucket in self.buckets)
        return {"theta": self.theta, "most_depth": self.most_depth, "buckets": [list(bucket) for bucket in kept]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Json]) -> ExtendibleDirectory:
        directory = cls(cast(float, stored["theta"]), cast(int, stored["most_depth"]))
        buckets = np.array(stored["buckets"], np.int32).reshape(-1, 2)
        directory._low_bits, directory._local_depths = buckets[:, 0].copy(), buckets[:, 1].copy()
        directory._entries = np.full(1 << int(buckets[:, 1].max()), _NOT_USED, np.int32)
        for number, (low_bits, local) in enumerate(buckets.tolist()):
            directory._entries[low_bits :: 1 << local] = number
        if (directory._entries == _NOT_USED).any():
            raise BadInput("the stored directory has keys without a bucket: it was not written by to_json")
        return directory

    def _free_number(self) -> int:
        free = np.flatnonzero(self._local_depths == _NOT_USED)
        if free.size:
            return int(free[0])
        number = self._local_depths.size
        room = np.full(number, _NOT_USED, np.int32)
        self._local_depths = np.concatenate([self._local_depths, room])
        self._low_bits = np.concatenate([self._low_bits, np.zeros(number, np.int32)])
        return number
