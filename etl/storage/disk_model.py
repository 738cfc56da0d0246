"""A disk that takes the time we say it takes, for experiments that must not depend on the machine.

Idea: results come from a real run store; the model only adds up what each access would cost on a disk
with one head. An access that continues where the head stands costs the transfer; any other costs a seek
as well. Reads and writes move the same head, so a model shared by several stores is one disk.

Invariants: deterministic; the clock never goes back.

Limits: no cache, no queue, no overlap of disk and processor; opening, sealing and deleting cost nothing.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from etl.errors import BadInput
from etl.storage.ports import RunName, RunReader, RunStore, RunWriter, StoreCounters


class VirtualClock:
    """Seconds since the experiment began; only its owner makes them pass."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def advance(self, seconds: float) -> None:
        if not seconds >= 0:
            raise BadInput(f"a virtual clock cannot advance by {seconds} seconds; time only goes forward")
        self.seconds += seconds


@dataclass(slots=True)
class DiskModel:
    """One disk: what a seek costs, how fast bytes move, and where the head stands."""

    seek_seconds: float
    bytes_per_second: float
    clock: VirtualClock
    _next_sequential: tuple[object, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.seek_seconds >= 0:
            raise BadInput(f"seek_seconds is {self.seek_seconds}; a seek takes zero seconds or more")
        if not self.bytes_per_second > 0:
            raise BadInput(f"bytes_per_second is {self.bytes_per_second}; a disk moves more than zero bytes a second")

    def access(self, place: object, number: int, size: int) -> None:
        """Charge the access to block `number` of the contiguous blocks at `place`."""
        if self._next_sequential != (place, number):
            self.clock.advance(self.seek_seconds)
        self.clock.advance(size / self.bytes_per_second)
        self._next_sequential = (place, number + 1)


class ModelledRuns:
    """A run store whose accesses are charged to a disk model."""

    def __init__(self, store: RunStore, model: DiskModel) -> None:
        self._store = store
        self._model = model

    @property
    def counters(self) -> StoreCounters:
        return self._store.counters

    def writer(self, label: str, schema: pa.Schema) -> RunWriter:
        return _ModelledWriter(self._store.writer(label, schema), self._store, self._model)

    def open(self, run: RunName, *, check_content: bool = True) -> RunReader:
        reader = self._store.open(run, check_content=check_content)
        return _ModelledReader(run.name, reader, self._store, self._model)

    def delete(self, run: RunName | str) -> None:
        self._store.delete(run)

    def runs(self) -> list[str]:
        return self._store.runs()


class _ModelledWriter:
    def __init__(self, writer: RunWriter, store: RunStore, model: DiskModel) -> None:
        self._writer = writer
        self._store = store
        self._model = model
        self._blocks = 0

    def append(self, batch: pa.RecordBatch) -> None:
        written_before = self._store.counters.bytes_written
        self._writer.append(batch)
        # The name is known only after the seal; until then the writer itself is the place.
        self._model.access(self, self._blocks, self._store.counters.bytes_written - written_before)
        self._blocks += 1

    def seal(self) -> RunName:
        return self._writer.seal()

    def abandon(self) -> None:
        self._writer.abandon()


class _ModelledReader:
    def __init__(self, name: str, reader: RunReader, store: RunStore, model: DiskModel) -> None:
        self._name = name
        self._reader = reader
        self._store = store
        self._model = model

    def __len__(self) -> int:
        return len(self._reader)

    def block(self, number: int) -> pa.RecordBatch:
        read_before = self._store.counters.bytes_read
        block = self._reader.block(number)
        self._model.access((self._store, self._name), number, self._store.counters.bytes_read - read_before)
        return block

    def rows_in_block(self, number: int) -> int:
        return self._reader.rows_in_block(number)

    def mapped(self, number: int) -> pa.RecordBatch:
        return self._reader.mapped(number)

    def close(self) -> None:
        self._reader.close()
