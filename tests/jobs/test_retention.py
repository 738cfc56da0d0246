"""After a load, what no kept package names goes: a pipeline's folder does not grow with the number of its loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.errors import Fenced
from etl.spark.correlate import CorrelationState
from etl.storage.durable import DurableFolder
from jobs.demo_feeds import write_feeds
from jobs.order_load import run_load
from jobs.order_retention import PACKAGES_KEPT
from tests.jobs.order_run import SMALL, pipeline_in, rows_of_file
from tests.jobs.without_spark import run_made_up_load

LOADS = 14


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_folder_does_not_grow_with_the_number_of_loads(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    sizes, folders = [], []
    with pipeline.running() as run:
        for batch_id in range(LOADS):
            run_made_up_load(pipeline, run, batch_id)
            sizes.append(len(files_in(pipeline.folder)))
            folders.append(sum(path.is_dir() for path in pipeline.folder.rglob("*")))
    assert [package.load_id.batch_id for package in pipeline.packages.all()] == [LOADS - 3, LOADS - 2, LOADS - 1]
    # Relations are compacted when there are two deltas, so their files come and go; the index of the loads that a
    # relation has seen takes a further file whenever their number has doubled.
    assert max(sizes[-4:]) <= max(sizes[3:7]) + 6
    assert folders[-1] <= folders[4]


def test_snapshots_that_a_kept_package_names_stay_and_all_others_go(spark: SparkSession, tmp_path: Path) -> None:
    write_feeds(tmp_path / "feeds", SMALL)
    pipeline = pipeline_in(tmp_path)
    snapshots = DurableFolder(pipeline.folder / "snapshots")
    leftovers = ["orders/00000000/left-by-a-crash", "orders/00000002/left-by-a-crash"]
    being_written = ["orders/00000004/another-attempt", "orders/00000005/another-run"]
    with pipeline.running() as run:
        for batch_id in range(5):
            if batch_id == 4:
                for name in (*leftovers, *being_written):
                    snapshots.put(name, [b"state"])
            run_load(pipeline, run, rows_of_file(spark, tmp_path / "feeds", batch_id), batch_id)
    kept = pipeline.packages.all()
    assert len(kept) == PACKAGES_KEPT
    named: set[str] = set()
    for package in kept:
        state = CorrelationState.from_json(package.details["correlation"])  # type: ignore[arg-type]
        assert state.file_names(), "the premise: rows are waiting"
        named |= state.file_names()
    assert set(snapshots.names()) == named | set(being_written)


def test_tables_of_crashed_attempts_go_with_their_load(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    packages = DurableFolder(pipeline.folder / "packages")
    with pipeline.running() as run:
        for batch_id in range(5):
            if batch_id in (0, 4):
                packages.put(f"orders/tables/{batch_id:08d}/crashed/fact_order.arrow", [b"half of it"])
            run_made_up_load(pipeline, run, batch_id)
    left = [name for name in packages.names() if "crashed" in name]
    assert left == ["orders/tables/00000004/crashed/fact_order.arrow"]
    assert sorted({name.split("/")[2][:8] for name in packages.names()}) == ["00000002", "00000003", "00000004"]


def test_a_run_that_was_overtaken_deletes_nothing(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    with pipeline.running() as run:
        for batch_id in range(PACKAGES_KEPT + 1):
            run_made_up_load(pipeline, run, batch_id)
        (pipeline.folder / "run" / "lock").unlink()
        with pipeline.running():
            before = files_in(pipeline.folder)
            with pytest.raises(Fenced):
                run_made_up_load(pipeline, run, PACKAGES_KEPT)  # it is published: only the retirement is left
            assert files_in(pipeline.folder) == before
