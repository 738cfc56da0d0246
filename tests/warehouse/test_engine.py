import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from warehouse.engine import connect
from warehouse.errors import WarehouseBusy, WarehouseUnusable

HOLDER = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reading")
print("held", flush=True)
time.sleep(float(sys.argv[3]))
connection.close()
"""


@pytest.mark.parametrize("url", ["duckdb:///:memory:", "duckdb://"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(WarehouseUnusable, match=r"is a database in memory.*name a file"):
        connect(url)


def test_a_file_held_by_another_process_is_reported_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "warehouse.duckdb"
    with _held(path, "writing", seconds=60) as holder:
        engine = connect(f"duckdb:///{path}", longest_wait_seconds=0.1)
        started = time.monotonic()
        with pytest.raises(WarehouseBusy, match=rf"is held by .*PID {holder}.* within 0.1 s: close that program"):
            engine.connect()
        assert time.monotonic() - started < 5


def test_a_file_that_becomes_free_in_time_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "warehouse.duckdb"
    with _held(path, "writing", seconds=0.3):
        assert _one(connect(f"duckdb:///{path}", longest_wait_seconds=20)) == 1


def test_this_process_in_another_mode_is_named(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path / 'warehouse.duckdb'}"
    with connect(url).connect():
        reader = connect(url, read_only=True, longest_wait_seconds=0.05)
        with pytest.raises(WarehouseBusy, match=r"held by this process, in another mode"):
            reader.connect()
    assert _one(reader) == 1


def test_readers_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "warehouse.duckdb"
    assert _one(connect(f"duckdb:///{path}")) == 1
    with _held(path, "reading", seconds=60):
        assert _one(connect(f"duckdb:///{path}", read_only=True, longest_wait_seconds=0)) == 1


def test_what_will_not_get_better_is_reported_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WarehouseUnusable, match=r"cannot open the warehouse .*database does not exist"):
        connect(f"duckdb:///{tmp_path / 'missing.duckdb'}", read_only=True).connect()
    (tmp_path / "text.duckdb").write_text("no database " * 2_000)
    with pytest.raises(WarehouseUnusable, match=r"text.duckdb: .*not a valid DuckDB database file"):
        connect(f"duckdb:///{tmp_path / 'text.duckdb'}").connect()
    assert time.monotonic() - started < 5


def test_no_connection_outlives_its_use(engine: Engine, tmp_path: Path) -> None:
    assert _one(engine) == 1
    with _held(tmp_path / "warehouse.duckdb", "writing", seconds=0):
        pass  # another process could open the file although the engine lives on


def _one(engine: Engine) -> object:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT 1"))


@contextmanager
def _held(path: Path, mode: str, seconds: float) -> Iterator[int]:
    """Another process has the file open; gives its process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, mode, str(seconds)], stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    with process, process.stdout as output:
        assert output.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            if seconds >= 60:  # held for as long as the test needs it
                process.kill()
