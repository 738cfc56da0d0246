"""Two runs of one pipeline: the second is sent away. Two pipelines with common relations do not disturb each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etl.errors import PipelineBusy
from etl.storage.lookup_store import open_relation
from tests.jobs.killing import wait_until
from tests.jobs.order_run import pipeline_in
from tests.jobs.warehouse_contents import contents_of, number_of
from tests.jobs.without_spark import SHARED_ROWS, run_made_up_load

LOADS = 4


@contextmanager
def started(
    folder: Path, name: str = "orders", relations: Path | None = None, loads: int = LOADS, seed: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """A process that has the pipeline's lock and waits to be told to begin."""
    arguments = [str(folder), name, str(relations or folder / "relations"), str(loads), str(seed)]
    command = [sys.executable, "-m", "tests.jobs.without_spark", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_second_run_is_sent_away_with_the_name_of_the_first(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    with started(tmp_path) as first:
        with pytest.raises(PipelineBusy, match=rf"pipeline orders is being run by process {first.pid} on .* since 20"):
            pipeline.running().__enter__()
        first.kill()
        first.wait()
        with pipeline.running() as run:
            assert run.number == 2


def test_a_run_that_slept_while_another_took_over_stops_before_it_commits(tmp_path: Path) -> None:
    """It is stopped, somebody gives it up, deletes the lock and runs the pipeline to its end; then it wakes."""
    with started(tmp_path / "slept") as sleeper:
        begin(sleeper)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "load 0\n"
        sleeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state_of(sleeper.pid) == "T")
        pipeline = pipeline_in(tmp_path / "slept", shared_relations=tmp_path / "slept" / "relations")
        (pipeline.folder / "run" / "lock").unlink()
        with pipeline.running() as run:
            assert run.number == 2
            for batch_id in range(LOADS):
                run_made_up_load(pipeline, run, batch_id, seed=1)
            sleeper.send_signal(signal.SIGCONT)
            assert sleeper.wait(60) == 1
        assert sleeper.stderr is not None
        last_words = sleeper.stderr.read().splitlines()[-1]
    assert "Fenced: run 1 of pipeline orders was overtaken by run 2" in last_words
    assert f"process {os.getpid()}" in last_words

    undisturbed = pipeline_in(tmp_path / "undisturbed")
    with undisturbed.running() as run:
        for batch_id in range(LOADS):
            run_made_up_load(undisturbed, run, batch_id, seed=1)
    assert contents_of(tmp_path / "slept" / "warehouse.duckdb") == contents_of(
        tmp_path / "undisturbed" / "warehouse.duckdb"
    )


def test_two_pipelines_that_share_relations_at_once_give_each_key_one_dense_number(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with (
        started(tmp_path / "one", "one", shared, loads=8, seed=1) as one,
        started(tmp_path / "two", "two", shared, loads=8, seed=2) as two,
    ):
        begin(one)
        begin(two)
        outputs = [process.communicate(timeout=120) for process in (one, two)]
        assert [process.returncode for process in (one, two)] == [0, 0], "\n".join(errors for _, errors in outputs)
    warehouses = [tmp_path / name / "warehouse.duckdb" for name in ("one", "two")]
    contents = [contents_of(warehouse) for warehouse in warehouses]
    for table, relation in (("dim_customer", "customer"), ("dim_product", "product")):
        opened = open_relation(shared / relation)
        opened.verify()
        # The members that either pipeline brought, beside the unknown member: each number once, each key once.
        members = [row[:3] for content in contents for row in content[table] if row[0] != 0]
        assert {row[0] for row in members} == set(range(1, opened.highest + 1))
        assert len({row[1:] for row in members}) == len(members) == opened.highest
        assert all(len(content[table]) > 10 for content in contents), "the premise: both have brought some"
    orders = [row[:3] for content in contents for row in content["fact_order"]]
    assert len(set(orders)) == len(orders), "an order that both have is loaded once"
    duplicates = "select sum((counts ->> 'duplicates')::int) from load_ledger"
    assert sum(number_of(warehouse, duplicates) for warehouse in warehouses) == 8 * SHARED_ROWS


def _state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
