"""The rules and the counting that all run stores share, so that the fake and the files cannot drift apart."""

import re
from dataclasses import replace

import pyarrow as pa

from etl.errors import BadInput
from etl.storage.ports import StoreCounters

_LEGAL_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,99}")


class RunAccounting:
    """Counts blocks, bytes and runs, and tells sequential reads from random ones."""

    def __init__(self) -> None:
        self._blocks_read = 0
        self._blocks_written = 0
        self._bytes_read = 0
        self._bytes_written = 0
        self._sequential_reads = 0
        self._runs_written = 0
        self._runs_deleted = 0
        self._next_sequential: tuple[str, int] | None = None

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters(
            blocks_read=self._blocks_read,
            blocks_written=self._blocks_written,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            random_reads=self._blocks_read - self._sequential_reads,
            sequential_reads=self._sequential_reads,
            runs_written=self._runs_written,
            runs_deleted=self._runs_deleted,
        )

    def block_written(self, block: pa.RecordBatch) -> None:
        self._blocks_written += 1
        self._bytes_written += pa.ipc.get_record_batch_size(block)

    def block_read(self, run: str, number: int, block: pa.RecordBatch) -> None:
        self._blocks_read += 1
        self._bytes_read += pa.ipc.get_record_batch_size(block)
        self._sequential_reads += self._next_sequential == (run, number)
        self._next_sequential = (run, number + 1)

    def run_written(self) -> None:
        self._runs_written += 1

    def run_deleted(self) -> None:
        self._runs_deleted += 1


class ReadCounter:
    """Counts reads of stretches that are mapped rather than read through a run store: each begins with a seek."""

    def __init__(self) -> None:
        self._counted = StoreCounters()

    def stretch_read(self, blocks: int, bytes_: int) -> None:
        counted = self._counted
        self._counted = replace(
            counted,
            blocks_read=counted.blocks_read + blocks,
            bytes_read=counted.bytes_read + bytes_,
            random_reads=counted.random_reads + blocks,
        )

    def beside(self, others: StoreCounters) -> StoreCounters:
        """These reads and those of a run store together."""
        mine = self._counted
        return replace(
            others,
            blocks_read=others.blocks_read + mine.blocks_read,
            bytes_read=others.bytes_read + mine.bytes_read,
            random_reads=others.random_reads + mine.random_reads,
        )


def check_run(label: str, schema: pa.Schema) -> None:
    """Refuse what one of the stores could not write, before anything is written."""
    if not _LEGAL_LABEL.fullmatch(label):
        raise BadInput(f"run label {label!r} is not legal: use at most 100 letters, digits and _ . = -, a letter first")
    for field in schema:
        # The Arrow file format has one dictionary a column for the whole file; ours come batch by batch.
        if pa.types.is_dictionary(field.type):
            raise BadInput(
                f"run {label}: column {field.name!r} is dictionary-encoded, and a run cannot hold a new "
                "dictionary with each block; decode the column first"
            )


def check_block(run: str, sealed: bool, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse a block that does not belong into the run."""
    check_unsealed(run, sealed)
    if not batch.schema.equals(schema):
        raise BadInput(
            f"run {run} holds blocks of schema ({_columns(schema)}), but this block has "
            f"({_columns(batch.schema)}); start a run of its own for it"
        )


def check_unsealed(run: str, sealed: bool) -> None:
    if sealed:
        raise BadInput(f"run {run} is sealed or abandoned; start another run for more blocks")


def check_readable(run: str, closed: bool, number: int, blocks: int) -> None:
    """Refuse a read that no block answers."""
    if closed:
        raise BadInput(f"the reader of run {run} is closed; open the run again")
    if not 0 <= number < blocks:
        raise BadInput(f"run {run} has no block {number}: it holds {blocks}, numbered from 0")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
