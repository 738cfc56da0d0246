"""A relation that grows for ever stays small: deltas are merged when that is due, old versions and their files go."""

from __future__ import annotations

from pathlib import Path

from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.relation import Relation
from etl.storage.relation_version import CHECKPOINT_EVERY
from etl.storage.upkeep import Upkeep, keep_up
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered

LOADS = 100


def grown(folder: Path, upkeep: Upkeep) -> list[int]:
    """How many files there were after each of many loads, each with the upkeep."""
    relation = create_relation(folder, "customers", SCHEMA, KEY, [numbered(range(10))], theta=16)
    files = []
    for load in range(1, LOADS + 1):
        relation = keep_up(relation.append(numbered(range(100 * load, 100 * load + 5)), f"load {load}", 0), upkeep)
        files.append(sum(path.is_file() for path in folder.rglob("*")))
    return files


def numbers_in(relation: Relation) -> list[int]:
    return sorted(row[1] for row in all_rows(relation))


def test_files_do_not_pile_up_and_no_row_is_lost(tmp_path: Path) -> None:
    files = grown(tmp_path, Upkeep(versions_kept=3))
    relation = open_relation(tmp_path)
    relation.verify()
    expected = [*range(10), *(100 * load + row for load in range(1, LOADS + 1) for row in range(5))]
    assert numbers_in(relation) == expected
    # A version is a log entry and at most a run; the log reaches back to the last checkpoint before the kept ones.
    assert max(files) < 2 * (CHECKPOINT_EVERY + 3) + 10
    assert min(files[-20:]) < 10, "a compaction lets go of all that was before it"
    assert relation.find("load 1") is not None, "a load is known for ever"


def test_a_compaction_is_due_by_files_or_by_their_share_of_rows(tmp_path: Path) -> None:
    relation = create_relation(tmp_path, "customers", SCHEMA, KEY, [numbered(range(200))], theta=16)
    one_delta = relation.append(numbered(range(1_000, 1_010)), "load 1", 0)
    assert not Upkeep().is_due(relation.describe())
    assert not Upkeep().is_due(one_delta.describe()), "fewer rows than a segment"
    assert Upkeep(most_delta_files=0).is_due(one_delta.describe())
    large = one_delta.append(numbered(range(2_000, 2_200)), "load 2", 0)
    assert Upkeep().is_due(large.describe())
    assert not Upkeep(most_rows_inline=100).is_due(large.describe()), "left to a process of its own"


def test_upkeep_starts_from_the_newest_version(tmp_path: Path) -> None:
    old = create_relation(tmp_path, "customers", SCHEMA, KEY, [numbered(range(10))], theta=16)
    newest = old.append(numbered([100]), "load 1", 0)
    assert keep_up(old, Upkeep()).version == newest.version
