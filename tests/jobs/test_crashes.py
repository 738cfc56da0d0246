"""Whatever is killed and whenever: after restarts the warehouse is that of a run that nobody disturbed.

Row for row and key for key: dimensions with their surrogate keys, facts, quarantined rows, the counts of the ledger.
The default suite kills one load at every crash point of the driver that comes after Spark's part. The slow one kills
whole runs, with Java and all, at every crash point; then drivers, Python workers and executors at random instants.
HEADRACE_KILLS says how many kills the slow tests add up to, 200 by default.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.crash_points import IN_WORKERS, VARIABLE, CrashPoint
from jobs import order_load
from jobs.demo_feeds import write_feeds
from jobs.order_load import run_load
from jobs.order_stream import run_stream
from tests.jobs.killing import LONGEST_SECONDS, Killer, PythonWorkers, Victim, executors
from tests.jobs.order_run import SMALL, pipeline_in, rows_of_file
from tests.jobs.warehouse_contents import Contents, contents_of

KILLS = int(os.environ.get("HEADRACE_KILLS", "200"))
RELATIONS, TABLES, CHANGING_RELATIONS = 4, 5, 3
TIMES = {
    CrashPoint.BEFORE_RELATION_COMMIT: CHANGING_RELATIONS,
    CrashPoint.AFTER_RELATION_COMMIT: CHANGING_RELATIONS,
    CrashPoint.BEFORE_TABLE: TABLES,
    CrashPoint.AFTER_TABLE: TABLES,
    CrashPoint.BEFORE_UPKEEP: RELATIONS,
    CrashPoint.AFTER_UPKEEP: RELATIONS,
}
"""How often a load passes the points that it does not pass just once."""

EVERY_POINT = [
    f"{point}:{time}" for point in CrashPoint if point not in IN_WORKERS for time in range(1, TIMES.get(point, 1) + 1)
]
SETTLING = (CrashPoint.BEFORE_SETTLEMENT, CrashPoint.AFTER_SETTLEMENT)
# What is left of the kills after every point was hit once.
RANDOM_KILLS = max(KILLS - len(EVERY_POINT) - len(IN_WORKERS), 8)
DRIVER_KILLS = RANDOM_KILLS // 4
EXECUTOR_KILLS = RANDOM_KILLS // 16
WORKER_KILLS = RANDOM_KILLS - DRIVER_KILLS - EXECUTOR_KILLS


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feeds")
    write_feeds(folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, feeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    folder = tmp_path_factory.mktemp("undisturbed")
    pipeline = pipeline_in(folder)
    with pipeline.running() as run:
        run_stream(spark, pipeline, run, feeds, folder / "checkpoint")
    contents = contents_of(folder / "warehouse.duckdb")
    assert len(contents["load_ledger"]) == SMALL.files
    assert {row[2] for row in contents["quarantine"]} == {"malformed", "late", "unknown code"}
    return contents


def test_a_load_that_dies_at_any_crash_point_is_repaired_by_repeating_it(
    spark: SparkSession, feeds: Path, tmp_path: Path
) -> None:
    last = 3
    settled = tmp_path / "settled"
    pipeline = pipeline_in(settled)
    with pipeline.running() as run:
        for batch_id in range(last):
            run_load(pipeline, run, rows_of_file(spark, feeds, batch_id), batch_id)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order_load, "_resolved_and_committed", _stop)
            with pytest.raises(Stop):
                run_load(pipeline, run, rows_of_file(spark, feeds, last), last)
    shutil.copytree(settled, tmp_path / "undisturbed")
    pipeline = pipeline_in(tmp_path / "undisturbed")
    with pipeline.running() as run:
        run_load(pipeline, run, spark.range(0), last)
    undisturbed = contents_of(tmp_path / "undisturbed" / "warehouse.duckdb")

    # Those with several occurrences at the last one; the slow tests take all.
    points = [f"{point}:{TIMES.get(point, 1)}" for point in CrashPoint if point not in (*IN_WORKERS, *SETTLING)]
    command = [sys.executable, "-m", "tests.jobs.dying_loads", str(settled), str(last), *points]
    deaths = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)

    assert deaths.stdout.split("\n") == [*(f"{point} True True" for point in points), ""], deaths.stderr
    for point in points:
        assert contents_of(tmp_path / point.replace(":", "-") / "warehouse.duckdb") == undisturbed, point


class Stop(Exception):
    """Here the recording ends."""


def _stop(*_: object) -> None:
    raise Stop


@pytest.mark.slow
def test_killed_at_every_crash_point(feeds: Path, undisturbed: Contents, tmp_path: Path) -> None:
    """In the order of a load: the kills before its commit point hit the same load again and again."""
    victim = Victim(tmp_path / "victim", feeds)
    for point in EVERY_POINT:
        victim.killed_at(point)
    assert victim.finished() == 0
    assert victim.contents == undisturbed
    print(f"{victim.kills} kills at crash points")


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(IN_WORKERS))
def test_a_worker_killed_at_a_crash_point_is_replaced_and_leaves_no_trace(
    feeds: Path, undisturbed: Contents, tmp_path: Path, point: CrashPoint
) -> None:
    victim = Victim(tmp_path / "victim", feeds)
    died = tmp_path / "died"
    assert victim.finished(**{VARIABLE: f"{point}:3:{died}"}) == 0
    assert died.exists()
    assert victim.contents == undisturbed


@pytest.mark.slow
def test_drivers_killed_at_random_instants(feeds: Path, undisturbed: Contents, tmp_path: Path) -> None:
    chance = random.Random(20260301)
    kills, attempt = 0, 0
    while kills < DRIVER_KILLS:
        attempt += 1
        victim = Victim(tmp_path / f"victim-{attempt}", feeds)
        # The first load takes seconds, later ones less than one: an even choice would mostly hit the first.
        while kills + victim.kills < DRIVER_KILLS:
            if not victim.killed_after(chance.choice([0.0, 3.0]) + 4 * chance.random()):
                break
        kills += victim.kills
        assert victim.finished() == 0
        assert victim.contents == undisturbed, f"victim {attempt} after {victim.kills} kills"
    print(f"{kills} drivers killed, {attempt} pipelines run to their end")


@pytest.mark.slow
@pytest.mark.parametrize("speculation", ["false", "true"])
def test_workers_killed_at_random(feeds: Path, undisturbed: Contents, tmp_path: Path, speculation: str) -> None:
    """With speculation, Spark starts tasks a second time that take longer than others: two attempts at once."""
    arguments = (
        *("--master", "local[2,64]", "--spark", f"spark__speculation={speculation}"),
        *("--spark", "spark__speculation__interval=10ms", "--spark", "spark__speculation__multiplier=1.01"),
        *("--spark", "spark__speculation__minTaskRuntime=1ms", "--spark", "spark__speculation__quantile=0.1"),
    )
    _kill_beside(feeds, undisturbed, tmp_path, arguments, WORKER_KILLS // 2, workers=True)


@pytest.mark.slow
def test_executors_killed_at_random(feeds: Path, undisturbed: Contents, tmp_path: Path) -> None:
    arguments = ("--master", "local-cluster[2,1,1024]", "--spark", "spark__task__maxFailures=64")
    _kill_beside(feeds, undisturbed, tmp_path, arguments, EXECUTOR_KILLS, workers=False)


def _kill_beside(
    feeds: Path, undisturbed: Contents, tmp_path: Path, arguments: tuple[str, ...], wanted: int, workers: bool
) -> None:
    """One run after the other until there were enough kills; a run that lost a task too often is continued."""
    pause = (0.3, 1.5) if workers else (2.0, 8.0)
    kills, attempt = 0, 0
    while kills < wanted:
        attempt += 1
        victim = Victim(tmp_path / f"victim-{attempt}", feeds, arguments)
        code = -1
        while code != 0:
            with victim.running() as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "started\n"
                with Killer(process.pid, PythonWorkers() if workers else executors, pause) as killer:
                    process.stdout.read()
                    code = process.wait()
            kills += killer.kills
            assert code in (0, 1), f"attempt {attempt} ended with {code}"
        assert victim.contents == undisturbed, f"attempt {attempt}, {kills} kills so far"
    print(f"{kills} {'workers' if workers else 'executors'} killed, {attempt} pipelines run to their end")
