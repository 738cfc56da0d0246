"""Runs in memory: the fake for tests and for operators that are given no folder.

A block makes the round through Arrow's IPC bytes as it would through a file. So a block never shares
memory with the batch that it came from, and sizes and counters equal those of the files.
"""

import pyarrow as pa
import xxhash

from etl.errors import MissingFile
from etl.storage.ports import RunName, StoreCounters
from etl.storage.run_accounting import (
    RunAccounting,
    check_block,
    check_readable,
    check_run,
    check_unsealed,
)


class MemoryRuns:
    """A run store that lives as long as the object."""

    def __init__(self) -> None:
        self._accounting = RunAccounting()
        self._sealed: dict[str, list[pa.RecordBatch]] = {}
        self._started = 0

    @property
    def counters(self) -> StoreCounters:
        return self._accounting.counters

    def writer(self, label: str, schema: pa.Schema) -> "MemoryRunWriter":
        check_run(label, schema)
        self._started += 1
        return MemoryRunWriter(f"{label}-{self._started:08d}", schema, self._sealed, self._accounting)

    def open(self, run: RunName, *, check_content: bool = True) -> "MemoryRunReader":
        if run.name not in self._sealed:
            raise MissingFile(f"run {run.name} does not exist in this memory store; it was deleted or never sealed")
        return MemoryRunReader(run.name, self._sealed[run.name], self._accounting)

    def delete(self, run: RunName | str) -> None:
        name = run if isinstance(run, str) else run.name
        if self._sealed.pop(name, None) is not None:
            self._accounting.run_deleted()

    def runs(self) -> list[str]:
        return sorted(self._sealed)


class MemoryRunWriter:
    def __init__(
        self, name: str, schema: pa.Schema, sealed: dict[str, list[pa.RecordBatch]], accounting: RunAccounting
    ) -> None:
        self._name = name
        self._schema = schema
        self._all_sealed = sealed
        self._accounting = accounting
        self._blocks: list[pa.RecordBatch] = []
        self._bytes = 0
        self._checksum = xxhash.xxh3_128()
        self._finished = False

    def append(self, batch: pa.RecordBatch) -> None:
        check_block(self._name, self._finished, batch, self._schema)
        content = batch.serialize()
        self._checksum.update(content)
        self._blocks.append(pa.ipc.read_record_batch(content, self._schema))
        self._bytes += content.size
        self._accounting.block_written(batch)

    def seal(self) -> RunName:
        check_unsealed(self._name, self._finished)
        self._finished = True
        self._all_sealed[self._name] = self._blocks
        self._accounting.run_written()
        rows = sum(block.num_rows for block in self._blocks)
        return RunName(self._name, len(self._blocks), rows, self._bytes, self._checksum.hexdigest())

    def abandon(self) -> None:
        self._finished = True


class MemoryRunReader:
    def __init__(self, name: str, blocks: list[pa.RecordBatch], accounting: RunAccounting) -> None:
        self._name = name
        self._blocks = blocks
        self._accounting = accounting
        self._closed = False

    def __len__(self) -> int:
        return len(self._blocks)

    def block(self, number: int) -> pa.RecordBatch:
        block = self.mapped(number)
        self._accounting.block_read(self._name, number, block)
        return block

    def rows_in_block(self, number: int) -> int:
        rows: int = self.mapped(number).num_rows
        return rows

    def mapped(self, number: int) -> pa.RecordBatch:
        check_readable(self._name, self._closed, number, len(self._blocks))
        return self._blocks[number]

    def close(self) -> None:
        self._closed = True
