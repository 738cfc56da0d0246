"""Creating relations from many rows: sizes of segments, bounded memory, progress."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import AlreadyPublished, BadInput
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.memory_relation import create_memory_relation
from etl.storage.partitioning import PartitionKind
from etl.storage.segment_cutting import SegmentCutter
from tests.storage.relations import KEY, SCHEMA, all_rows, numbered

_PLAIN = pa.schema([("value", pa.int64())])


@given(
    portions=st.lists(st.lists(st.integers(0, 6), max_size=30), max_size=6),
    theta=st.integers(1, 6),
    distinct=st.booleans(),
)
@settings(deadline=None)
def test_segments_hold_theta_to_twice_theta_rows(portions: list[list[int]], theta: int, distinct: bool) -> None:
    """Portions of ascending coordinates; with `distinct`, no two rows share one."""
    cutter = SegmentCutter(_PLAIN, theta)
    segments, values = [], iter(range(10**6))
    for number, portion in enumerate(portions):
        inside = list(range(len(portion))) if distinct else portion
        coordinates = np.array([100 * number + place for place in inside], np.uint64)
        rows = pa.table({"value": coordinates.astype(np.int64) * 1000 + [next(values) for _ in portion]}, _PLAIN)
        segments += list(cutter.feed(rows, coordinates))
    segments += list(cutter.finish())
    cut = [[value // 1000 for value in segment.rows.column(0).to_pylist()] for segment in segments]
    everything = sorted(100 * n + p for n, portion in enumerate(portions)
                        for p in (range(len(portion)) if distinct else portion))  # fmt: skip
    assert [coordinate for segment in cut for coordinate in segment] == everything
    assert [segment.lowest for segment in segments] == [segment[0] for segment in cut]
    for before, after in pairwise(cut):
        assert before[-1] < after[0], "equal coordinates lie in one segment"
    if distinct and len(cut) > 1:
        assert all(theta <= len(segment) <= 2 * theta for segment in cut)
    if not distinct:
        heaviest = max(Counter(everything).values(), default=0)
        assert all(len(segment) <= 2 * theta + 2 * heaviest for segment in cut)


@pytest.mark.parametrize("partition", ["hash", "range"])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 28])
def test_a_load_larger_than_memory_is_the_same_relation(
    tmp_path: Path, partition: PartitionKind, memory_bytes: int
) -> None:
    rng = np.random.default_rng(1)
    numbers = rng.permutation(60_000)
    told: list[tuple[str, int, int]] = []
    relation = create_relation(
        tmp_path / "customers",
        "customers",
        SCHEMA,
        KEY,
        (numbered(numbers[start : start + 1000].tolist()) for start in range(0, 60_000, 1000)),
        partition=partition,
        theta=500,
        highest="surrogate",
        memory_bytes=memory_bytes,
        progress=lambda *report: told.append(report),
    )
    relation.verify()
    assert 500 <= relation.segment_rows.min() <= relation.segment_rows.max() <= 1000
    assert sorted(row[1] for row in all_rows(relation)) == list(range(60_000))
    assert relation.highest == 59_999
    set_aside = {"dealing out"} if memory_bytes == 1 << 20 else set()
    assert {work for work, _, _ in told} == {"reading", "writing"} | set_aside
    assert told[-1] == ("writing", 60_000, 60_000)
    assert list((tmp_path / "customers" / "scratch").glob("*")) == []
    assert open_relation(tmp_path / "customers").segment_rows.tolist() == relation.segment_rows.tolist()


def test_ranges_keep_neighbours_together() -> None:
    schema = pa.schema([("source", pa.int32()), ("name", pa.string())])
    names = pa.array([f"customer-{number:08d}" for number in range(1000)])
    rows = pa.record_batch([pa.array(np.arange(1000, dtype=np.int32) % 3), names], schema=schema)
    # Each batch has a longer common prefix than all of them together.
    batches = [rows.slice(start, 10) for start in range(0, 1000, 10)]
    relation = create_memory_relation("names", schema, ("source", "name"), batches, partition="range", theta=50)
    assert relation.segments >= 10
    order = 0
    for segment in range(relation.segments):
        here = sorted(name for block in relation.read_segment(segment) for name in block.column("name").to_pylist())
        assert here == names.to_pylist()[order : order + len(here)]
        order += len(here)


def test_rows_that_do_not_fit_leave_no_relation_behind(tmp_path: Path) -> None:
    nulls = numbered([1]).set_column(1, "number", pa.nulls(1, pa.int32()))
    with pytest.raises(BadInput, match="'number' is null in 1 rows"):
        create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, [numbered([1]), nulls])
    relation = create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, [numbered([1])])
    assert relation.rows == 1
    with pytest.raises(AlreadyPublished, match="holds a relation already"):
        create_relation(tmp_path / "customers", "customers", SCHEMA, KEY)


def test_a_load_needs_some_memory(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="memory_bytes is 1000; give a bulk load one MiB"):
        create_relation(tmp_path / "customers", "customers", SCHEMA, KEY, memory_bytes=1000)
