"""A real standalone cluster on loopback: a master and two workers, as processes of their own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

_START_SECONDS = 60


@dataclass(frozen=True)
class StandaloneCluster:
    url: str
    workers: list[psutil.Popen]

    def executors(self) -> list[psutil.Process]:
        """Java processes that run tasks."""
        return [child for worker in self.workers for child in worker.children() if _is_executor(child)]

    def python_workers(self) -> list[psutil.Process]:
        """What the executors' daemons have forked."""
        found = []
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                found += [worker for daemon in executor.children() for worker in daemon.children()]
        return found


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[StandaloneCluster]:
    """Each worker has one core. Everything is ended when the context is left."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    started: list[psutil.Popen] = []
    try:
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        started.append(_started(folder, "master", "master.Master", [*address, "--port", str(port)]))
        _wait_for_port(port, folder / "master.log")
        limits = ["--cores", "1", "--memory", "1g"]
        for number in range(workers):
            home = ["--work-dir", str(folder / f"work-{number}")]
            started.append(_started(folder, f"worker-{number}", "worker.Worker", [*address, *limits, *home, url]))
        yield StandaloneCluster(url, started[1:])
    finally:
        for process in started:
            _end(process)


def _started(folder: Path, name: str, kind: str, arguments: list[str]) -> psutil.Popen:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
    with (folder / f"{name}.log").open("wb") as log:
        return psutil.Popen(command, env=environment, stdout=log, stderr=log)


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in argument for argument in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_port(port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"no Spark master on port {port} after {_START_SECONDS} s: {log.read_text()[-2000:]}")


def _end(process: psutil.Popen) -> None:
    """Only what this cluster started: the process and what it started in turn."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = process.children(recursive=True)
    for member in (*family, process):
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait()
