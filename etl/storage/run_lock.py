"""One run of a pipeline at a time: a lock keeps a second run away, a fence stops a run that was overtaken.

Idea: a run holds the kernel's lock on a file, which is freed however the process ends. Where that is not enough (a
file system that ignores locks, a machine that hung and was given up), there is the run number: each run takes the next
one by an exclusive create, and looks right before each commit point whether a higher one was taken meanwhile. Then it
is the run that was given up, and it stops.

State: `lock`, with the holder's host, process and start for people to read; `numbers/00000007.json`, one a run, of
which the last few stay.

Invariants: numbers only grow, also when the files of old ones go; a run whose number is not the highest commits nothing
from its next check on. What slips through between a check and its commit is an exclusive create of the same load, which
the other run then finds: the check keeps a stray run from going on, the creates keep it from doing harm.

Limits: to take over from a run that hangs on another machine, someone deletes the lock file.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from etl.errors import AlreadyPublished, Fenced, PipelineBusy, StorageError
from etl.storage.durable import DurableFolder

__all__ = ["Run", "run_of"]

_LOCK, _NUMBERS = "lock", "numbers"
_NUMBERS_KEPT = 4


@dataclass(frozen=True)
class Run:
    """The right to commit for a pipeline, as long as `check` does not raise."""

    pipeline: str
    number: int
    folder: Path

    def check(self) -> None:
        """Fenced when another run has begun after this one; to be asked right before each commit point."""
        newest = max(_numbers(self.folder), default=self.number)
        if newest > self.number:
            raise Fenced(
                f"run {self.number} of pipeline {self.pipeline} was overtaken by run {newest} "
                f"({_holder(self.folder / _number_name(newest))}) and stops before it commits anything: "
                "that run does the work; start no other while it is there"
            )


@contextmanager
def run_of(pipeline: str, folder: Path) -> Iterator[Run]:
    """Be the one run of the pipeline whose run files lie in `folder`; PipelineBusy while another is."""
    files = DurableFolder(folder)
    descriptor = _locked(pipeline, folder / _LOCK)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _ourselves(), 0)
        files.sweep_temporary()
        run = Run(pipeline, _take_number(files), folder)
        try:
            yield run
        except Fenced:
            raise
        except Exception:
            run.check()  # whatever a run stumbles over that was overtaken, that is why
            raise
    finally:
        os.close(descriptor)


def _locked(pipeline: str, lock: Path) -> int:
    """The lock file, open and locked; its name stays when the lock is freed."""
    while True:
        try:
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StorageError(f"cannot lock {lock}: {error.strerror}; make the folder writable") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise PipelineBusy(
                f"pipeline {pipeline} is being run by {_holder(lock)}: wait for it or stop it; if it hangs where "
                f"it cannot be stopped, delete {lock} to take over"
            ) from None
        if _is_still(lock, descriptor):
            return descriptor
        os.close(descriptor)  # deleted between the open and the lock: the next one to open would get another file


def _is_still(lock: Path, descriptor: int) -> bool:
    try:
        return lock.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _take_number(files: DurableFolder) -> int:
    while True:
        taken = _numbers(files.root)
        number = max(taken, default=0) + 1
        try:
            files.put(_number_name(number), [_ourselves()])
        except AlreadyPublished:
            continue
        # Not the newest ones: a run that is asleep finds there who overtook it.
        for old in sorted(taken)[: -_NUMBERS_KEPT + 1]:
            files.delete(_number_name(old))
        return number


def _numbers(folder: Path) -> list[int]:
    return [int(file.stem) for file in (folder / _NUMBERS).glob("*.json")]


def _number_name(number: int) -> str:
    return f"{_NUMBERS}/{number:08d}.json"


def _ourselves() -> bytes:
    return json.dumps(
        {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ).encode()


def _holder(file: Path) -> str:
    """Who wrote the file, in words."""
    try:
        holder = json.loads(file.read_bytes())
        return f"process {holder['process']} on {holder['host']} since {holder['started']}"
    except (OSError, ValueError, KeyError):
        return "another process"  # it has the lock and has not written its name yet, or is gone by now
