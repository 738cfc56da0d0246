import os
import subprocess
import sys
import zipfile
from pathlib import Path

import duckdb
import pytest

from warehouse import sql_files

FOLDERS = sorted(path.name for path in sql_files.ROOT.iterdir() if path.is_dir())
FILES = [(folder, name) for folder in FOLDERS for name in sql_files.names(folder)]


def test_the_folders_of_the_warehouse_are_there() -> None:
    assert {"schema", "dimensions", "facts", "inspect"} <= set(FOLDERS)
    assert ("inspect", "loads") in FILES


@pytest.mark.parametrize(("folder", "name"), FILES)
def test_a_file_holds_one_statement(folder: str, name: str) -> None:
    statement = sql_files.read(folder, name).replace(":load_id", "$load_id")  # DuckDB's spelling of a parameter
    assert len(duckdb.extract_statements(statement)) == 1


def test_a_description_is_the_first_line() -> None:
    assert sql_files.describe("inspect", "loads") == "the load ledger, newest first: what each load brought"
    with pytest.raises(ValueError, match=r"schema/quarantine.sql does not begin with a line"):
        sql_files.describe("schema", "quarantine")


def test_a_missing_file_is_named_with_those_that_are_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"no SQL file .*/inspect/nothing.sql; .* freshness, loads"):
        sql_files.read("inspect", "nothing")


def test_a_wheel_carries_the_files(tmp_path: Path) -> None:
    root = sql_files.ROOT.parent
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    installed = tmp_path / "installed"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    found = subprocess.run(
        [sys.executable, "-c", "from warehouse import sql_files as s; print(s.ROOT, *s.names('inspect'))"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(installed / "sql"), *sql_files.names("inspect")]
