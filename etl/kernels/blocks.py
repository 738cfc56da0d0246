"""Probing, comparing and gathering rows that lie in many blocks, in one call for a whole batch.

A block is a piece of a relation segment: its rows, in Arrow arrays that nobody changes (mostly memory-mapped).
The kernels get the blocks as plain arrays of addresses, so that a batch which touches a hundred segments
costs no Python for each of them.

    probe_blocks         candidate pairs: probe rows and stored rows with equal hashes
    equal_in_blocks      which of them have equal keys
    gather_from_blocks   a result column from the stored rows

Who keeps the memory alive: the caller. An address holds on to nothing; whoever keeps a `BlockColumn` or hash
addresses keeps the arrays they were taken from for as long, and no longer uses the one without the other.
Addresses are only ever taken from the buffers of a live array. Block and row numbers are checked against the
lengths those arrays had; offsets of strings are trusted as Arrow wrote them, for the files carry checksums.
"""

from etl.kernels.block_columns import BlockColumn, block_column
from etl.kernels.block_compare import equal_in_blocks
from etl.kernels.block_gather import gather_from_blocks
from etl.kernels.block_probe import BlockPairs, probe_blocks

__all__ = ["BlockPairs", "probe_blocks", "BlockColumn", "block_column", "equal_in_blocks", "gather_from_blocks"]
