"""What the symmetric hash join promises beyond the contract: early results, memory let go, bounded skew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

import etl.rows
from etl import joins
from etl.errors import MemoryBudgetExceeded
from etl.joins import EndOfSide, Operator, Phase, Progress, Rows, WorkBudget
from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from tests.oracle import inner_join, rows_of

SIDE = pa.schema([("key", pa.int64()), ("number", pa.int64())])


def built(schema: pa.Schema = SIDE, key: Sequence[str] = ("key",), **arguments: object) -> Operator:
    on = [(name, name) for name in key]
    return joins.build("symmetric-hash", sides=[schema, schema], on=on, **arguments)  # type: ignore[arg-type]


def numbered(keys: Sequence[int | None], first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + len(keys))
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(numbers, pa.int64())], schema=SIDE)


def test_a_result_comes_with_the_batch_that_completes_it() -> None:
    operator, results = built(), list[pa.RecordBatch]()
    operator.offer(Rows(0, numbered([1, 2])), results.append)
    assert results == []
    operator.offer(Rows(1, numbered([3, 2])), results.append)
    assert rows_of(results) == [(2, 1, 2, 1)]
    operator.offer(Rows(0, numbered([3], first=2)), results.append)
    assert rows_of(results) == [(2, 1, 2, 1), (3, 2, 3, 0)]


def test_there_is_no_work_left_for_later() -> None:
    operator = built()
    assert operator.work(WorkBudget(), _no_results) is Progress.IDLE
    for side in (0, 1):
        operator.offer(EndOfSide(side), _no_results)
    assert operator.phase is Phase.CLEANING_UP
    assert operator.work(WorkBudget(blocks=0), _no_results) is Progress.DONE


# Memory


def test_the_end_of_a_side_lets_go_what_waited_for_it() -> None:
    operator, results = built(), list[pa.RecordBatch]()
    empty = operator.counters.memory_bytes
    for side in (0, 1):
        operator.offer(Rows(side, numbered(range(5000))), results.append)
    both = operator.counters.memory_bytes
    operator.offer(EndOfSide(0), results.append)
    one = operator.counters.memory_bytes
    assert empty < one < 0.6 * both, "only the rows of side 0 are of use now"
    operator.offer(Rows(1, numbered(range(4990, 6000), first=5000)), results.append)
    assert operator.counters.memory_bytes == one, "nothing will come that could meet the rows of side 1"
    operator.offer(EndOfSide(1), results.append)
    assert operator.counters.memory_bytes == empty
    assert sum(batch.num_rows for batch in results) == 5010


def test_rows_with_a_null_in_their_key_are_not_kept() -> None:
    operator, other = built(), built()
    operator.offer(Rows(0, numbered([1, *([None] * 50_000)])), _no_results)
    other.offer(Rows(0, numbered([1])), _no_results)
    assert operator.counters.memory_bytes == other.counters.memory_bytes
    assert operator.counters.rows_in == [50_001, 0]


def test_rows_that_do_not_fit_are_refused_and_smaller_ones_still_taken() -> None:
    operator, results = built(memory_bytes=1 << 16), list[pa.RecordBatch]()
    operator.offer(Rows(0, numbered(range(100))), results.append)
    before = operator.snapshot().to_bytes()
    with pytest.raises(MemoryBudgetExceeded, match=r"100000 more rows on side 1 need \d+ bytes, memory_bytes is 65536"):
        operator.offer(Rows(1, numbered(range(100_000))), results.append)
    assert operator.snapshot().to_bytes() == before
    operator.offer(Rows(1, numbered(range(50, 150))), results.append)
    assert sum(batch.num_rows for batch in results) == 50
    assert operator.counters.peak_memory_bytes <= 1 << 16


def test_rows_that_need_not_be_kept_are_never_too_many() -> None:
    operator, results = built(memory_bytes=1 << 16), list[pa.RecordBatch]()
    operator.offer(Rows(0, numbered(range(100))), results.append)
    operator.offer(EndOfSide(0), results.append)
    operator.offer(Rows(1, numbered(range(100_000))), results.append)
    assert sum(batch.num_rows for batch in results) == 100
    assert operator.counters.peak_memory_bytes <= 1 << 16


# Skew


def test_one_hot_key_comes_out_in_bounded_batches() -> None:
    operator, sizes, largest_batch = built(result_rows=50_000), list[int](), 0
    checksum = 0

    def emit(batch: pa.RecordBatch) -> None:
        nonlocal largest_batch, checksum
        sizes.append(batch.num_rows)
        largest_batch = max(largest_batch, batch.get_total_buffer_size())
        checksum += int(np.dot(batch.column(1).to_numpy(), batch.column(3).to_numpy()))

    hot = numbered([7] * 3000)
    for start in range(0, 3000, 1000):
        operator.offer(Rows(0, hot.slice(start, 1000)), emit)
    operator.offer(Rows(1, hot), emit)
    assert sum(sizes) == 3000 * 3000
    assert max(sizes) <= 50_000
    assert largest_batch <= 4 * 8 * 50_000 + 4096
    assert checksum == sum(range(3000)) ** 2, "every pair once"


# Keys whose hashes collide


TWINS = [f"key-000000000085{middle}<Ml3=\\{{t-and-the-ending." for middle in ("--left--", "-right--")]
"""Different texts, one hash: the eight bytes after the middle cancel the state that the hash has there, so that the
middle is multiplied by zero."""


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_keys_that_share_a_hash_are_told_apart(type_: pa.DataType) -> None:
    keys = pa.array([*TWINS, None, "other"]).cast(type_)
    hashes = hash_columns([view(keys)]).hashes
    assert hashes[0] == hashes[1], "the premise: different keys, one hash"
    schema = pa.schema([("key", type_), ("number", pa.int64())])
    batch = pa.record_batch([keys, pa.array(range(4))], schema=schema)
    operator, results = built(schema), list[pa.RecordBatch]()
    operator.offer(Rows(0, batch), results.append)
    operator.offer(Rows(1, batch), results.append)
    operator.offer(Rows(0, batch.slice(1, 1)), results.append)
    pairs = Counter((first, second) for _, first, _, second in rows_of(results))
    assert pairs == Counter([(0, 0), (1, 1), (3, 3), (1, 1)])


def test_a_false_match_in_one_column_of_the_key_is_no_match() -> None:
    schema = pa.schema([("text", pa.string()), ("key", pa.int64())])
    left = pa.record_batch([pa.array([TWINS[0]] * 2), pa.array([1, 2])], schema=schema)
    right = pa.record_batch([pa.array(TWINS), pa.array([1, 1])], schema=schema)
    operator, results = built(schema, ("text", "key")), list[pa.RecordBatch]()
    operator.offer(Rows(0, left), results.append)
    operator.offer(Rows(1, right), results.append)
    assert rows_of(results) == [(TWINS[0], 1, TWINS[0], 1)]


# Payloads


def _dictionary(values: list[str | None]) -> pa.Array:
    return pa.array(values).dictionary_encode()


@pytest.mark.parametrize(
    "payloads",
    [
        [_dictionary(["red", "green", None]), _dictionary(["blue", "red", "blue"])],
        [pa.array([{"x": 1}, None, {"x": None}]), pa.array([{"x": 2}, {"x": 3}, None], pa.struct([("x", pa.int64())]))],
        [pa.nulls(3), pa.nulls(3)],
        [pa.array([b"ab", None, b"cd"], pa.binary(2)), pa.array([b"ef", b"gh", None], pa.binary(2))],
    ],
    ids=["dictionary", "struct", "null", "fixed_size_binary"],
)
def test_any_column_may_come_along(payloads: list[pa.Array]) -> None:
    """Also where batches of one side bring different dictionaries, and through a snapshot."""
    schema = pa.schema([("key", pa.int64()), ("payload", payloads[0].type)])
    batches = [pa.record_batch([pa.array([1, 2, 1]), payload], schema=schema) for payload in payloads]
    operator, results = built(schema), list[pa.RecordBatch]()
    for side in (0, 1):
        operator.offer(Rows(side, batches[0]), results.append)
        operator.offer(Rows(side, batches[1]), results.append)
        operator = joins.restore(joins.Snapshot.from_bytes(operator.snapshot().to_bytes()))
    found = [(left["key"], str(left["payload"]), str(left["payload_1"])) for left in _dictionaries(results)]
    rows = [(row["key"], str(row["payload"])) for batch in batches for row in batch.to_pylist()]
    expected = inner_join(rows, rows, on=[(0, 0)])
    assert Counter(found) == Counter({(key, one, other): n for (key, one, _, other), n in expected.items()})


def test_results_whose_strings_pass_the_end_of_an_array_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain string array ends at 2 GiB, here at 12 bytes: a hot key with a long text passes it soon."""
    monkeypatch.setattr(etl.rows, "_INT32_BYTES", 12)
    schema = pa.schema([("key", pa.int64()), ("text", pa.string())])
    operator, results = built(schema), list[pa.RecordBatch]()
    operator.offer(Rows(0, pa.record_batch([[1, 1], ["abcde", "fghij"]], schema=schema)), results.append)
    operator.offer(Rows(1, pa.record_batch([[1, 1, 1], ["x", "y", "z"]], schema=schema)), results.append)
    assert len(results) > 1
    assert all(5 * batch.num_rows <= 12 for batch in results), "no array of side 0 holds more"
    assert Counter(rows_of(results)) == Counter((1, text, 1, other) for text in ("abcde", "fghij") for other in "xyz")


def _dictionaries(results: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in results for row in batch.to_pylist()]


def _no_results(batch: pa.RecordBatch) -> None:
    raise AssertionError(f"{batch.num_rows} results where none is due")
