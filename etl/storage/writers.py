"""Who is writing to a relation at the moment, so that a clean-up leaves unfinished work alone.

Idea: a run exists before the version that names it. To tell a run that a version is about to name from one that a
crash left behind, each writer holds the lock of a file of its own while it works, and its runs carry that file's name.
The kernel frees the lock when the process dies. Nobody ever waits for such a lock.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from etl.errors import StorageError


class Writers(Protocol):
    """The writers of one relation; a writer is known by its token."""

    def working(self) -> AbstractContextManager[str]:
        """Be a writer for the time of a `with` statement."""

    def active(self) -> set[str]:
        """The tokens of all writers at work."""


class WriterFiles:
    """Writers of all processes that share a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def working(self) -> Iterator[str]:
        path, descriptor = self._lock_new()
        try:
            yield path.name
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def active(self) -> set[str]:
        """Also removes the files of writers that died."""
        found = set()
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            with suppress(FileNotFoundError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    found.add(path.name)
                    continue
                path.unlink()
        return found

    def _lock_new(self) -> tuple[Path, int]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while True:
                path = self._folder / uuid.uuid4().hex
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 1:
                    return path, descriptor
                os.close(descriptor)  # a clean-up took it for a dead one between the create and the lock
        except OSError as error:
            raise StorageError(
                f"cannot write to folder {self._folder}: {error.strerror}; "
                "name a folder on a writable disk, or make this one writable"
            ) from error


class MemoryWriters:
    """The fake: writers of one process."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()

    @contextmanager
    def working(self) -> Iterator[str]:
        token = uuid.uuid4().hex
        self._tokens.add(token)
        try:
            yield token
        finally:
            self._tokens.discard(token)

    def active(self) -> set[str]:
        return set(self._tokens)


def run_label(label: str, token: str) -> str:
    return f"{label}.{token}"


def token_of(run: str) -> str:
    """The writer of a run; empty for a name that no writer gave."""
    return run.rpartition("-")[0].rpartition(".")[2]
