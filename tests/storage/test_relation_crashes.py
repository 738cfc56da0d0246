"""Whatever happens to a relation, and wherever it is cut short: every committed row is there, and nothing else."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import CommitRace, MissingFile
from etl.storage.bulk_load import LoadSettings
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from etl.storage.relation_creation import first_version
from etl.storage.relation_rows import RelationShape
from etl.storage.relation_version import OpenVersion
from tests.storage.crashing import Crash, Disk, Fuse
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered

Content = dict[int, str]
"""Each number with the load that brought it."""


def content_of(relation: Relation) -> Content:
    rows = all_rows(relation)
    content = {row[1]: row[3] for row in rows}
    assert len(content) == len(rows), "a row is there twice"
    return content


def check(relation: Relation, expected: Content) -> None:
    relation.verify()
    assert content_of(relation) == expected


# --- a crash at every operation on a file

Step = Callable[[Relation], object]


COMPACT, DROP = (-1, 0), (-2, 0)
"""Works beside loads, which are a number and how many rows they bring."""

# Folds, checkpoints, splits, a second compaction that rewrites little, and drops with and without dead files.
_LONG: list[tuple[int, int]] = [(1, 3), (2, 1), (3, 3), (4, 1), COMPACT, DROP, (5, 30), COMPACT, (6, 1), DROP]
_SHORT: list[tuple[int, int]] = [(1, 20), COMPACT, (2, 2), DROP]


def step_of(work: tuple[int, int]) -> Step:
    if work == COMPACT:
        return lambda relation: relation.compact()
    if work == DROP:
        return lambda relation: relation.drop_versions(keep=2)
    load, rows = work
    return lambda relation: relation.at().append(numbered(_numbers(load, rows)), f"load {load}", 0)


def expected_after(works: list[tuple[int, int]]) -> Content:
    base = dict.fromkeys(range(10), "")
    loads = [work for work in works if work not in (COMPACT, DROP)]
    return base | {number: f"load {load}" for load, rows in loads for number in _numbers(load, rows)}


def _numbers(load: int, rows: int) -> range:
    return range(1000 * load, 1000 * load + rows)


@pytest.mark.parametrize(("place", "partition"), [("memory", "hash"), ("memory", "range"), ("files", "hash")])
def test_a_crash_at_any_operation_leaves_the_version_before_or_after_it(
    tmp_path: Path, place: str, partition: PartitionKind
) -> None:
    works = _LONG if place == "memory" else _SHORT  # a file that is written safely waits for the disk
    folders = (None if place == "memory" else tmp_path / str(number) for number in count())
    _, operations = _run(Disk(next(folders)), works, partition, Fuse())
    assert operations > 10 * len(works), "the premise: there is something to interrupt"
    for moment in range(1, operations + 1):
        disk = Disk(next(folders))
        done, _ = _run(disk, works, partition, Fuse(moment))
        _check_and_go_on(disk, works, done)


def _run(disk: Disk, works: list[tuple[int, int]], partition: PartitionKind, fuse: Fuse) -> tuple[int | None, int]:
    """How many works were done until the crash, None if the relation was not there yet; and the operations."""
    done = None
    try:
        parts = disk.parts(fuse)
        shape = RelationShape("customers", SCHEMA, KEY, partition, theta=6)
        start = first_version(parts, shape, [numbered(range(10))], 0, LoadSettings(parts.scratch))
        done = 0
        for work in works:
            step_of(work)(Relation(OpenVersion(parts, start.state)))
            done += 1
    except Crash:
        pass
    return done, fuse.burnt


def _check_and_go_on(disk: Disk, works: list[tuple[int, int]], done: int | None) -> None:
    """The state after a crash is that of the last work done or of the next; and all others can follow."""
    relation = disk.open()
    if relation is None:
        assert done is None, "a committed relation has vanished"
        return
    done = 0 if done is None else done
    assert content_of(relation) in (expected_after(works[:done]), expected_after(works[: done + 1]))
    for version in (relation.versions()[0], relation.version):
        relation.at(version).verify()
    for work in works[done:]:
        step_of(work)(relation)
    check(relation.at(), expected_after(works))
    relation.at().compact().drop_versions(keep=1)
    state = relation.at()._version.state
    named = {file.run.name for file in state.files} | {run.name for run in state.load_runs}
    assert set(state_runs(relation)) == named, "a crash left files for ever"
    assert disk.scratch_files() == []


def state_runs(relation: Relation) -> list[str]:
    return relation._version.parts.runs.runs()


# --- any interleaving

operations = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 6)),
    st.tuples(st.just("replay"), st.integers(0, 6)),
    st.tuples(st.just("compact"), st.integers(0, 1)),
    st.tuples(st.just("reopen"), st.integers(0, 1)),
    st.tuples(st.just("go back"), st.integers(0, 6)),
    st.tuples(st.just("drop"), st.integers(1, 4)),
    st.tuples(st.just("crash"), st.integers(1, 12)),
)


class World:
    """Two handles on one relation, and what must be in each version."""

    def __init__(self, folder: Path, partition: PartitionKind, theta: int) -> None:
        self.folder = folder
        rows = [numbered(range(7))]
        first = create_relation(folder, "customers", SCHEMA, KEY, rows, partition=partition, theta=theta)
        self.handles = [first, first]
        self.committed: dict[int, Content] = {1: dict.fromkeys(range(7), "")}
        self.loads: dict[str, int] = {}
        self.next_number = 100

    def play(self, name: str, argument: int) -> None:
        handle = self.handles[argument % 2]
        if name == "reopen":
            self.handles[argument % 2] = open_relation(self.folder)
        elif name == "go back":
            versions = handle.versions()
            self.handles[argument % 2] = handle.at(versions[argument % len(versions)])
        elif name == "append":
            self.append(argument, handle, f"load {len(self.loads)}")
        elif name == "replay" and self.loads:
            load = f"load {argument % len(self.loads)}"
            again = handle.append(numbered([1]), load, 0).version
            made = self.loads[load]
            assert again == (made if made in handle.versions() else max(self.committed))
        elif name == "compact":
            self.handles[argument % 2] = self.noted(handle.compact())
        elif name == "drop":
            handle.drop_versions(keep=argument)
        elif name == "crash":
            self.crash(argument)

    def append(self, rows: int, handle: Relation, load: str) -> None:
        numbers = range(self.next_number, self.next_number + rows)
        try:
            after = handle.append(numbered(numbers), load, 0)
        except CommitRace:
            assert handle.version < max(self.committed)
            return
        self.next_number += rows
        self.loads[load] = after.version
        self.committed[after.version] = self.committed[handle.version] | dict.fromkeys(numbers, load)
        self.handles[rows % 2] = after

    def crash(self, moment: int) -> None:
        """Another process appends and compacts, and dies on the way."""
        parts = Disk(self.folder).parts(Fuse(moment))
        load = f"load {len(self.loads)}"
        numbers = range(self.next_number, self.next_number + 3)
        try:
            relation = Relation(OpenVersion(parts, parts.log.read(parts.log.newest())))
            relation.append(numbered(numbers), load, 0).compact()
        except Crash:
            pass
        newest = open_relation(self.folder)
        before = self.committed[max(self.committed)]
        made = newest.find(load)
        if made is not None:
            self.next_number += 3
            self.loads[load] = made
            self.committed[made] = before | dict.fromkeys(numbers, load)
        self.noted(newest)

    def noted(self, newest: Relation) -> Relation:
        """A version that no load made holds what the one before it held."""
        for version in range(max(self.committed) + 1, newest.version + 1):
            self.committed[version] = self.committed[version - 1]
        return newest

    def check_all(self) -> None:
        newest = open_relation(self.folder)
        assert newest.version == max(self.committed)
        assert {load: newest.find(load) for load in self.loads} == self.loads
        for version in newest.versions():
            check(newest.at(version), self.committed[version])
        for handle in self.handles:
            if handle.version in newest.versions():
                check(handle, self.committed[handle.version])


@given(
    steps=st.lists(operations, max_size=25),
    partition=st.sampled_from(["hash", "range"]),
    theta=st.sampled_from([1, 2, 5, 1000]),
)
@settings(max_examples=60, deadline=None)
def test_any_interleaving_keeps_every_committed_row_and_nothing_else(
    steps: list[tuple[str, int]],
    partition: PartitionKind,
    theta: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world = World(tmp_path_factory.mktemp("relation") / "customers", partition, theta)
    for name, argument in steps:
        world.play(name, argument)
    world.check_all()


def test_a_reader_keeps_a_version_that_was_dropped(tmp_path: Path) -> None:
    relation = create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, [numbered(range(50))], theta=4)
    before = all_rows(relation)
    relation.append(numbered([100]), "load 1", 0).compact().drop_versions(keep=1)
    assert relation.at().versions() == [3]
    assert all_rows(relation) == before
    with pytest.raises(MissingFile, match="version 1 was dropped or lost; the log holds versions 3 to 3"):
        open_relation(tmp_path / "customers", 1)


def test_a_clean_up_leaves_the_work_of_others_alone(tmp_path: Path) -> None:
    """A writer has written its run and not yet its version: the run stays, until the writer has gone."""
    relation = create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, [numbered(range(5))])
    parts = relation._version.parts
    with parts.writers.working() as token:
        writer = parts.runs.writer(f"load-x.{token}", SCHEMA)
        writer.append(numbered([1]))
        run = writer.seal()
        assert open_relation(tmp_path / "customers").drop_versions(keep=1).runs == 0
        assert run.name in parts.runs.runs()
    assert open_relation(tmp_path / "customers").drop_versions(keep=1).runs == 1
    assert run.name not in parts.runs.runs()
    assert list((tmp_path / "customers" / "writers").iterdir()) == []
