"""Row blocks: the rows of one side in the order of arrival, leaving by whole blocks as their window passes.

State: blocks of rows, each with the number of its first row and its newest event time. Numbers are given in the order
of arrival and never again. Blocks leave from the old end only: one whose rows have all expired waits for the
blocks before it, so what is held is always one range of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from etl.kernels.compiling import Int64s
from etl.rows import Index, RowBuffer


@dataclass(slots=True)
class _Block:
    first_number: int
    newest: int
    rows: RowBuffer


class RowBlocks:
    """`block_bytes` is where a block is full; a batch goes into one block, so it may be larger by a batch."""

    def __init__(self, schema: pa.Schema, block_bytes: int) -> None:
        self._schema = schema
        self._block_bytes = block_bytes
        self._blocks: list[_Block] = []
        self._sealed_bytes = 0
        self._next_number = 0

    @property
    def first_number(self) -> int:
        """The number of the oldest row held, or the next to be given."""
        return self._blocks[0].first_number if self._blocks else self._next_number

    @property
    def next_number(self) -> int:
        return self._next_number

    @property
    def nbytes(self) -> int:
        return self._sealed_bytes + (self._blocks[-1].rows.nbytes if self._blocks else 0)

    def bytes_after(self, batch: pa.RecordBatch) -> int:
        """The most memory held while this batch is appended."""
        if self._is_open:
            return self._sealed_bytes + self._blocks[-1].rows.bytes_after(batch)
        return self.nbytes + RowBuffer(self._schema).bytes_after(batch)

    def append(self, batch: pa.RecordBatch, times: Int64s) -> None:
        newest = int(times.max())
        if not self._is_open:
            self._sealed_bytes = self.nbytes
            self._blocks.append(_Block(self._next_number, newest, RowBuffer(self._schema)))
        block = self._blocks[-1]
        block.rows.append(batch)
        block.newest = max(block.newest, newest)
        self._next_number += batch.num_rows

    def expire(self, needed_from: int) -> bool:
        """Let blocks go that hold only older event times; whether any left."""
        count = 0
        while count < len(self._blocks) and self._blocks[count].newest < needed_from:
            count += 1
        del self._blocks[:count]
        self._sealed_bytes = sum(block.rows.nbytes for block in self._blocks[:-1])
        return count > 0

    def by_block(self, arriving: Index, numbers: Int64s) -> Iterator[tuple[Index, RowBuffer, Index]]:
        """Pairs cut by the block that the stored row is in: arriving rows, the block's rows, places in it."""
        starts = np.array([block.first_number for block in self._blocks])
        if len(starts) == 1:
            yield arriving, self._blocks[0].rows, numbers - starts[0]
            return
        within = np.searchsorted(starts, numbers, side="right") - 1
        order = np.argsort(within, kind="stable")
        cuts = np.searchsorted(within[order], np.arange(len(starts) + 1))
        for place, block in enumerate(self._blocks):
            chosen = order[cuts[place] : cuts[place + 1]]
            if chosen.size:
                yield arriving[chosen], block.rows, numbers[chosen] - block.first_number

    def to_batches(self) -> list[pa.RecordBatch]:
        return [batch for block in self._blocks for batch in block.rows.to_batches()]

    @property
    def _is_open(self) -> bool:
        return bool(self._blocks) and self._blocks[-1].rows.nbytes < self._block_bytes
