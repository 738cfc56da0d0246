"""The layout is a direction: a module imports only what stands above it in one list, and that list is here.

The files are parsed, not run, so an import inside a function counts as well. Imports for the type checker
alone (`if TYPE_CHECKING:`) bind nothing at run time and are exempt.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAW = (
    "etl.errors",
    "etl.clock",
    "etl.crash_points",
    "etl.settings",
    "etl.budget",
    "etl.statistics",
    "etl.keys",
    "etl.events",
    "etl.kernels",
    "etl.rows",  # rows in memory are gathered and compared by kernels
    "etl.storage",
    "etl.joins.contract",
    "etl.joins.snapshots",
    "etl.joins.exactness",
    "etl.joins.flush_policies",
    "etl.joins.lifecycle",
    "etl.joins.results",
    "etl.joins.catalogue",
    "etl.joins.hybrid",
    "etl.joins.progressive",
    "etl.joins.multiway",
    "etl.joins.punctuated",
    "etl.joins.window",
    "etl.joins.parallel",
    "etl.joins",  # the door of the room: below its operators, because they enter the catalogue through it
    "etl.transforms",
    "etl.streams",
    "etl.spark",
    "warehouse",
    "jobs",
)
"""From above to below. An entry stands for itself and what lies in it; the longest entry that fits counts."""

STRANGERS = {("etl", "warehouse"), ("warehouse", "etl")}
"""Neither knows the other, whatever the list says."""

PRODUCT = ("etl", "warehouse", "jobs")
MAY_IMPORT_SPARK = ("etl.spark", "jobs")
DAGS = ROOT / "airflow_dags"
FORBIDDEN_IN_DAGS = ("pyspark", *PRODUCT)
"""A scheduler parses DAG files again and again: they start the `headrace` command and import none of it."""

Imports = Mapping[str, frozenset[str]]


def test_every_module_has_its_place_in_the_list() -> None:
    homeless = [module for module in _product() if _place(module) is None and module not in PRODUCT]
    assert not homeless, f"no entry of LAW fits {homeless}: give them a place"


def test_modules_import_only_what_stands_above_them() -> None:
    assert _violations(_product()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    _assert_no_circle(_product())


def test_dag_files_import_nothing_of_what_they_schedule() -> None:
    files = {path.stem: path.read_text() for path in sorted(DAGS.glob("**/*.py"))}
    assert {name: found for name, source in files.items() if (found := _forbidden_in_dag(source))} == {}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("etl.keys", "import etl.storage.ports", "etl.keys imports etl.storage.ports"),
        ("etl.kernels.merge", "from etl import rows", "etl.kernels.merge imports etl.rows"),
        ("etl.storage.durable", "from etl.joins import Rows", "etl.storage.durable imports etl.joins"),
        ("etl.joins.hybrid.meshjoin", "from etl import joins", "etl.joins.hybrid.meshjoin imports etl.joins"),
        ("etl.joins.contract", "from .catalogue import build", "etl.joins.contract imports etl.joins.catalogue"),
        ("etl.joins.contract", "from . import lifecycle", "etl.joins.contract imports etl.joins.lifecycle"),
        (
            "etl.transforms.codes",
            "def late():\n    import etl.spark.session",
            "etl.transforms.codes imports etl.spark.session",
        ),
        ("warehouse.loader", "from etl.errors import HeadraceError", "warehouse.loader imports etl.errors"),
        ("etl.spark.session", "import warehouse.engine as engine", "etl.spark.session imports warehouse.engine"),
        ("warehouse.engine", "from jobs import demo", "warehouse.engine imports jobs.demo"),
        ("etl.joins.results", "from pyspark.sql import Row", "etl.joins.results imports pyspark.sql"),
        ("etl.errors", "from tests import oracle", "etl.errors imports tests.oracle"),
    ],
)
def test_a_violation_is_found(module: str, source: str, found: str) -> None:
    imports = _imports(module, source, known={*_product(), "tests.oracle", module})
    assert _violations({module: imports}) == [found]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "etl.events",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from etl.storage.ports import RelationView",
        ),
        ("etl.events", "import typing\nif typing.TYPE_CHECKING:\n    import etl.spark.session"),
        ("etl.joins", "from etl.joins.hybrid import hash_partitioned"),
        ("etl.joins.hybrid.meshjoin", "from etl.joins.catalogue import register"),
        ("jobs.demo", "from etl.joins import build\nimport warehouse.engine, pyspark"),
        ("etl.spark.session", "import pyspark"),
    ],
)
def test_what_is_allowed_is_let_pass(module: str, source: str) -> None:
    assert _violations({module: _imports(module, source, known={*_product(), module})}) == []


def test_what_stands_beside_a_type_checking_block_counts() -> None:
    source = "if TYPE_CHECKING:\n    import etl.spark.session\nelse:\n    import etl.storage.ports"
    assert _imports("etl.events", source, known=set()) == {"etl.storage.ports"}


def test_a_circle_inside_one_entry_is_found() -> None:
    with pytest.raises(graphlib.CycleError):
        _assert_no_circle(
            {"etl.kernels.one": frozenset({"etl.kernels.two"}), "etl.kernels.two": frozenset({"etl.kernels.one"})}
        )


@pytest.mark.parametrize(
    "source", ["import pyspark", "from etl.joins import build", "import warehouse", "from jobs import demo"]
)
def test_a_dag_that_imports_too_much_is_found(source: str) -> None:
    assert _forbidden_in_dag(f"from airflow.sdk import dag\n{source}") != []


def test_the_files_are_really_read() -> None:
    product = _product()
    assert "etl.storage.ports" in product["etl.joins.catalogue"]
    assert "etl.joins.hybrid.hash_partitioned" in product["etl.joins"]
    assert "warehouse.schema" in product["jobs.demo"]


def _violations(product: Imports) -> list[str]:
    return [
        f"{module} imports {imported}"
        for module, all_imported in sorted(product.items())
        for imported in sorted(all_imported)
        if not _is_allowed(module, imported)
    ]


def _is_allowed(module: str, imported: str) -> bool:
    room, imported_room = module.partition(".")[0], imported.partition(".")[0]
    if imported_room == "pyspark":
        return any(_lies_in(module, entry) for entry in MAY_IMPORT_SPARK)
    if imported_room in ("tests", "benchmarks", "airflow_dags"):
        return False
    if imported_room not in PRODUCT:
        return True
    own_place, place = _place(module), _place(imported)
    if own_place is None or place is None:
        # The bare package, such as `etl`: its __init__ file holds nothing and imports nothing.
        return imported in PRODUCT and room == imported_room
    return (room, imported_room) not in STRANGERS and place <= own_place


def _place(module: str) -> int | None:
    fitting = [entry for entry in LAW if _lies_in(module, entry)]
    return LAW.index(max(fitting, key=len)) if fitting else None


def _lies_in(module: str, entry: str) -> bool:
    return module == entry or module.startswith(f"{entry}.")


def _assert_no_circle(product: Imports) -> None:
    graphlib.TopologicalSorter(product).prepare()


def _forbidden_in_dag(source: str) -> list[str]:
    return sorted(name for name in _imports("dag", source, known=set()) if name.partition(".")[0] in FORBIDDEN_IN_DAGS)


def _product() -> dict[str, frozenset[str]]:
    """What each module of the product imports."""
    files = {_module_of(path): path for folder in PRODUCT for path in (ROOT / folder).glob("**/*.py")}
    return {module: _imports(module, path.read_text(), known=set(files), path=path) for module, path in files.items()}


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, source: str, known: set[str], path: Path | None = None) -> frozenset[str]:
    """The modules a file imports; `from a import b` means a.b where that is a module of ours."""
    package = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
    imported: set[str] = set()
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                imported.add(inner if inner in known else base)
    return frozenset(imported)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only the type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from _statements(other)
        else:
            yield child
            yield from _statements(child)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
