"""The wait buffer against a plain list of waiting rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.joins.hybrid.wait_buffer import WaitBuffer
from tests.harness.retained import retained_bytes

SEGMENTS = 5
SCHEMA = pa.schema([("number", pa.int64()), ("twice", pa.int64())])
ROW_BYTES = 16


def bytes_beside(segments: int) -> int:
    """What a chunk with rows of so many segments has beside the rows: which, where each begins, whether it is taken."""
    return 9 * segments + 4


@dataclass
class Model:
    """(number, segment, instant) of each waiting row."""

    waiting: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, segments: set[int]) -> Counter[tuple[int, int]]:
        taken = Counter((number, segment) for number, segment, _ in self.waiting if segment in segments)
        self.waiting = [row for row in self.waiting if row[1] not in segments]
        return taken


Step = tuple[str, list[int]]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, SEGMENTS - 1), max_size=12)),
        st.tuples(st.just("take"), st.lists(st.integers(0, SEGMENTS - 1), min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("shrink"), st.just(list[int]())),
    ),
    max_size=15,
)


def batch_of(numbers: list[int]) -> pa.RecordBatch:
    return pa.record_batch([numbers, [2 * number for number in numbers]], schema=SCHEMA)


@given(steps)
@settings(max_examples=300, deadline=None)
def test_it_is_a_list_of_waiting_rows(played: list[Step]) -> None:
    buffer, model, number = WaitBuffer(SEGMENTS), Model(), 0
    for instant, (action, segments) in enumerate(played):
        if action == "add":
            numbers = list(range(number, number + len(segments)))
            number += len(segments)
            buffer.add(batch_of(numbers), np.array(segments, np.int32), instant)
            model.waiting += [(each, segment, instant) for each, segment in zip(numbers, segments, strict=True)]
        elif action == "shrink":
            buffer.shrink()
        elif any(segment in segments for _, segment, _ in model.waiting):
            taken = buffer.take(np.array(segments))
            found = zip(taken.rows.column("number").to_pylist(), taken.segment.tolist(), strict=True)
            assert Counter(found) == model.take(set(segments))
            assert taken.rows.column("twice").to_pylist() == [2 * each.as_py() for each in taken.rows.column("number")]
        _compare(buffer, model)


def _compare(buffer: WaitBuffer, model: Model) -> None:
    counts = [sum(segment == each for _, each, _ in model.waiting) for segment in range(SEGMENTS)]
    assert buffer.rows.tolist() == counts
    assert len(buffer) == len(model.waiting)
    assert buffer.largest() == counts.index(max(counts)), "the lowest number among equals"
    for before in range(0, 16, 3):
        due = {segment for _, segment, instant in model.waiting if instant < before}
        assert buffer.due(before).tolist() == sorted(due)
    left = [(number.as_py(), at) for at, rows in buffer.batches() for number in rows.column("number")]
    assert Counter(left) == Counter((number, instant) for number, _, instant in model.waiting)
    _judge_memory(buffer, model)


def _judge_memory(buffer: WaitBuffer, model: Model) -> None:
    assert retained_bytes(buffer) - buffer.rows.nbytes <= buffer.nbytes, "it holds more than it says"
    beside = bytes_beside(SEGMENTS) * len(buffer.batches())
    assert buffer.nbytes <= 2 * ROW_BYTES * len(model.waiting) + beside, "more than twice what waits"


def test_a_buffer_that_was_shrunk_holds_only_what_waits() -> None:
    buffer = WaitBuffer(SEGMENTS)
    for instant in range(4):
        buffer.add(batch_of(list(range(100))), np.arange(100, dtype=np.int32) % SEGMENTS, instant)
    buffer.take(np.array([1, 3]))
    assert buffer.nbytes == 4 * (100 * ROW_BYTES + bytes_beside(5)), (
        "less than half was taken: no chunk is written anew"
    )
    buffer.shrink()
    assert buffer.nbytes == 4 * (60 * ROW_BYTES + bytes_beside(3))


def test_single_rows_wait_cheaply_whatever_the_number_of_segments() -> None:
    """Once each chunk had an entry for every segment of the relation: 13 KB a row at 1,500 segments."""
    buffer = WaitBuffer(100_000)
    for number in range(10):
        buffer.add(batch_of([number]), np.array([number * 7], np.int32), 0)
    assert buffer.nbytes == 10 * (ROW_BYTES + bytes_beside(1))


def test_a_slice_that_waits_does_not_keep_the_batch_it_was_cut_from() -> None:
    buffer = WaitBuffer(SEGMENTS)
    buffer.add(batch_of(list(range(10_000))).slice(17, 2), np.array([0, 1], np.int32), 0)
    assert retained_bytes(buffer) < 1000


def test_cleared_means_empty() -> None:
    buffer = WaitBuffer(SEGMENTS)
    buffer.add(batch_of([1, 2]), np.array([0, 1], np.int32), 0)
    buffer.clear()
    assert (len(buffer), buffer.nbytes, buffer.batches(), buffer.due(99).size) == (0, 0, [], 0)
