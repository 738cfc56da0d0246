"""Groups in slots: whatever happens between two loads, the results are the join by definition, each row once."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etl import joins
from etl.errors import BadInput, CorruptFile, MemoryBudgetExceeded, MissingFile
from etl.joins.parallel.partition_groups import Placement
from etl.spark import group_operator
from etl.spark.group_inputs import GroupInputs
from etl.spark.live_operators import LIVE_OPERATORS
from tests.harness.flush_all import FlushAll, entered
from tests.oracle import Row, inner_join, rows_of
from tests.spark.slot_loads import SIDES, Loads, TaggedRow, group_of, plan_in

GROUPS = 3
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))  # raised by the slow run


class CountsRestoredRowsTwice(FlushAll):
    """Spills at another moment than the operator it was restored from, as one may whose tables have room to grow."""

    def _load(self, saved: joins.Snapshot) -> None:
        super()._load(saved)
        self.restored = sum(batch.get_total_buffer_size() for batches in self.rows for batch in batches)

    def _flush(self) -> None:
        self.restored = 0
        super()._flush()

    def _count(self) -> None:
        super()._count()
        self._memory.set(self._memory.used + getattr(self, "restored", 0))


@pytest.fixture(autouse=True)
def _nothing_lives() -> Iterator[None]:
    LIVE_OPERATORS.clear()
    yield
    LIVE_OPERATORS.clear()


def joined(rows: list[TaggedRow]) -> Counter[Row]:
    left, right = ([row for side, row in rows if side == wanted] for wanted in (0, 1))
    return inner_join(left, right, [(0, 0)])


def place_in(group: int, groups: int = GROUPS) -> str:
    """A key that belongs to the group."""
    return next(f"p{number}" for number in range(1000) if group_of(f"p{number}", groups) == group)


tagged_rows = st.lists(
    st.tuples(st.integers(0, 1), st.tuples(st.sampled_from([*"abcdefgh", None]), st.integers(0, 9))), max_size=25
)
placements = st.integers(1, 3).flatmap(
    lambda slots: st.builds(
        lambda slot_of: Placement(GROUPS, slots, tuple(slot_of)),
        st.lists(st.integers(0, slots - 1), min_size=GROUPS, max_size=GROUPS),
    )
)
happenings = st.fixed_dictionaries(
    {
        "rows": tagged_rows,
        "placement": placements,
        "superseded_attempt": st.booleans(),
        "workers_end": st.booleans(),
        "files_go": st.booleans(),
    }
)


@pytest.mark.parametrize("operator", [None, FlushAll, CountsRestoredRowsTwice])
@settings(max_examples=20 * EXAMPLES, derandomize=EXAMPLES == 1, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    loads=st.lists(happenings, min_size=1, max_size=6),
    most_log_entries=st.integers(0, 4),
    memory_bytes=st.sampled_from([100, 500, 1000]),
)
def test_every_pair_comes_exactly_once_whatever_happens_between_loads(
    operator: type[FlushAll] | None, loads: list[dict[str, object]], most_log_entries: int, memory_bytes: int
) -> None:
    """Other placements, attempts that do not count, lost workers, files that went, bases in all places."""
    LIVE_OPERATORS.clear()
    with (
        tempfile.TemporaryDirectory() as folder,
        entered(operator or FlushAll) as spilling,
        patch.object(group_operator, "MOST_LOG_ENTRIES", most_log_entries),
    ):
        pipeline = Loads(plan_in(Path(folder), groups=GROUPS))
        if operator is not None:
            settings_ = {"block_bytes": 100}
            pipeline = Loads(plan_in(Path(folder), spilling, GROUPS, memory_bytes=memory_bytes, settings=settings_))
        for load in loads:
            if load["superseded_attempt"]:
                pipeline.attempt(load["rows"], load["placement"])  # type: ignore[arg-type]
            if load["workers_end"]:
                LIVE_OPERATORS.clear()
            pipeline.publish(pipeline.attempt(load["rows"], load["placement"]))  # type: ignore[arg-type]
            if load["files_go"]:
                pipeline.forget_files()
        everything = [row for load in loads for row in load["rows"]]  # type: ignore[attr-defined]

        assert Counter(pipeline.results) + Counter(pipeline.owed()) == joined(everything)


def test_after_a_base_the_operator_is_the_one_that_a_replay_would_make(tmp_path: Path) -> None:
    """An operator that goes on after its snapshot spills later than its restored copy: results would move."""
    with entered(CountsRestoredRowsTwice) as spilling, patch.object(group_operator, "MOST_LOG_ENTRIES", 2):
        for memory_bytes in (100, 200, 300):
            folder, settings_ = tmp_path / str(memory_bytes), {"block_bytes": 100}
            pipeline = Loads(plan_in(folder, spilling, 1, memory_bytes=memory_bytes, settings=settings_))
            rows: list[TaggedRow] = []
            for load in range(9):
                brought: list[TaggedRow] = [(load % 2, ("a", number)) for number in range(4)]
                pipeline.run(brought)
                rows += brought
                assert Counter(pipeline.results) + Counter(pipeline.owed()) == joined(rows)


def test_an_operator_that_spills_leaves_alone_the_runs_that_a_state_needs(tmp_path: Path) -> None:
    """Every load starts from the same published state again, with the live operator going on to others in between."""
    rows: list[TaggedRow] = [(side, (place, number)) for number in range(8) for side in (0, 1) for place in "ab"]
    with entered(FlushAll), patch.object(group_operator, "MOST_LOG_ENTRIES", 1):
        pipeline = Loads(plan_in(tmp_path, "flush-all", 1, memory_bytes=100, settings={"block_bytes": 100}))
        pipeline.run(rows, rows, rows)
        assert any(name.endswith(".arrow") for state in pipeline.states.values() for name in state.runs)
        expected: Counter[Row] | None = None
        for _ in range(3):
            again = Loads(pipeline.plan, pipeline.states, list(pipeline.published))
            again.run(rows, rows)
            given = Counter(again.results) + Counter(again.owed())
            assert expected in (None, given)
            expected = given


def test_the_living_operator_is_used_for_its_own_state(tmp_path: Path) -> None:
    pipeline = Loads(plan_in(tmp_path))
    pipeline.run([(0, ("a", 1))])
    for name in pipeline.folder.names():
        pipeline.folder.delete(name)
    pipeline.run([(1, ("a", 2))])
    assert pipeline.results == [("a", 1, "a", 2)]


def test_the_living_operator_is_not_used_for_an_earlier_state(tmp_path: Path) -> None:
    pipeline = Loads(plan_in(tmp_path))
    pipeline.run([(0, ("a", 1))])
    pipeline.attempt([(0, ("a", 2))])
    pipeline.run([(1, ("a", 3))])
    assert pipeline.results == [("a", 1, "a", 3)]


def test_a_living_operator_that_missed_loads_takes_only_those(tmp_path: Path) -> None:
    """Two workers take turns with a group: each keeps its operator and reads what the other one logged."""
    pipeline = Loads(plan_in(tmp_path, groups=1))
    pipeline.run([(0, ("a", 1))])
    key = (str(tmp_path), 0)
    of_one_worker = LIVE_OPERATORS.take(key, pipeline.states[0])
    assert of_one_worker is not None
    pipeline.run([(0, ("a", 2))])
    LIVE_OPERATORS.clear()
    LIVE_OPERATORS.keep(key, of_one_worker, limit_bytes=1 << 30)
    pipeline.folder.delete(pipeline.states[0].base.file)  # a restored operator would need it

    pipeline.run([(1, ("a", 3))])

    assert Counter(pipeline.results) == Counter([("a", 1, "a", 3), ("a", 2, "a", 3)])


def test_a_living_operator_whose_own_runs_may_be_gone_is_not_used(tmp_path: Path) -> None:
    rows: list[TaggedRow] = [(side, ("a", number)) for number in range(12) for side in (0, 1)]
    with entered(FlushAll):
        pipeline = Loads(plan_in(tmp_path, "flush-all", 1, memory_bytes=100, settings={"block_bytes": 100}))
        pipeline.run(rows)
        key = (str(tmp_path), 0)
        of_one_worker = LIVE_OPERATORS.take(key, pipeline.states[0])
        assert of_one_worker is not None
        assert of_one_worker.state.runs, "it has spilled since its base"
        pipeline.run(rows)
        LIVE_OPERATORS.clear()
        LIVE_OPERATORS.keep(key, of_one_worker, limit_bytes=1 << 30)
        pipeline.forget_files()

        pipeline.run(rows)

        assert Counter(pipeline.results) + Counter(pipeline.owed()) == joined(rows * 3)


def test_live_operators_keep_to_their_bytes(tmp_path: Path) -> None:
    rows: list[TaggedRow] = [(0, (place_in(group), 1)) for group in range(GROUPS)]
    pipeline = Loads(plan_in(tmp_path, live_bytes=0))
    pipeline.run(rows)
    assert (len(LIVE_OPERATORS), LIVE_OPERATORS.nbytes) == (0, 0)

    one = Loads(plan_in(tmp_path / "other"))
    one.run(rows)
    assert len(LIVE_OPERATORS) == GROUPS
    held = LIVE_OPERATORS.nbytes
    LIVE_OPERATORS.clear()
    two = Loads(plan_in(tmp_path / "two", live_bytes=held - 1))
    two.run(rows)
    assert len(LIVE_OPERATORS) == GROUPS - 1
    assert LIVE_OPERATORS.nbytes < held


def test_a_group_without_rows_writes_nothing_and_keeps_its_state(tmp_path: Path) -> None:
    first, second = place_in(0), place_in(1)
    pipeline = Loads(plan_in(tmp_path))
    pipeline.run([(0, (first, 1)), (0, (second, 1))])
    before = dict(pipeline.states)
    pipeline.run([(0, (first, 2))])
    assert pipeline.states[1] == before[1]
    assert pipeline.states[0].base == before[0].base
    assert pipeline.states[0].log[:1] == before[0].log
    files = pipeline.folder.names()
    pipeline.run([])
    assert pipeline.folder.names() == files


def test_a_task_writes_one_file_however_many_groups_it_has(tmp_path: Path) -> None:
    pipeline = Loads(plan_in(tmp_path))
    pipeline.run([(0, (place_in(group), 1)) for group in range(GROUPS)])
    assert len(pipeline.folder.names()) == 1
    assert {state.base.file for state in pipeline.states.values()} == set(pipeline.folder.names())


def test_what_a_load_writes_does_not_grow_with_what_waits(tmp_path: Path) -> None:
    """Also the state stays bounded: a base takes the place of a log that is longer than it."""
    rows = 2000
    pipeline = Loads(plan_in(tmp_path, groups=1))
    written = []
    with patch.object(group_operator, "LEAST_BASE_BYTES", 1000):
        for load in range(40):
            pipeline.run([(0, (f"{load}-{number}", number)) for number in range(rows)])
            state = pipeline.states[0]
            written.append((state.log[-1] if state.log else state.base).size)
            pipeline.forget_files()
    bases = [size for size, states in zip(written, pipeline.published, strict=True) if not states[0].log]
    logs = [size for size, states in zip(written, pipeline.published, strict=True) if states[0].log]
    assert max(logs) < 1.1 * min(logs)
    assert len(bases) <= 10, "bases become rarer as the state grows"
    assert sum(bases) < 3 * sum(logs)
    on_disk = sum((tmp_path / name).stat().st_size for name in pipeline.folder.names())
    assert on_disk < 3 * pipeline.states[0].base.size


def test_bases_of_many_groups_are_spread_over_loads(tmp_path: Path) -> None:
    groups = 16
    pipeline = Loads(plan_in(tmp_path, groups=groups))
    rows: list[TaggedRow] = [(0, (place_in(group, groups), 1)) for group in range(groups)]
    with patch.object(group_operator, "MOST_LOG_ENTRIES", 5):
        pipeline.run(*[rows] * 20)
    bases = [sum(not state.log for state in states.values()) for states in pipeline.published]
    assert max(bases) == groups // group_operator.GROUPS_A_BASE
    assert all(len(state.log) <= 5 + group_operator.GROUPS_A_BASE for state in pipeline.states.values())


def test_a_failure_leaves_no_trace(tmp_path: Path) -> None:
    small = place_in(0)
    large = place_in(1)
    pipeline = Loads(plan_in(tmp_path, memory_bytes=200_000, settings={"block_bytes": 1000}))
    pipeline.run([(0, (small, 1))])
    files = pipeline.folder.names()

    with pytest.raises(MemoryBudgetExceeded, match=r"group 1: symmetric-hash"):
        pipeline.attempt([(1, (small, 2)), *((0, (large, number)) for number in range(20_000))])

    assert pipeline.folder.names() == files
    assert not list((tmp_path / ".temporary").iterdir())
    pipeline.run([(1, (small, 3))])
    assert pipeline.results == [(small, 1, small, 3)]


def test_another_join_than_that_of_the_state_is_refused(tmp_path: Path) -> None:
    pipeline = Loads(plan_in(tmp_path, groups=1))
    pipeline.run([(0, ("a", 1))])
    LIVE_OPERATORS.clear()
    with entered(FlushAll):
        other = Loads(plan_in(tmp_path, "flush-all", 1), pipeline.states, pipeline.published)
        with pytest.raises(BadInput, match=r"group 0: .* is of join symmetric-hash, the pipeline asks for flush-all"):
            other.run([(1, ("a", 2))])


def test_more_memory_takes_effect_with_the_next_base(tmp_path: Path) -> None:
    given: list[int] = []
    pipeline = Loads(plan_in(tmp_path, groups=1, memory_bytes=1_000_000))
    with patch.object(group_operator, "MOST_LOG_ENTRIES", 2):
        for memory_bytes in (1_000_000, *[2_000_000] * 3):
            pipeline.plan = plan_in(tmp_path, groups=1, memory_bytes=memory_bytes)
            pipeline.run([(0, ("a", 1))])
            base = joins.Snapshot.from_bytes(pipeline.states[0].base.read(pipeline.folder))
            given.append(base.arguments["memory_bytes"])  # type: ignore[arg-type]
    assert given == [1_000_000, 1_000_000, 2_000_000, 2_000_000]


@pytest.mark.parametrize("part", ["base", "log"])
def test_damaged_and_lost_files_are_named(tmp_path: Path, part: str) -> None:
    pipeline = Loads(plan_in(tmp_path, groups=1))
    pipeline.run([(0, ("a", 1))])
    LIVE_OPERATORS.clear()
    state = pipeline.states[0]
    section = state.base if part == "base" else state.log[0]
    path = tmp_path / section.file
    content = bytearray(path.read_bytes())
    content[section.offset + section.size // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=f"group 0: file {path} was changed"):
        pipeline.attempt([(1, ("a", 2))])
    path.write_bytes(content[: section.offset])
    with pytest.raises(CorruptFile, match=f"{path} has {section.offset} bytes and should reach to"):
        pipeline.attempt([(1, ("a", 2))])
    path.unlink()
    with pytest.raises(MissingFile, match=str(path)):
        pipeline.attempt([(1, ("a", 2))])


def test_a_log_entry_says_all_that_was_offered() -> None:
    rows = {side: pa.RecordBatch.from_pylist([{"place": "a"}, {"place": None}], SIDES[side]) for side in (0, 1)}
    inputs = GroupInputs({1: 17, 0: -3}, rows)
    stored = pa.py_buffer(b"".join(bytes(pa.py_buffer(part)) for part in inputs.to_parts()))
    again = GroupInputs.from_buffer(stored, "here")
    assert dict(again.watermarks) == {0: -3, 1: 17}
    assert {side: rows_of([batch]) for side, batch in again.rows.items()} == {
        side: rows_of([batch]) for side, batch in rows.items()
    }
