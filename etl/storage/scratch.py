"""Rows set aside on disk for the time of one piece of work.

The file has no name: it is gone when the object or the process ends, however it ends, so nothing has to be swept up.
Without a folder the rows stay in memory.
"""

import tempfile
from pathlib import Path

import pyarrow as pa

from etl.errors import StorageError


class Scratch:
    """Batches of one schema, written once and read back by number."""

    def __init__(self, folder: Path | None, schema: pa.Schema) -> None:
        self._schema = schema
        self._messages: list[pa.Buffer] = []
        self._places: list[tuple[int, int]] = []
        self._size = 0
        self._folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
            except OSError as error:
                raise StorageError(
                    f"cannot set rows aside in folder {folder}: {error.strerror}; "
                    "name a folder on a writable disk, or make this one writable"
                ) from error

    def append(self, batch: pa.RecordBatch) -> int:
        """Set a batch aside; its number."""
        message = batch.serialize()
        if self._folder is None:
            self._messages.append(message)
            return len(self._messages) - 1
        try:
            self._file.write(message)
        except OSError as error:
            raise StorageError(
                f"cannot set rows aside in folder {self._folder}: {error.strerror}; free some space on the disk"
            ) from error
        self._places.append((self._size, message.size))
        self._size += message.size
        return len(self._places) - 1

    def read(self, number: int) -> pa.RecordBatch:
        if self._folder is None:
            return pa.ipc.read_record_batch(self._messages[number], self._schema)
        start, size = self._places[number]
        self._file.seek(start)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema)

    def close(self) -> None:
        self._messages.clear()
        if self._folder is not None:
            self._file.close()
