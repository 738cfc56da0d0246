"""Runs on disk: one Arrow IPC file a run, published whole, memory-mapped on read.

Idea: blocks stream into a pending file; `seal` writes Arrow's footer, fsyncs and publishes. A reader maps
the file, so a block costs no copy and no memory of ours: its pages belong to the operating system.

Invariants: a run is visible only when it is complete; unless told otherwise, `open` compares the whole
content with the checksum in the run's name, so that no damaged block reaches a join. The footer says
which format wrote the file.

Limits: no dictionary-encoded columns; verifying reads the file once, so a reader is worth keeping.
"""

import uuid
from pathlib import Path

import pyarrow as pa

from etl.errors import CorruptFile, ForeignFormat
from etl.storage.durable import DurableFolder, FileStamp, PendingFile
from etl.storage.ports import RunName, StoreCounters
from etl.storage.run_accounting import (
    RunAccounting,
    check_block,
    check_readable,
    check_run,
    check_unsealed,
)

FORMAT = b"headrace-run-1"
_FORMAT_ENTRY = b"headrace_format"
ENDING = ".arrow"
"""A run's file is called like the run, with this at the end."""


class RunFiles:
    """A run store in a folder, which several processes may share.

    Names of new runs begin with `prefix`, which may lead into sub-folders and may change between two runs.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.prefix = prefix
        self._folder = DurableFolder(folder)
        self._folder.sweep_temporary()
        self._accounting = RunAccounting()

    @property
    def counters(self) -> StoreCounters:
        return self._accounting.counters

    def writer(self, label: str, schema: pa.Schema) -> "RunFileWriter":
        check_run(label, schema)
        # Drawn anew for each run: a counter would repeat after a restart and in forked workers.
        name = f"{self.prefix}{label}-{uuid.uuid4().hex}"
        return RunFileWriter(name, schema, self._folder.begin(name + ENDING), self._accounting)

    def open(self, run: RunName, *, check_content: bool = True) -> "RunFileReader":
        stamp = FileStamp(run.name + ENDING, run.bytes, run.checksum)
        content = self._folder.read(stamp) if check_content else self._folder.map_sized(stamp)
        return RunFileReader(run, self._folder.path(run.name + ENDING), content, self._accounting)

    def delete(self, run: RunName | str) -> None:
        name = run if isinstance(run, str) else run.name
        if self._folder.delete(name + ENDING):
            self._accounting.run_deleted()

    def runs(self) -> list[str]:
        return [name.removesuffix(ENDING) for name in self._folder.names() if name.endswith(ENDING)]


class RunFileWriter:
    def __init__(self, name: str, schema: pa.Schema, file: PendingFile, accounting: RunAccounting) -> None:
        self.name = name
        self._schema = schema
        self._file = file
        self._accounting = accounting
        self._blocks = 0
        self._rows = 0
        self._arrow = pa.ipc.new_file(file, schema, metadata={_FORMAT_ENTRY: FORMAT})

    def append(self, batch: pa.RecordBatch) -> None:
        check_block(self.name, self._file.closed, batch, self._schema)
        try:
            self._arrow.write_batch(batch)
        except BaseException:
            self.abandon()  # half a block may be in the file: such a run must never be sealed
            raise
        self._blocks += 1
        self._rows += batch.num_rows
        self._accounting.block_written(batch)

    def seal(self) -> RunName:
        check_unsealed(self.name, self._file.closed)
        self._arrow.close()
        stamp = self._file.publish()
        self._accounting.run_written()
        return RunName(self.name, self._blocks, self._rows, stamp.size, stamp.checksum)

    def abandon(self) -> None:
        self._file.abandon()


class RunFileReader:
    def __init__(self, run: RunName, path: Path, content: pa.Buffer, accounting: RunAccounting) -> None:
        self._name = run.name
        self._accounting = accounting
        self._arrow: pa.RecordBatchFileReader | None = _open_arrow(path, content)
        self._blocks = run.blocks
        if self._arrow.num_record_batches != run.blocks:
            raise CorruptFile(
                f"file {path} holds {self._arrow.num_record_batches} blocks, but the run was sealed with "
                f"{run.blocks}; take the run's name from the snapshot that was made with it"
            )

    def __len__(self) -> int:
        return self._blocks

    def block(self, number: int) -> pa.RecordBatch:
        block = self.mapped(number)
        self._accounting.block_read(self._name, number, block)
        return block

    def rows_in_block(self, number: int) -> int:
        rows: int = self.mapped(number).num_rows  # only Arrow's header of the block is touched
        return rows

    def mapped(self, number: int) -> pa.RecordBatch:
        check_readable(self._name, self._arrow is None, number, self._blocks)
        assert self._arrow is not None
        return self._arrow.get_batch(number)

    def close(self) -> None:
        self._arrow = None


def _open_arrow(path: Path, content: pa.Buffer) -> pa.RecordBatchFileReader:
    try:
        arrow = pa.ipc.open_file(content)
    except pa.ArrowInvalid as error:
        raise ForeignFormat(f"file {path} is not a run: {error}; remove it from the folder") from error
    written_as = (arrow.metadata or {}).get(_FORMAT_ENTRY)
    if written_as != FORMAT:
        raise ForeignFormat(
            f"file {path} has format {written_as!r}, expected {FORMAT!r}; "
            "it belongs to another program or to a newer Headrace: upgrade, or remove it from the folder"
        )
    return arrow
