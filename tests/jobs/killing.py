"""Runs of the order pipeline that are killed: real processes, real signals, and what the warehouse holds afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psutil

from etl import crash_points
from tests.jobs.warehouse_contents import Contents, contents_of

LONGEST_SECONDS = 300


@dataclass
class Victim:
    """A pipeline in a folder, run by one process after the other."""

    folder: Path
    feeds: Path
    arguments: tuple[str, ...] = ()
    kills: int = 0
    loads: list[int] = field(default_factory=list)

    @property
    def contents(self) -> Contents:
        return contents_of(self.folder / "warehouse.duckdb")

    def killed_at(self, point: str) -> None:
        """Run until the process kills itself at the crash point."""
        with self.running(point) as process:
            self._read(process)
            assert process.wait() == -signal.SIGKILL, f"{point}: the run ended without reaching it"
        self.kills += 1

    def killed_after(self, seconds: float) -> bool:
        """Kill the run so many seconds after the start of its stream; False when it had ended before."""
        with self.running() as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", _end_of(self.folder / "spark.log")
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            self._read(process)
            code = process.wait()
            timer.cancel()
        assert code in (0, -signal.SIGKILL), _end_of(self.folder / "errors.log")
        self.kills += code != 0
        return code != 0

    def finished(self, **environment: str) -> int:
        """Run to the end; the exit code."""
        with self.running(**environment) as process:
            self._read(process)
            return process.wait()

    @contextmanager
    def running(self, crash_at: str | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.jobs.order_run", str(self.folder), str(self.feeds), *self.arguments]
        given = {**os.environ, **environment} | ({} if crash_at is None else {crash_points.VARIABLE: crash_at})
        with (
            (self.folder / "errors.log").open("a") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=given) as process,
        ):
            watchdog = threading.Timer(LONGEST_SECONDS, process.kill)
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                process.kill()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("load "):
                self.loads.append(int(line.split()[1]))


Prey: TypeAlias = Callable[[psutil.Process], list[psutil.Process]]
"""Given the driver, the processes that may be killed beside it."""


class Killer:
    """Kills processes of a run at random, one after the other, until it is told to stop."""

    def __init__(self, driver: int, prey: Prey, pause: tuple[float, float]) -> None:
        self.kills = 0
        self._driver = psutil.Process(driver)
        self._prey = prey
        self._pause = pause
        self._random = random.Random(driver)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="killer")

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._random.uniform(*self._pause)):
            try:
                prey = self._prey(self._driver)
                if prey:
                    self._random.choice(prey).kill()
                    self.kills += 1
            except psutil.NoSuchProcess:
                continue  # it ended by itself between the look and the kill


class PythonWorkers:
    """Workers and the daemon that forks them. Workers outlive their daemon, as orphans; they stay in its group."""

    def __init__(self) -> None:
        self._groups: set[int] = set()

    def __call__(self, driver: psutil.Process) -> list[psutil.Process]:
        self._groups |= {child.pid for child in driver.children(recursive=True) if _runs(child, _DAEMON)}
        members = [process for process in psutil.process_iter() if _group_of(process) in self._groups]
        alive = [process for process in members if _runs(process, _DAEMON)]
        # A daemon that has no worker yet is let alone: killed while it starts, nothing would ever run.
        forked = {_group_of(process) for process in alive if _group_of(process) != process.pid}
        return [process for process in alive if _group_of(process) in forked]


def executors(driver: psutil.Process) -> list[psutil.Process]:
    return [child for child in driver.children(recursive=True) if _runs(child, _EXECUTOR)]


_DAEMON = "etl.spark.worker_daemon"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def _runs(process: psutil.Process, program: str) -> bool:
    try:
        return program in process.cmdline()
    except psutil.Error:
        return False  # dead already, and perhaps not buried yet


def _group_of(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return -1


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-30:])


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
