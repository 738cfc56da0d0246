"""What the pages say is so: the operator table is the catalogue, the Python examples run, the commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl import joins
from etl.storage.relation import Relation
from warehouse.inspect import named_queries

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_operator_table_is_the_catalogue() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([a-z]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)
    assert rows == [
        (entry.name, entry.family, ", ".join(entry.predicates), entry.spills, entry.paper)
        for entry in joins.catalogue()
    ]


def test_the_python_example_runs_and_gives_both_matches(capsys: pytest.CaptureFixture[str]) -> None:
    _run_example(ROOT / "README.md", {})
    assert "order_no: [3,1]" in capsys.readouterr().out


def test_the_make_targets_and_queries_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    queries = {query.name for query in named_queries()}
    assert set(re.findall(r"headrace inspect ([a-z_]+)", README)) <= queries


def test_the_example_of_the_lookup_store_runs(tmp_path: Path) -> None:
    names = _run_example(ROOT / "etl/storage/README.md", {"folder": tmp_path / "customers"})
    assert names["found"].column("customer_key").to_pylist() == [2, None]
    assert _key_of(names["customers"], "C9") == 3


def test_the_example_of_the_hybrid_joins_runs(tmp_path: Path) -> None:
    store = _run_example(ROOT / "etl/storage/README.md", {"folder": tmp_path / "customers"})
    results: list[pa.RecordBatch] = []
    batch = pa.record_batch({"src": pa.array([1, 1], pa.int32()), "no": ["C2", "C7"]})
    given = {
        "stream_schema": batch.schema,
        "batch": batch,
        "customers": store["customers"].at(1),
        "newer": store["customers"],
        "emit": results.append,
    }
    _run_example(ROOT / "etl/joins/hybrid/README.md", given)
    answers = pa.Table.from_batches(results).sort_by("no").select(["no", "customer_key", "relation_version"])
    assert answers.to_pylist() == [
        {"no": "C2", "customer_key": 2, "relation_version": 1},
        {"no": "C7", "customer_key": None, "relation_version": 1},
    ]


def _run_example(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(example, names)  # the page's own text
    return names


def _key_of(customers: Relation, customer_no: str) -> int | None:
    asked = pa.table({"source": pa.array([1], pa.int32()), "customer_no": [customer_no]})
    key: int | None = customers.look_up(asked, [(name, name) for name in asked.column_names])["customer_key"][0].as_py()
    return key
