"""What the README says is so: its operator table is the catalogue, its Python example runs, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etl import joins
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
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})  # the README's own text
    assert "order_no: [3,1]" in capsys.readouterr().out


def test_the_make_targets_and_queries_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    queries = {query.name for query in named_queries()}
    assert set(re.findall(r"headrace inspect ([a-z_]+)", README)) <= queries
