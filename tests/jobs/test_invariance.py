"""Where and in which portions rows are processed changes no fact, and no key if the portions are the same.

Partition groups, masters and task attempts are Spark's business; loads are cut by the source. The surrogate keys of a
load depend on the rows of the load, so other cuts give other numbers to the same members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from etl.spark.correlate import CorrelationState
from jobs.demo_feeds import write_feeds
from jobs.order_load import run_load
from tests.jobs.killing import Victim
from tests.jobs.order_run import SMALL, pipeline_in, rows_of_file
from tests.jobs.warehouse_contents import contents_of, natural_contents_of

FILES_USED = 4
ONE_BY_ONE = [[file] for file in range(FILES_USED)]
GROUPS_AND_SLOTS = ((16, 1), (16, 2), (16, 7), (16, 16), (1, 1), (7, 2))


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feeds")
    write_feeds(folder, SMALL)
    return folder


def loaded(
    spark: SparkSession,
    feeds: Path,
    folder: Path,
    cuts: Sequence[Sequence[int]] = ONE_BY_ONE,
    groups: int = 8,
    slots: int | None = None,
) -> Path:
    """The warehouse after one load for each cut."""
    pipeline = pipeline_in(folder, groups=groups, slots=slots)
    with pipeline.running() as run:
        for batch_id, files in enumerate(cuts):
            run_load(pipeline, run, rows_of_file(spark, feeds, *files), batch_id)
    return folder / "warehouse.duckdb"


@pytest.fixture(scope="module")
def reference(spark: SparkSession, feeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Here groups move from slot to slot after every load."""
    return loaded(spark, feeds, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(("groups", "slots"), GROUPS_AND_SLOTS)
def test_the_same_cuts_give_the_same_facts_and_keys_in_any_number_of_groups_and_slots(
    spark: SparkSession, feeds: Path, reference: Path, tmp_path: Path, groups: int, slots: int
) -> None:
    contents = contents_of(loaded(spark, feeds, tmp_path, groups=groups, slots=slots))
    assert contents == contents_of(reference)
    assert len(contents["fact_order"]) > 100


def test_groups_are_really_moved_meanwhile(reference: Path) -> None:
    placements = set()
    for package in pipeline_in(reference.parent).packages.all():
        state = CorrelationState.from_json(cast(Mapping[str, object], package.details["correlation"]))
        assert state.balance is not None
        placements.add(state.balance.placement)
    assert len(placements) > 1


@pytest.mark.parametrize("cuts", [[[0, 1], [2, 3]], [[0], [1, 2], [3]]], ids=["in-twos", "unevenly"])
def test_other_cuts_give_the_same_facts(
    spark: SparkSession, feeds: Path, reference: Path, tmp_path: Path, cuts: Sequence[Sequence[int]]
) -> None:
    warehouse = loaded(spark, feeds, tmp_path, cuts)
    assert natural_contents_of(warehouse) == natural_contents_of(reference)
    assert contents_of(warehouse) != contents_of(reference), "the premise: loads are cut otherwise"


@pytest.mark.slow
def test_other_masters_give_the_same_facts_and_keys(feeds: Path, tmp_path: Path) -> None:
    contents = []
    for number, master in enumerate(("local[2]", "local[1]", "local[7]", "local-cluster[2,1,1024]")):
        victim = Victim(tmp_path / str(number), feeds, ("--master", master, "--groups", str(2 + 5 * number)))
        assert victim.finished() == 0
        contents.append(victim.contents)
    assert len(contents[0]["load_ledger"]) == SMALL.files
    assert contents[1:] == contents[:1] * 3


@pytest.mark.slow
def test_the_streams_own_cuts_give_the_same_facts(feeds: Path, tmp_path: Path) -> None:
    natural = []
    for files_per_load in (1, 2):
        victim = Victim(tmp_path / str(files_per_load), feeds, ("--files-per-load", str(files_per_load)))
        assert victim.finished() == 0
        assert len(victim.contents["load_ledger"]) == SMALL.files // files_per_load
        natural.append(natural_contents_of(victim.folder / "warehouse.duckdb"))
    assert natural[0] == natural[1]
