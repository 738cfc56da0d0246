"""The correlate host on a real standalone cluster: what comes out is what a local run gives, through kills too."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.spark.standalone_cluster import StandaloneCluster, standalone_cluster
from tests.spark.tagged_rows import joined, some_rows

pytestmark = pytest.mark.slow

LOADS = 8
ROOT = Path(__file__).parents[2]


def run_job(master: str, folder: Path, after_load: Callable[[int], None] = lambda load: None) -> Counter[str]:
    """The results of all loads, each row as text."""
    command = [sys.executable, "-m", "tests.spark.cluster_job", master, str(folder), str(LOADS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        last = ""
        for line in job.stdout:
            if line.startswith("load "):
                after_load(int(line.split()[1]))
            last = line
    assert job.returncode == 0, (folder / "driver.log").read_text()[-3000:]
    return Counter(str(row) for row in json.loads(last))


def expected() -> Counter[str]:
    pairs = joined([some_rows(load) for load in range(LOADS)])
    return Counter(str(row) for row in json.loads(json.dumps(sorted(pairs.elements(), key=repr), default=str)))


def test_a_standalone_cluster_with_two_workers_gives_what_a_local_run_gives(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as cluster:
        parents: set[int] = set()

        def look(load: int) -> None:
            parents.update(executor.ppid() for executor in cluster.executors())

        on_cluster = run_job(cluster.url, tmp_path / "cluster", look)
    assert on_cluster == run_job("local[2]", tmp_path / "local")
    assert on_cluster == expected()
    assert parents == {worker.pid for worker in cluster.workers}, "both workers had an executor"


@pytest.mark.parametrize("victim", ["Python workers", "executors"])
def test_results_are_exact_when_processes_are_killed(tmp_path: Path, victim: str) -> None:
    chance = random.Random(7)
    killed: list[int] = []
    with standalone_cluster(tmp_path) as cluster:

        def kill_one(load: int) -> None:
            # Into the next load, wherever it has got to. An executor takes seconds to come back: kill two of those.
            if victim == "Python workers" or load in (2, 4):
                time.sleep(chance.uniform(0.0, 0.3))
                killed.extend(_killed(cluster, victim, chance))

        results = run_job(cluster.url, tmp_path / "job", kill_one)
    assert len(killed) >= (LOADS // 2 if victim == "Python workers" else 1)
    assert results == expected()


def _killed(cluster: StandaloneCluster, victim: str, chance: random.Random) -> list[int]:
    alive = cluster.python_workers() if victim == "Python workers" else cluster.executors()
    if not alive:
        return []
    chosen = chance.choice(alive)
    try:
        chosen.kill()
    except psutil.NoSuchProcess:
        return []
    return [chosen.pid]
