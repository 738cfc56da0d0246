"""Sending rows to partitions: which partition a hash belongs to, and the rows of each partition side by side.

The partition comes from the high bits of the hash, the slot in a hash table from the low ones: rows of one
partition still spread over all slots.
"""

import numpy as np
from numba import types

from etl.kernels.compiling import Int32s, Int64s, UInt64s, input_of, kernel, output_of

__all__ = ["partition_of", "scatter"]


def partition_of(hashes: UInt64s, partitions: int) -> Int32s:
    """The partition of each hash: equal shares of the hash range, in ascending order, however many."""
    _check_partitions(partitions)
    hashes = np.ascontiguousarray(hashes, dtype=np.uint64)
    partition: Int32s = np.empty(hashes.size, dtype=np.int32)
    _assign(hashes, partitions, partition)
    return partition


def scatter(partition: Int32s, partitions: int) -> tuple[Int64s, Int64s]:
    """Row numbers by partition, each in input order: `order[offsets[p]:offsets[p + 1]]` is partition p."""
    _check_partitions(partitions)
    partition = np.ascontiguousarray(partition, dtype=np.int32)
    order: Int64s = np.empty(partition.size, dtype=np.int64)
    offsets: Int64s = np.zeros(partitions + 1, dtype=np.int64)
    culprit = _scatter(partition, order, offsets)
    if culprit >= 0:
        raise ValueError(f"row {culprit} is in partition {partition[culprit]}, but there are {partitions} partitions")
    return order, offsets


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions < 2**31:
        raise ValueError(f"{partitions} partitions: give a number from 1 to {2**31 - 1}")


_HALF = np.uint64(32)


@kernel(types.void(input_of(types.uint64), types.uint64, output_of(types.int32)))
def _assign(hashes: UInt64s, partitions: int, partition: Int32s) -> None:
    """The high 32 bits as a fraction of one, times the number of partitions."""
    for row in range(hashes.size):
        partition[row] = np.int32(((hashes[row] >> _HALF) * partitions) >> _HALF)


@kernel(types.int64(input_of(types.int32), output_of(types.int64), output_of(types.int64)))
def _scatter(partition: Int32s, order: Int64s, offsets: Int64s) -> int:
    """A stable counting sort. Returns the first row with a partition out of range, or -1."""
    partitions = offsets.size - 1
    for row in range(partition.size):
        if partition[row] < 0 or partition[row] >= partitions:
            return row
        offsets[partition[row] + 1] += 1
    for number in range(partitions):
        offsets[number + 1] += offsets[number]
    # While rows are placed, offsets[p] is where the next row of p goes; at the end it is where p + 1 starts.
    for row in range(partition.size):
        place = offsets[partition[row]]
        order[place] = row
        offsets[partition[row]] = place + 1
    for number in range(partitions, 0, -1):
        offsets[number] = offsets[number - 1]
    offsets[0] = 0
    return -1
