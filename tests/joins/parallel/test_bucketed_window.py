"""The bucketed window join: its windows, its buckets, what watermarks let go. The suites prove the rest."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl import joins
from etl.errors import BadInput, MemoryBudgetExceeded
from etl.joins import EndOfSide, Operator, Rows, Watermark
from etl.joins.parallel.bucketed_window import BucketedWindow, BucketedWindowSettings
from etl.joins.window.time_windows import TimeWindows
from etl.kernels.compiling import Int64s
from tests.harness.flush_all import entered
from tests.harness.subjects import Check, Subject, prove
from tests.harness.suites import EXACTNESS, RESTORE
from tests.oracle import rows_of, window_join

SCHEMA = pa.schema([("key", pa.int64()), ("t", pa.int64()), ("number", pa.int64())])


def built(windows: tuple[int, int] = (10, 20), memory_bytes: int = 64 << 20, **settings: int) -> Operator:
    return joins.build(
        "bucketed-window",
        sides=[SCHEMA, SCHEMA],
        on=[("key", "key")],
        memory_bytes=memory_bytes,
        block_bytes=1024,
        event_times=("t", "t"),
        windows=windows,
        **settings,  # type: ignore[arg-type]  # the operator's own
    )


def rows(side: int, keys: object, times: object) -> Rows:
    key, time = pa.array(keys, pa.int64()), pa.array(times, pa.int64())
    return Rows(side, pa.RecordBatch.from_arrays([key, time, pa.array(range(len(key)), pa.int64())], schema=SCHEMA))


def discard(batch: pa.RecordBatch) -> None:
    pass


@pytest.mark.parametrize("first_side", [0, 1])
@pytest.mark.parametrize(
    ("apart", "joined"), [(-11, False), (-10, True), (-1, True), (0, True), (1, True), (20, True), (21, False)]
)
def test_a_pair_joins_while_the_older_row_is_in_its_own_window(first_side: int, apart: int, joined: bool) -> None:
    """Side 0 keeps rows for 10, side 1 for 20: a.t - b.t lies in -10..20, whichever comes first."""
    results: list[pa.RecordBatch] = []
    operator = built()
    events = [rows(0, [1], [100 + apart]), rows(1, [1], [100])]
    for side in (first_side, 1 - first_side):
        operator.offer(events[side], results.append)
    assert bool(results) is joined


def test_windows_reach_to_the_ends_of_time() -> None:
    windows = TimeWindows((0, 0), (2**63 - 1, 2**63 - 1))
    lowest, highest = windows.reach(0, np.array([-(2**63), 0, 2**63 - 1]))
    assert lowest.tolist() == [-(2**63), -(2**63 - 1), 0]
    assert highest.tolist() == [-1, 2**63 - 1, 2**63 - 1]
    assert windows.needed_from(0, 5) == 5 - (2**63 - 1)
    assert windows.needed_from(0, -(2**80)) == -(2**63)


def test_buckets_split_as_rows_come_and_merge_as_they_expire() -> None:
    operator = built(theta_rows=20)
    rng = np.random.default_rng(3)
    for batch in range(10):
        operator.offer(rows(batch % 2, rng.integers(0, 10_000, 200), [batch] * 200), discard)
    grown = operator.counters
    assert grown.extra["splits"] >= 2_000 / 40 - 1
    for side in (0, 1):
        operator.offer(Watermark(side, 1_000), discard)
    operator.offer(rows(0, [1], [1_000]), discard)
    assert operator.counters.extra["merges"] == grown.extra["splits"]
    assert operator.snapshot().state.values["directory"]["buckets"] == [[0, 0]]  # type: ignore[index, call-overload]


def test_small_buckets_are_why_a_row_is_compared_with_few_others() -> None:
    """The very reason for the directory (figure 7.8 of the thesis)."""
    compared = {}
    keys = np.random.default_rng(4).permutation(20_000)
    for theta in (100, 1_000_000):
        operator = built(theta_rows=theta)
        for start in range(0, 20_000, 2_000):
            chosen = keys[start : start + 2_000]
            operator.offer(rows(0, chosen, np.zeros(2_000)), discard)
            operator.offer(rows(1, chosen, np.zeros(2_000)), discard)
        assert operator.counters.results == 20_000
        compared[theta] = operator.counters.rows_compared
    assert compared[1_000_000] > 50 * compared[100]


def test_one_frequent_key_stays_one_bucket_and_costs_no_depth() -> None:
    operator = built(theta_rows=4)
    for batch in range(20):
        operator.offer(rows(batch % 2, [7] * 10, [batch] * 10), discard)
    assert operator.counters.extra["splits"] == 0
    pairs = [(left, right) for left in range(0, 20, 2) for right in range(1, 20, 2) if -10 <= left - right <= 20]
    assert operator.counters.results == 100 * len(pairs)


def test_watermarks_let_memory_go() -> None:
    operator = built(windows=(50, 50), memory_bytes=400_000)
    held = []
    for instant in range(0, 5_000, 10):
        for side in (0, 1):
            operator.offer(rows(side, np.arange(100), [instant] * 100), discard)
            operator.offer(Watermark(side, instant), discard)
        held.append(operator.counters.memory_bytes)
    assert max(held[100:]) <= max(held[:100])
    # In a window of 50 a row meets 5 older batches and its own on either side.
    assert operator.counters.results == pytest.approx(500 * 100 * 11, rel=0.01)


def test_without_watermarks_rows_over_the_budget_are_refused_with_the_remedy() -> None:
    operator = built(memory_bytes=70_000)

    def fill() -> None:
        for instant in range(1_000):
            operator.offer(rows(0, np.arange(100), [instant] * 100), discard)

    with pytest.raises(MemoryBudgetExceeded, match=r"memory_bytes is 70000.*send watermarks"):
        fill()
    assert operator.counters.peak_memory_bytes <= 70_000


def test_a_late_row_is_joined_with_what_is_left_and_counted() -> None:
    results: list[pa.RecordBatch] = []
    operator = built(windows=(5, 5))
    operator.offer(rows(1, [1, 1], [10, 100]), discard)
    operator.offer(Watermark(0, 50), discard)
    operator.offer(rows(0, [1, 1, 2], [12, 97, 49]), results.append)
    assert operator.counters.extra["late_rows"] == 2
    assert (12, 10) in {(row[1], row[4]) for row in rows_of(results)}  # one block with the row at 100: still there
    assert (97, 100) in {(row[1], row[4]) for row in rows_of(results)}


def test_a_watermark_that_falls_back_changes_nothing() -> None:
    operator = built(windows=(5, 5))
    operator.offer(Watermark(0, 50), discard)
    operator.offer(Watermark(0, 20), discard)
    assert operator.snapshot().state.values["watermarks"] == [50, None]


def test_a_long_run_equals_the_definition() -> None:
    """Out of order, with splits, merges, expiry and a restore under way."""
    rng = np.random.default_rng(11)
    operator, results = built(windows=(30, 7), theta_rows=8, row_blocks=1 << 20), list[pa.RecordBatch]()
    offered: list[list[pa.RecordBatch]] = [[], []]
    for batch in range(60):
        side = int(rng.integers(2))
        event = rows(side, rng.integers(0, 40, 30), 5 * batch + rng.integers(0, 25, 30))
        offered[side].append(event.batch)
        operator.offer(event, results.append)
        operator.offer(Watermark(side, 5 * batch), results.append)
        if batch % 13 == 0:
            operator = joins.restore(joins.Snapshot.from_bytes(operator.snapshot().to_bytes()))
    assert operator.counters.extra["merges"] > 0
    left, right = (rows_of(batches) for batches in offered)
    assert Counter(rows_of(results)) == window_join(left, right, [(0, 0)], (1, 1), (30, 7))


def test_the_end_of_a_side_lets_go_of_what_waited_for_it() -> None:
    operator = built()
    operator.offer(rows(0, range(1_000), [0] * 1_000), discard)
    held = operator.counters.memory_bytes
    operator.offer(EndOfSide(1), discard)
    assert operator.counters.memory_bytes < held / 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"event_times": ("t", "at")}, "event_times names column 'at', which side 1 has 0 times: it has 'key'"),
        ({"event_times": ("t",)}, "give one for each of two sides"),
        ({"windows": (1, -1)}, r"windows\[1\] is -1"),
        ({"theta_rows": 0}, "theta_rows is 0"),
        ({"row_blocks": 0}, "row_blocks is 0"),
        ({"sides": [SCHEMA, SCHEMA.set(1, pa.field("t", pa.int32()))]}, "side 1 event time column 't' is int32: cast"),
        (
            {"sides": [SCHEMA, SCHEMA.set(1, pa.field("t", pa.timestamp("ms")))]},
            "is timestamp.ms.: cast it to int64 or to a timestamp in microseconds",
        ),
        (
            {"sides": [SCHEMA, SCHEMA.set(1, pa.field("t", pa.timestamp("us")))]},
            "side 0 column 't' is int64, side 1 column 't' is timestamp",
        ),
    ],
)
def test_what_cannot_be_built_says_why(changed: dict[str, object], message: str) -> None:
    arguments = {"sides": [SCHEMA, SCHEMA], "on": [("key", "key")], "event_times": ("t", "t"), "windows": (1, 1)}
    with pytest.raises(BadInput, match=message):
        joins.build("bucketed-window", **(arguments | changed))  # type: ignore[arg-type]


# The windowed scripts have teeth: each of these faults is found.


class ExpiresTooEarly(BucketedWindow):
    def _notice(self, event: joins.Watermark | joins.Tick | joins.Punctuation, emit: joins.Emit) -> None:
        if isinstance(event, Watermark):
            event = Watermark(event.side, event.instant + 1)
        super()._notice(event, emit)


class ForgetsTheOtherWindow(BucketedWindow):
    """Takes its own window for rows on either side of it."""

    def _admit(self, side: int, batch: pa.RecordBatch, emit: joins.Emit) -> None:
        mine = self._windows.windows[side]
        self._windows = TimeWindows(self._windows.columns, (mine, mine))
        super()._admit(side, batch, emit)


class LeavesTheBoundaryOut(BucketedWindow):
    def __init__(self, plan: joins.JoinPlan, ports: joins.Ports, saved: joins.Snapshot | None = None) -> None:
        super().__init__(plan, ports, saved)
        self._windows = _Short(self._windows.columns, self._windows.windows)


class _Short(TimeWindows):
    def reach(self, side: int, times: Int64s) -> tuple[Int64s, Int64s]:
        lowest, highest = super().reach(side, times)
        return lowest, np.maximum(highest - 1, times)


class LosesAHalfWhenItSplits(BucketedWindow):
    def _admit(self, side: int, batch: pa.RecordBatch, emit: joins.Emit) -> None:
        before = self._counters.extra.get("splits", 0)
        super()._admit(side, batch, emit)
        if self._counters.extra.get("splits", 0) > before:
            self._buckets._chains[side].drain(0)


class ForgetsItsDirectory(BucketedWindow):
    """Restores rows under another directory than the one it restores."""

    def _load(self, saved: joins.Snapshot) -> None:
        super()._load(saved)
        self._buckets.directory._entries[:] = 0


FAULTS: list[tuple[type[BucketedWindow], list[Check], int]] = [
    (ExpiresTooEarly, EXACTNESS, 512),
    (ForgetsTheOtherWindow, EXACTNESS, 512),
    (LeavesTheBoundaryOut, EXACTNESS, 512),
    (LosesAHalfWhenItSplits, EXACTNESS, 1),
    (ForgetsItsDirectory, RESTORE, 1),
]


@pytest.mark.parametrize(("fault", "suite", "theta"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_window_join_is_caught(fault: type[BucketedWindow], suite: list[Check], theta: int) -> None:
    with entered(fault, "broken-window", spills="nothing", settings=BucketedWindowSettings) as name:
        subject = Subject(name, {"theta_rows": theta, "row_blocks": 2**30})
        assert any(_fails(check, subject) for check in suite)


def _fails(check: Check, subject: Subject) -> bool:
    try:
        prove(check, subject, examples=300, shrink=False)
    except Exception:  # an assertion, or an error on the way to it
        return True
    return False


def test_the_example_on_the_page_runs() -> None:
    page = Path(__file__).parents[3] / "etl/joins/parallel/README.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    times = pa.timestamp("us", "UTC")
    orders = pa.schema([("order_no", pa.string()), ("ordered_at", times)])
    payments = pa.schema([("order_no", pa.string()), ("paid_at", times)])
    results: list[pa.RecordBatch] = []
    names: dict[str, Any] = {
        "orders": orders,
        "payments": payments,
        "batch": pa.RecordBatch.from_arrays([pa.array(["a", "b"]), pa.array([0, 5], times)], schema=orders),
        "instant": 5,
        "emit": results.append,
    }
    exec(example, names)  # the page's own text
    paid = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), pa.array([600_000_000] * 2, times)], schema=payments)
    names["op"].offer(Rows(1, paid), results.append)
    assert [row[0] for row in rows_of(results)] == ["a", "b"]
