"""The demo as a user runs it: in a process of its own, on few orders, killed in the middle, continued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.demo_feeds import KnownNumbers
from tests.jobs.warehouse_contents import contents_of, number_of

ORDERS = "3000"
DONE, FAILED, TRY_AGAIN = 0, 1, 75
LOADS = 8


@dataclass(frozen=True)
class Finished:
    """A run to the end, never disturbed."""

    folder: Path
    output: str

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse.duckdb"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    run = headrace("demo", "--folder", str(folder), "--orders", ORDERS)
    assert (run.returncode, run.stderr) == (DONE, "")
    return Finished(folder, run.stdout)


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "jobs.command", *arguments]


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that is killed at the end of the block, without a chance to tidy up."""
    with subprocess.Popen(
        command("demo", "--folder", str(folder), *arguments), stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def wait_for_load(demo: subprocess.Popen[str]) -> str:
    """The next line that reports a load."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("load "):
            return line
    raise AssertionError("the demo ended before it was killed")


def loads_in(folder: Path) -> int:
    return number_of(folder / "warehouse.duckdb", "select count(*) from load_ledger")


def test_every_count_is_as_known(finished: Finished) -> None:
    assert finished.output.count("as known") == 11
    assert "DIFFERS" not in finished.output
    known = KnownNumbers.from_json((finished.folder / "feeds" / "known.json").read_text())
    assert f"feeds: {known.orders_rows:,} orders, {known.payments_rows:,} payments" in finished.output


def test_the_output_is_ours_alone_and_readable_in_a_pipe(finished: Finished) -> None:
    for noise in ("WARN", "incubator", "Exception", "\x1b", "┃"):
        assert noise not in finished.output
    lines = finished.output.splitlines()
    loads = [line for line in lines if line.startswith("load ")]
    assert len(loads) == LOADS
    assert max(len(line) for line in loads) <= 80
    assert all(line.endswith(" s") for line in loads), "none is wrapped"
    assert any("rows/s" in line for line in lines)


def test_the_printed_command_inspects_the_tables(finished: Finished) -> None:
    printed = next(line for line in finished.output.splitlines() if " inspect sales_by_method" in line)
    arguments = printed.split(" inspect ", 1)[1].split()
    shown = headrace("inspect", *arguments)
    assert (shown.returncode, shown.stderr) == (DONE, "")
    assert "credit card" in shown.stdout


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from fact_order f anti join dim_customer c using (customer_key)",
        "select count(*) from fact_order f anti join dim_product p using (product_key)",
        "select count(*) from fact_order f anti join dim_payment_method m using (payment_method_key)",
        "select count(*) - count(distinct (source_system, order_no, payment_no)) from fact_order",
        "select count(*) - count(distinct (source_system, customer_no)) from dim_customer",
        "select count(*) - count(distinct (source_system, product_no)) from dim_product",
        # Dense from 1, beside the unknown member 0.
        "select max(customer_key) + 1 - count(*) from dim_customer",
        "select max(product_key) + 1 - count(*) from dim_product",
        "select min(customer_key) + min(product_key) from dim_customer, dim_product",
        "select count(*) from quarantine where reason <> 'malformed' and not json_valid(payload)",
    ],
)
def test_the_tables_hold_no_orphans_no_duplicates_and_dense_keys(finished: Finished, query: str) -> None:
    assert number_of(finished.warehouse, query) == 0


def test_the_tables_hold_the_known_numbers(finished: Finished) -> None:
    known = json.loads((finished.folder / "feeds" / "known.json").read_text())
    assert number_of(finished.warehouse, "select count(*) from fact_order") == known["facts"]
    assert number_of(finished.warehouse, "select count(*) from quarantine") == known["quarantined"]
    assert number_of(finished.warehouse, "select max(customer_key) from dim_customer") == known["customers"]
    assert number_of(finished.warehouse, "select max(product_key) from dim_product") == known["products"]


def test_killed_twice_and_continued_it_ends_as_if_nothing_had_happened(finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running_demo(folder, "--orders", ORDERS) as demo:
        wait_for_load(demo)

        # Meanwhile others look, and a second demo is sent away.
        shown = headrace("inspect", "loads", "--warehouse", f"duckdb:///{folder / 'warehouse.duckdb'}")
        assert (shown.returncode, shown.stderr) == (DONE, "")
        assert "orders" in shown.stdout
        second = headrace("demo", "--folder", str(folder))
        assert second.returncode == TRY_AGAIN
        assert f"pipeline orders is being run by process {demo.pid} on" in second.stderr
        assert demo.poll() is None, "it ran to its end before it could be killed"
    assert 1 <= loads_in(folder) < LOADS

    with running_demo(folder, "--continue") as demo:
        wait_for_load(demo)
        time.sleep(0.15)  # into the middle of a load

    continued = headrace("demo", "--folder", str(folder), "--continue")

    assert (continued.returncode, continued.stderr) == (DONE, "")
    assert contents_of(folder / "warehouse.duckdb") == contents_of(finished.warehouse)


def test_a_second_run_starts_over_and_agrees(finished: Finished, tmp_path: Path) -> None:
    before = contents_of(finished.warehouse)
    again = headrace("demo", "--folder", str(finished.folder), "--orders", ORDERS)
    assert again.returncode == DONE
    assert again.stdout.count("\nload ") == LOADS
    assert contents_of(finished.warehouse) == before


def test_a_folder_with_foreign_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    run = headrace("demo", "--folder", str(tmp_path))
    assert run.returncode == FAILED
    assert "'thesis.tex', which no demo made: name an empty folder" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_too_few_orders_are_one_sentence(tmp_path: Path) -> None:
    run = headrace("demo", "--folder", str(tmp_path), "--orders", "50")
    assert run.returncode == FAILED
    assert "orders are left for" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_without_java_the_remedy_is_one_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    run = headrace("demo", "--folder", str(tmp_path / "demo"), PATH=str(tmp_path), JAVA_HOME="")
    assert run.returncode == FAILED
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert "Spark needs Java 17 or newer and no 'java' was found: install it" in run.stderr
    assert not (tmp_path / "demo").exists()


def test_inspecting_a_warehouse_that_is_not_there(tmp_path: Path) -> None:
    run = headrace("inspect", "loads", "--warehouse", f"duckdb:///{tmp_path / 'none.duckdb'}")
    assert run.returncode == FAILED
    assert "none.duckdb" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("no_such_query", "no query is named 'no_such_query'"),
        ("select nothing from nowhere", "the query failed"),
        ("drop table fact_order", "only reads"),
    ],
)
def test_a_bad_query_is_one_clear_message(finished: Finished, query: str, complaint: str) -> None:
    run = headrace("inspect", query, "--warehouse", f"duckdb:///{finished.warehouse}")
    assert run.returncode == FAILED
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
