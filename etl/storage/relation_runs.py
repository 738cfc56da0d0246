"""The runs of a relation: how one is written, and how an open one lies in memory.

Idea: an open run is memory-mapped, and all that a probe needs of it are the addresses at which each slice's
columns begin. They are worked out once for a run and shared by all versions that name it, with one step of
Python a block, none a slice and none a row.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import CorruptFile
from etl.kernels.blocks import BlockColumn, block_column
from etl.kernels.columns import Kind
from etl.storage.ports import RunName, RunReader, RunStore
from etl.storage.relation_rows import FILTER_COLUMN, SLICE_COLUMN, RelationShape


def write_run(runs: RunStore, shape: RelationShape, label: str, blocks: Iterable[pa.RecordBatch]) -> RunName | None:
    """One run with these blocks, durable but named by no version yet; None when there are no blocks."""
    writer = None
    try:
        for block in blocks:
            writer = runs.writer(label, shape.block) if writer is None else writer
            writer.append(block)
        return None if writer is None else writer.seal()
    finally:
        if writer is not None:
            writer.abandon()


class OpenRun:
    """The slices of a run, numbered over all its blocks: to which segment each belongs, and where it lies."""

    def __init__(self, reader: RunReader, shape: RelationShape, run: RunName) -> None:
        self.name = run.name
        self.blocks = [reader.mapped(number) for number in range(len(reader))]
        for block in self.blocks:
            _check_block(block, shape, run)
        slices = [block.column(SLICE_COLUMN) for block in self.blocks]
        ends = [encoded.run_ends.to_numpy().astype(np.int64) for encoded in slices]
        nothing = np.empty(0, np.int64)
        self.first_coordinate: npt.NDArray[np.uint64] = np.concatenate(
            [np.empty(0, np.uint64), *(encoded.values.to_numpy() for encoded in slices)]
        )
        self.block: npt.NDArray[np.int64] = np.repeat(np.arange(len(ends)), [len(end) for end in ends])
        self.start: npt.NDArray[np.int64] = np.concatenate(
            [nothing, *(np.concatenate([[0], end[:-1]]) for end in ends)]
        )
        self.rows: npt.NDArray[np.int64] = np.concatenate([nothing, *ends]) - self.start
        self.columns = {name: self._sliced(shape, name) for name in shape.stored.names}
        filters = [block.column(FILTER_COLUMN).values.buffers()[2] for block in self.blocks]
        self.filter_words: npt.NDArray[np.int64] = np.array([f.size // 8 for f in filters], np.int64)
        self._slice_bytes: npt.NDArray[np.int64] | None = None
        # A copy begins with Arrow's description of it, and each of its buffers may be filled up to 8 bytes.
        nothing_stored = pa.RecordBatch.from_pylist([], shape.stored)
        self._head_bytes = pa.ipc.get_record_batch_size(nothing_stored) + 3 * 8 * len(shape.stored)

    @property
    def slice_bytes(self) -> npt.NDArray[np.int64]:
        """What a copy of each slice takes. Worked out when asked for: it touches the offsets of strings."""
        if self._slice_bytes is None:
            head = np.full(self.rows.size, self._head_bytes, np.int64)
            self._slice_bytes = sum((self._column_bytes(name) for name in self.columns), head)
        return self._slice_bytes

    def rows_of(self, slice_number: int) -> pa.RecordBatch:
        """One slice, without the columns that describe slices and filters."""
        block = self.blocks[self.block[slice_number]].select(list(self.columns))
        return block.slice(self.start[slice_number], self.rows[slice_number])

    def filter(self, block: int) -> npt.NDArray[np.uint64]:
        """The filter of one block, where it lies in the file."""
        return np.frombuffer(self.blocks[block].column(FILTER_COLUMN).values.buffers()[2], np.uint64)

    def _sliced(self, shape: RelationShape, name: str) -> BlockColumn:
        whole = block_column([block.column(name) for block in self.blocks], shape.stored.field(name).type)
        values, offsets = whole.values[self.block], whole.offsets[self.block]
        start = self.start.astype(np.uint64)
        if whole.kind >= Kind.OFFSETS_32:
            offsets = offsets + start * np.uint64(whole.width)
        else:
            values = values + start * np.uint64(whole.width)  # packed bits have width 0: their place is a bit
        return whole._replace(
            values=values,
            offsets=offsets,
            validity=whole.validity[self.block],
            bit_offset=whole.bit_offset[self.block] + self.start,
            rows=self.rows,
        )

    def _column_bytes(self, name: str) -> npt.NDArray[np.int64]:
        column = self.columns[name]
        nulls = np.where(column.validity != 0, (self.rows + 7) // 8, 0)
        if column.kind < Kind.OFFSETS_32:
            return nulls + (self.rows * column.width if column.width else (self.rows + 7) // 8)
        lengths = [np.empty(0, np.int64)]
        for number, block in enumerate(self.blocks):
            array = block.column(name)
            offsets = np.frombuffer(array.buffers()[1], np.dtype(f"<i{column.width}"))[array.offset :]
            mine = self.block == number
            starts = self.start[mine]
            lengths.append((offsets[starts + self.rows[mine]] - offsets[starts]).astype(np.int64))
        return nulls + (self.rows + 1) * column.width + np.concatenate(lengths)


def _check_block(block: pa.RecordBatch, shape: RelationShape, run: RunName) -> None:
    if not block.schema.equals(shape.block):
        raise CorruptFile(
            f"run {run.name} of relation {shape.name} holds other columns than the relation: "
            f"{block.schema.names}; restore it from a copy"
        )
