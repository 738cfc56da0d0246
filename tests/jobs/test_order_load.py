"""The commit order of a load: whatever step a crash comes at, running the load again gives the same warehouse.

Spark correlates once, on real feeds. The many crashed attempts take its recorded outcome, which is theirs to find
unchanged: a load that is run again gets the same rows (see the tests of the correlate host).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from etl.errors import CommitRace, TerminalError
from etl.spark.correlate import Correlated, correlate
from etl.storage.durable import FileStamp, PendingFile
from etl.storage.lookup_store import open_relation
from jobs import order_load
from jobs.demo_feeds import FeedSettings, write_feeds
from jobs.order_load import run_load
from jobs.order_pipeline import OrderPipeline
from jobs.order_resolution import CUSTOMER, Relations, Resolved, open_relations, resolve
from tests.jobs.order_run import rows_of_file
from tests.jobs.warehouse_contents import Contents, contents_of, number_of
from warehouse.engine import connect
from warehouse.errors import StaleLoad
from warehouse.schema import create_schema

FEEDS = FeedSettings(
    orders=800,
    files=3,
    customers=100,
    products=20,
    resent_orders=15,
    resent_payments=15,
    unknown_codes=10,
    malformed_orders=5,
    malformed_payments=5,
    late_orders=5,
    late_payments=5,
    lost_orders=5,
)


class Crash(BaseException):
    """No handler of the code under test may take this for an error."""


@dataclass(frozen=True)
class Recorded:
    """An undisturbed run over three loads: its correlated rows, its folder after load 1, its warehouse after load 2."""

    correlated: list[Correlated]
    after_load_1: Path
    contents: Contents


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("undisturbed")
    known = write_feeds(folder / "feeds", FEEDS)
    pipeline = pipeline_in(folder)
    correlated: list[Correlated] = []

    def recording(*arguments: object) -> Correlated:
        correlated.append(correlate(*arguments))  # type: ignore[arg-type]
        return correlated[-1]

    with pytest.MonkeyPatch.context() as patch, pipeline.running() as run:
        patch.setattr(order_load, "correlate", recording)
        for batch_id in range(FEEDS.files):
            if batch_id == 2:
                shutil.copytree(folder, folder.parent / "after_load_1")
            run_load(pipeline, run, rows_of_file(spark, folder / "feeds", batch_id), batch_id)
    assert number_of(folder / "warehouse.duckdb", "select count(*) from fact_order") == known.facts
    return Recorded(correlated, folder.parent / "after_load_1", contents_of(folder / "warehouse.duckdb"))


def pipeline_in(folder: Path) -> OrderPipeline:
    engine = connect(f"duckdb:///{folder / 'warehouse.duckdb'}")
    create_schema(engine)
    return OrderPipeline(folder / "pipeline", engine)


@pytest.fixture
def load_2(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Run load 2 on a copy of the folder, named by the argument; give the copy."""
    monkeypatch.setattr(order_load, "correlate", lambda *_: recorded.correlated[2])
    unused = pa.table({})  # what Spark would have read

    def run(name: str) -> Path:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(recorded.after_load_1, folder)
        pipeline = pipeline_in(folder)
        with pipeline.running() as run:
            run_load(pipeline, run, unused, 2)
        return folder

    return run


def crash_at_file(monkeypatch: pytest.MonkeyPatch, number: int, after: bool) -> list[str]:
    """Crash when the n-th file is made durable, right before it becomes visible or right after; the names so far."""
    publish = PendingFile.publish
    names: list[str] = []

    def crashing(pending: PendingFile) -> FileStamp:
        if pending._name.startswith("numbers/"):  # the run's own, before any load
            return publish(pending)
        names.append(pending._name)
        if len(names) == number and not after:
            raise Crash
        stamp = publish(pending)
        if len(names) == number:
            raise Crash
        return stamp

    monkeypatch.setattr(PendingFile, "publish", crashing)
    return names


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_durable_file_is_repaired_by_running_the_load_again(
    recorded: Recorded, load_2: Callable[[str], Path], after: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        names = crash_at_file(patch, number=0, after=after)
        load_2("undisturbed")
    # What was settled (matched, late of two sides, aside, manifest), three relations with a run and a log entry each,
    # five tables, the manifest.
    assert len(names) == 5 + 6 + 5 + 1

    for number, name in enumerate(names, start=1):
        with pytest.MonkeyPatch.context() as patch:
            crash_at_file(patch, number, after)
            with pytest.raises(Crash):
                load_2(str(number))
        folder = load_2(str(number))
        assert contents_of(folder / "warehouse.duckdb") == recorded.contents, f"crash at file {number}, {name}"


@pytest.mark.parametrize("step", ["load", "retire"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_around_the_last_steps_is_repaired_too(
    recorded: Recorded, load_2: Callable[[str], Path], step: str, after: bool
) -> None:
    original = getattr(order_load, step)

    def crashing(*arguments: object) -> None:
        if after:
            original(*arguments)
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_load, step, crashing)
        with pytest.raises(Crash):
            load_2("copy")
    folder = load_2("copy")
    assert contents_of(folder / "warehouse.duckdb") == recorded.contents


def test_a_load_that_was_done_is_done(recorded: Recorded, load_2: Callable[[str], Path]) -> None:
    load_2("copy")
    folder = load_2("copy")
    assert contents_of(folder / "warehouse.duckdb") == recorded.contents


def test_keys_do_not_depend_on_the_order_of_the_rows(recorded: Recorded, tmp_path: Path) -> None:
    rows = order_load._joined_rows(recorded.correlated[0])
    relations = open_relations(tmp_path, {"CC": "credit card"})
    straight = resolve(rows, relations, "orders/0")
    shuffled = resolve(rows.take(np.random.default_rng(1).permutation(rows.num_rows)), relations, "orders/0")
    assert straight.facts.num_rows > 20
    assert shuffled.facts.sort_by("payment_no").equals(straight.facts.sort_by("payment_no"))
    assert shuffled.members == straight.members


def test_a_writer_that_was_first_keeps_its_key_and_ours_move_up(
    recorded: Recorded, load_2: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = pa.table({"source_system": ["web"], "customer_no": ["stranger"], "customer_key": [0]}, schema=CUSTOMER)
    attempts: list[int] = []

    def resolve_and_lose(rows: pa.Table, relations: Relations, load_id: str) -> Resolved:
        resolved = resolve(rows, relations, load_id)
        if not attempts:
            key = relations.customer.highest + 1
            row = stranger.set_column(2, "customer_key", pa.array([key]))
            relations.customer.append(row, "other/0", key)
        attempts.append(relations.customer.version)
        return resolved

    monkeypatch.setattr(order_load, "resolve", resolve_and_lose)
    folder = load_2("copy")

    before, brought = attempts
    assert brought == before + 1
    customers = open_relation(folder / "pipeline" / "relations" / "customer")
    assert customers.highest == customers.rows, "dense"
    contents = contents_of(folder / "warehouse.duckdb")
    assert len(contents["fact_order"]) == len(recorded.contents["fact_order"])
    assert contents["dim_customer"] != recorded.contents["dim_customer"]


def test_other_writers_without_end_are_reported(load_2: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise CommitRace("another was first")

    monkeypatch.setattr(order_load, "_committed", lose)
    with pytest.raises(CommitRace, match="load orders/00000002: other writers were first 10 times"):
        load_2("copy")


def crash_with_relations_committed(load_2: Callable[[str], Path]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_at_file(patch, number=12, after=False)
        with pytest.raises(Crash):
            load_2("copy")


@pytest.fixture
def otherwise_correlated(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt whose correlation has another outcome than the first."""
    rows = recorded.correlated[2].results
    renamed = pa.repeat(pa.scalar("C-new"), rows.num_rows)
    changed = rows.set_column(rows.column_names.index("customer_no"), "customer_no", renamed)
    other = Correlated(changed, {}, pa.table({}), {0: 0, 1: 0}, recorded.correlated[2].state)
    monkeypatch.setattr(order_load, "correlate", lambda *_: other)


@pytest.mark.usefixtures("load_2", "otherwise_correlated")
def test_what_the_first_attempt_settled_counts_for_the_second(
    recorded: Recorded, load_2: Callable[[str], Path]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_load, "correlate", lambda *_: recorded.correlated[2])
        crash_with_relations_committed(load_2)
    assert contents_of(load_2("copy") / "warehouse.duckdb") == recorded.contents


@pytest.mark.usefixtures("load_2", "otherwise_correlated")
def test_other_rows_under_the_same_load_are_refused(
    recorded: Recorded, load_2: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_load, "correlate", lambda *_: recorded.correlated[2])
        crash_with_relations_committed(load_2)
    (tmp_path / "copy/pipeline/packages/orders/settlements/00000002.json").unlink()
    with pytest.raises(TerminalError, match="relation customer, and now brings 2 other keys"):
        load_2("copy")


def test_a_code_that_is_learnt_between_two_attempts_waits_for_the_next_load(
    recorded: Recorded, load_2: Callable[[str], Path], tmp_path: Path
) -> None:
    crash_with_relations_committed(load_2)
    codes = open_relation(tmp_path / "copy/pipeline/relations/codes")
    row = {"code_set": ["payment_method"], "code": ["XX"], "code_key": [7], "label": ["a new one"]}
    codes.append(pa.table(row, schema=codes.schema), "someone/0", 7)
    assert contents_of(load_2("copy") / "warehouse.duckdb") == recorded.contents


@pytest.mark.parametrize(("batch_id", "complaint"), [(0, "ids only grow"), (3, "would skip loads")])
def test_a_load_out_of_turn_is_refused_before_anything_is_done(
    recorded: Recorded, tmp_path: Path, batch_id: int, complaint: str
) -> None:
    shutil.copytree(recorded.after_load_1, tmp_path / "copy")
    pipeline = pipeline_in(tmp_path / "copy")
    if batch_id == 0:
        (pipeline.folder / "packages/orders/packages/00000000.json").unlink()
    before = sorted(pipeline.relations.rglob("*"))
    with pipeline.running() as run, pytest.raises(StaleLoad, match=complaint):
        run_load(pipeline, run, pa.table({}), batch_id)
    assert sorted(pipeline.relations.rglob("*")) == before


def test_quarantined_rows_can_be_read_again(recorded: Recorded) -> None:
    payloads = {(row[2], row[1]): str(row[4]) for row in recorded.contents["quarantine"]}
    late = json.loads(payloads["late", "orders"])
    assert set(late) >= {"source_system", "order_no", "amount", "ordered_at"}
    assert late["ordered_at"].endswith("+00:00")
    unknown = json.loads(payloads["unknown code", "payments"])
    assert unknown["method"] in ("XX", "Q7", "cc")
