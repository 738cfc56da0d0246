import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import AlreadyPublished, StorageError
from etl.storage.durable import DurableFolder
from etl.storage.durable import FileStamp as DurableStamp
from warehouse.errors import CorruptPackage, ForeignPackage, PackageError, StaleLoad
from warehouse.load_package import JSON, FileStamp, LoadId, LoadPackage, LoadPackages

ROWS = pa.table({"key": [1, 2, None], "name": ["a", "", None]})


def test_a_package_is_found_again_as_it_was_published(tmp_path: Path) -> None:
    published = _publish(tmp_path, 7, counts={"matched": 3}, details={"offsets": {"orders": [1, None]}})
    found = LoadPackages(DurableFolder(tmp_path), "demo").find(LoadId("demo", 7))
    assert found == published
    assert found is not None
    assert found.table("rows").equals(ROWS)
    assert (found.counts, found.details) == ({"matched": 3}, {"offsets": {"orders": [1, None]}})
    assert str(found.load_id) == "demo/00000007"


def test_an_empty_table_and_a_package_without_tables(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    stamp = packages.write_table(LoadId("demo", 0), 0, "rows", ROWS.slice(0, 0))
    assert packages.publish(LoadId("demo", 0), {"rows": stamp}, {}, {}).table("rows").equals(ROWS.slice(0, 0))
    bare = packages.publish(LoadId("demo", 1), {}, {}, {})
    with pytest.raises(PackageError, match=r"load demo/00000001 has no table 'rows', only none"):
        bare.table("rows")


def test_publishing_again_gives_the_first(tmp_path: Path) -> None:
    first = _publish(tmp_path, 3, counts={"matched": 1})
    again = _publish(tmp_path, 3, counts={"matched": 2}, attempt="second")
    assert again == first
    assert again.counts == {"matched": 1}


def test_the_loser_of_a_race_gets_the_winners_package(tmp_path: Path) -> None:
    class RaceFolder(DurableFolder):
        """A rival publishes at the last moment: after our checks, before our manifest."""

        def put(self, name: str, parts: Iterable[bytes | bytearray | memoryview | pa.Buffer]) -> DurableStamp:
            if name.endswith(".json"):
                _publish(tmp_path, 3, counts={"matched": 1}, attempt="rival")
            return super().put(name, parts)

    packages = LoadPackages(RaceFolder(tmp_path), "demo")
    stamp = packages.write_table(LoadId("demo", 3), "ours", "rows", ROWS)
    assert packages.publish(LoadId("demo", 3), {"rows": stamp}, {"matched": 2}, {}).counts == {"matched": 1}


def test_another_error_of_the_folder_is_passed_on(tmp_path: Path) -> None:
    class FullDisk(DurableFolder):
        def put(self, name: str, parts: Iterable[bytes | bytearray | memoryview | pa.Buffer]) -> DurableStamp:
            raise StorageError("no space left")

    with pytest.raises(StorageError, match="no space left"):
        LoadPackages(FullDisk(tmp_path), "demo").publish(LoadId("demo", 3), {}, {}, {})


def test_ids_only_grow(tmp_path: Path) -> None:
    _publish(tmp_path, 4)
    _publish(tmp_path, 9)
    with pytest.raises(StaleLoad, match=r"load demo/00000008 comes after demo/00000009, and ids only grow"):
        _publish(tmp_path, 8)
    assert _publish(tmp_path, 4, attempt="again").load_id.batch_id == 4


def test_the_latest_has_the_highest_number_not_the_last_name(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    assert packages.latest() is None
    for batch_id in (2, 99_999_999, 100_000_000):
        _publish(tmp_path, batch_id)
    LoadPackages(DurableFolder(tmp_path), "other").publish(LoadId("other", 200_000_000), {}, {}, {})
    latest = packages.latest()
    assert latest is not None
    assert latest.load_id == LoadId("demo", 100_000_000)


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    package = _publish(tmp_path, 0)
    path = tmp_path / package.tables["rows"].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptPackage, match=r"file demo/tables/00000000/first/rows.arrow of load demo/0"):
        package.table("rows")


@pytest.mark.parametrize("change", [("counts", {"matched": 99}), ("batch_id", 5), ("surplus", 1)])
def test_a_changed_manifest_is_refused(tmp_path: Path, change: tuple[str, JSON]) -> None:
    _publish(tmp_path, 0)
    path = tmp_path / "demo/packages/00000000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), change[0]: change[1]}))
    with pytest.raises(CorruptPackage, match=r"manifest demo/packages/00000000.json was changed"):
        LoadPackages(DurableFolder(tmp_path), "demo").latest()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "new"}'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    _publish(tmp_path, 0)
    (tmp_path / "demo/packages/00000000.json").write_text(text)
    with pytest.raises(CorruptPackage, match=r"manifest demo/packages/00000000.json is no manifest"):
        LoadPackages(DurableFolder(tmp_path), "demo").find(LoadId("demo", 0))


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    _publish(tmp_path, 0)
    path = tmp_path / "demo/packages/00000000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(ForeignPackage, match=r"demo/packages/00000000.json has format 2.*reads up to 1: run the newer"):
        LoadPackages(DurableFolder(tmp_path), "demo").latest()


def test_a_table_that_was_not_written_cannot_be_published(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    missing = FileStamp("demo/tables/00000000/0/rows.arrow", 1, "0")
    with pytest.raises(PackageError, match=r"'rows' is to be published, but its file demo/tables/.* does not exist"):
        packages.publish(LoadId("demo", 0), {"rows": missing}, {}, {})
    assert packages.latest() is None


def test_an_attempt_writes_a_table_once(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    packages.write_table(LoadId("demo", 0), 1, "rows", ROWS)
    with pytest.raises(AlreadyPublished):
        packages.write_table(LoadId("demo", 0), 1, "rows", ROWS)
    packages.write_table(LoadId("demo", 0), 2, "rows", ROWS)


@pytest.mark.parametrize("pipeline", ["", "../demo", "a/b", ".hidden", "with space"])
def test_a_pipeline_name_that_could_lead_astray_is_refused(tmp_path: Path, pipeline: str) -> None:
    with pytest.raises(PackageError, match=r"cannot name a pipeline: use letters"):
        LoadPackages(DurableFolder(tmp_path), pipeline)


def test_loads_of_other_pipelines_and_negative_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"load other/00000001 does not belong to pipeline demo"):
        LoadPackages(DurableFolder(tmp_path), "demo").find(LoadId("other", 1))
    with pytest.raises(PackageError, match=r"pipeline demo: batch id -1 is negative"):
        LoadId("demo", -1)


def test_what_was_settled_first_counts_for_all_attempts(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    load_id = LoadId("demo", 0)
    assert packages.find_settlement(load_id) is None
    rows = pa.table({"number": [1, 2]})
    stamp = packages.write_table(load_id, "first", "_rows", rows)
    first = packages.settle(load_id, {"_rows": stamp}, {"rows": 2}, {"version": 7})
    assert packages.settle(load_id, {}, {}, {"version": 8}) == first
    found = LoadPackages(DurableFolder(tmp_path), "demo").find_settlement(load_id)
    assert found == first
    assert found.table("_rows").equals(rows)
    assert (found.counts, found.details) == ({"rows": 2}, {"version": 7})
    assert packages.find(load_id) is None, "settled is not published"


@pytest.mark.parametrize(("batch_id", "complaint"), [(1, "ids only grow"), (4, "would skip loads")])
def test_only_the_load_after_the_newest_is_next(tmp_path: Path, batch_id: int, complaint: str) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    packages.check_next(LoadId("demo", 0))
    with pytest.raises(StaleLoad, match="would skip loads, there is no package"):
        packages.check_next(LoadId("demo", 1))
    packages.publish(LoadId("demo", 2), {}, {}, {})
    packages.check_next(LoadId("demo", 3))
    with pytest.raises(StaleLoad, match=complaint):
        packages.check_next(LoadId("demo", batch_id))


def test_retiring_keeps_the_newest_and_sweeps_older_attempts(tmp_path: Path) -> None:
    packages = LoadPackages(DurableFolder(tmp_path), "demo")
    packages.write_table(LoadId("demo", 1), "never-published", "rows", ROWS)
    for batch_id in range(5):
        _publish(tmp_path, batch_id)
    assert packages.retire(keep=2) == 3
    assert packages.find(LoadId("demo", 2)) is None
    kept = packages.find(LoadId("demo", 3))
    assert kept is not None
    assert kept.table("rows").equals(ROWS)
    assert sorted(path.name for path in (tmp_path / "demo/tables").rglob("*.arrow")) == ["rows.arrow"] * 2
    assert packages.retire(keep=2) == 0
    with pytest.raises(StaleLoad):  # a retired id is not free again
        _publish(tmp_path, 2, attempt="again")
    with pytest.raises(PackageError, match=r"cannot keep 0 packages"):
        packages.retire(keep=0)


json_values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)  # each example is a package on the disk
@given(details=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_details_come_back(tmp_path_factory: pytest.TempPathFactory, details: dict[str, JSON]) -> None:
    folder = tmp_path_factory.mktemp("packages")
    _publish(folder, 0, details=details)
    found = LoadPackages(DurableFolder(folder), "demo").latest()
    assert found is not None
    assert found.details == details


def _publish(
    folder: Path,
    batch_id: int,
    *,
    attempt: str = "first",
    counts: dict[str, int] | None = None,
    details: dict[str, JSON] | None = None,
) -> LoadPackage:
    packages = LoadPackages(DurableFolder(folder), "demo")
    load_id = LoadId("demo", batch_id)
    stamp = packages.write_table(load_id, attempt, "rows", ROWS)
    return packages.publish(load_id, {"rows": stamp}, counts or {}, details or {})
