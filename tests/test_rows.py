"""Row buffers against Arrow: whatever was appended, gathering equals concatenating and taking."""

from __future__ import annotations

import datetime
import decimal
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl.rows
from etl.errors import BadInput
from etl.kernels.columns import view
from etl.kernels.compare import equal_rows
from etl.kernels.hashing import hash_columns
from etl.rows import RowBuffer, join_schema
from tests.harness.retained import retained_bytes

DAY = datetime.date(1970, 1, 1)
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)

KEY_COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "int8": (pa.int8(), [-128, 0, 127]),
    "uint16": (pa.uint16(), [0, 65535, 7]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, 1]),
    "bool": (pa.bool_(), [True, False]),
    "decimal64": (pa.decimal64(10, 2), [decimal.Decimal("-1.25"), decimal.Decimal("99999999.99")]),
    "decimal128": (pa.decimal128(30, 4), [decimal.Decimal("-1.2500"), decimal.Decimal(10) ** 20]),
    "decimal256": (pa.decimal256(60, 1), [decimal.Decimal("0.1"), -(decimal.Decimal(10) ** 50)]),
    "date32": (pa.date32(), [DAY, datetime.date(1969, 12, 31)]),
    "time64": (pa.time64("us"), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON, NOON - datetime.timedelta(days=40_000)]),
    "string": (pa.string(), ["", "a", "päron", "text that is longer than the others"]),
    "large_string": (pa.large_string(), ["", "a", "päron"]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff\0"]),
    "large_binary": (pa.large_binary(), [b"", b"\0", b"\xff\0"]),
    "fixed_size_binary 4": (pa.binary(4), [b"\xff\xff\xff\xff", b"\0\0\0\0", b"abcd"]),
    "fixed_size_binary 5": (pa.binary(5), [b"\xff" * 5, b"\0" * 5, b"abcde"]),
}
OTHER_COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "float16": (pa.float16(), [np.float16(0.5), np.float16(-2)]),
    "float64": (pa.float64(), [0.5, -0.0, float("inf")]),
    "duration": (pa.duration("ms"), [datetime.timedelta(0), datetime.timedelta(milliseconds=-5)]),
    "interval": (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([-1, 0, 0])]),
    "fixed_size_binary 0": (pa.binary(0), [b""]),
    "list": (pa.list_(pa.int32()), [[], [1, None], [2, 3, 4]]),
    "list of strings": (pa.large_list(pa.string()), [[], ["a", None], ["bc"]]),
    "struct": (pa.struct([("x", pa.int8()), ("y", pa.string())]), [{"x": 1, "y": "a"}, {"x": None, "y": "b"}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1), ("b", None)]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["red", "green", "blue"]),
    "null": (pa.null(), []),
}
COLUMNS = KEY_COLUMNS | OTHER_COLUMNS


def array_of(kind: str, picks: Sequence[int | None]) -> pa.Array:
    """An array of this kind: each pick chooses a value, None is null."""
    type_, values = COLUMNS[kind]
    chosen = [None if pick is None or not values else values[pick % len(values)] for pick in picks]
    if pa.types.is_dictionary(type_):
        # Dictionaries differ from batch to batch, as they do when they come from files.
        return pa.array(chosen, pa.string()).dictionary_encode().cast(type_)
    return pa.array(chosen, type_)


def batch_of(kind: str, picks: Sequence[int | None], skipped: int = 0) -> pa.RecordBatch:
    """A batch of one column, looked at through a slice that skips some leading rows."""
    array = array_of(kind, [*range(skipped), *picks])
    return pa.record_batch([array], names=["column"]).slice(skipped)


picks = st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=12)
no_nulls = st.lists(st.integers(0, 3), max_size=12)
batches = st.lists(st.tuples(st.one_of(picks, no_nulls), st.integers(0, 9)), max_size=6)


@pytest.mark.parametrize("kind", COLUMNS)
@given(given_batches=batches, data=st.data())
@settings(max_examples=30, deadline=None)
def test_taking_equals_what_arrow_takes(
    kind: str, given_batches: list[tuple[list[int | None], int]], data: st.DataObject
) -> None:
    appended = [batch_of(kind, picks, skipped) for picks, skipped in given_batches]
    schema = pa.schema([("column", COLUMNS[kind][0])])
    rows = buffer_of(schema, appended)
    table = pa.Table.from_batches(appended, schema).combine_chunks()
    whole = pa.concat_arrays(table.column(0).chunks) if table.num_rows else pa.array([], schema[0].type)
    assert len(rows) == len(whole)
    index = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)) if len(whole) else []
    (taken,) = rows.take(np.array(index, np.int64))
    taken.validate(full=True)
    assert taken.type == schema[0].type
    assert taken.to_pylist() == whole.take(pa.array(index, pa.int64())).to_pylist()
    stored = rows.to_batches()
    assert [batch.schema for batch in stored] == [schema]
    stored[0].validate(full=True)
    assert stored[0].column(0).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("kind", KEY_COLUMNS)
@given(given_batches=batches)
@settings(max_examples=20, deadline=None)
def test_the_kernels_see_stored_keys_as_they_see_arriving_ones(
    kind: str, given_batches: list[tuple[list[int | None], int]]
) -> None:
    appended = [batch_of(kind, picks, skipped) for picks, skipped in given_batches]
    schema = pa.schema([("column", COLUMNS[kind][0])])
    (stored,) = buffer_of(schema, appended).views([0])
    whole = pa.Table.from_batches(appended, schema).column(0).combine_chunks()
    arriving = view(whole)
    assert (stored.length, stored.width) == (arriving.length, arriving.width)
    stored_keys, arriving_keys = hash_columns([stored]), hash_columns([arriving])
    assert stored_keys.hashes.tolist() == arriving_keys.hashes.tolist()
    every_row = np.arange(len(whole))
    assert equal_rows([stored], every_row, [arriving], every_row).tolist() == whole.is_valid().to_pylist()


@pytest.mark.parametrize("kind", OTHER_COLUMNS.keys() - {"float16", "float64", "duration", "interval"})
def test_a_column_that_kernels_do_not_know_cannot_be_a_key(kind: str) -> None:
    with pytest.raises(BadInput, match=r"a column of type .* cannot be a key"):
        RowBuffer(pa.schema([("column", COLUMNS[kind][0])])).views([0])


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_was_given_out_before_an_append_stays_as_it_was(kind: str) -> None:
    schema = pa.schema([("column", COLUMNS[kind][0])])
    rows = buffer_of(schema, [batch_of(kind, [0, 1, 2])])
    stored, taken = rows.to_batches(), rows.take(np.array([2, 0]))
    before = [stored[0].to_pylist(), [array.to_pylist() for array in taken]]
    for picks in ([1, 1], [None, 0], [2] * 40):  # within the spare room, with the first null, and beyond the room
        rows.append(batch_of(kind, picks))
    assert [stored[0].to_pylist(), [array.to_pylist() for array in taken]] == before
    assert len(rows) == 47


def test_an_append_copies_so_the_caller_may_reuse_its_memory() -> None:
    numbers = np.arange(3)
    batch = pa.record_batch([pa.array(numbers)], names=["column"])
    rows = buffer_of(batch.schema, [batch])
    numbers[:] = -1
    assert rows.take(np.arange(3))[0].to_pylist() == [0, 1, 2]


ARROW_ROUNDING = 256
"""Arrow counts the bits of a bitmap and holds whole words: a few bytes for each buffer of a nested column."""


@pytest.mark.parametrize("kind", COLUMNS)
@given(given_batches=batches)
@settings(max_examples=20, deadline=None)
def test_memory_is_announced_before_it_is_held(kind: str, given_batches: list[tuple[list[int | None], int]]) -> None:
    """What a buffer holds is at most what was announced and at least what can be reached from it."""
    rows = RowBuffer(pa.schema([("column", COLUMNS[kind][0])]))
    for picks, skipped in given_batches:
        batch = batch_of(kind, picks, skipped)
        before, announced = rows.nbytes, rows.bytes_after(batch)
        assert rows.nbytes == before, "asking changes nothing"
        rows.append(batch)
        assert rows.nbytes <= announced + (ARROW_ROUNDING if kind in OTHER_COLUMNS else 0)
        assert rows.nbytes == sum(column.nbytes for column in rows._columns)
        assert retained_bytes(rows) <= rows.nbytes


def test_the_first_null_of_many_rows_is_announced_too() -> None:
    schema = pa.schema([("number", pa.int8()), ("text", pa.string())])
    rows = buffer_of(
        schema, [pa.record_batch([array_of("int8", [0] * 1000), array_of("string", [0] * 1000)], schema=schema)]
    )
    late = pa.record_batch([pa.array([None], pa.int8()), pa.array([None], pa.string())], schema=schema)
    announced = rows.bytes_after(late)
    rows.append(late)
    assert rows.nbytes <= announced


PEAK_SLACK = 64 * 1024
"""Scratch of an append that does not grow with the rows that are held already."""


@pytest.mark.parametrize("kind", ["int64", "bool", "decimal128", "string", "large_string"])
@pytest.mark.parametrize("nulls", ["none", "all along", "first comes late"])
def test_an_append_allocates_no_more_than_announced(kind: str, nulls: str) -> None:
    rows = RowBuffer(pa.schema([("column", COLUMNS[kind][0])]))
    for number in range(40):
        has_null = nulls == "all along" or (nulls == "first comes late" and number >= 35)
        batch = batch_of(kind, [None if has_null else 0, *([1] * 4999)])
        held, announced = rows.nbytes, rows.bytes_after(batch)
        with _numpy_peak() as peak:
            rows.append(batch)
        assert held + peak[0] <= announced + PEAK_SLACK, f"batch {number}"


@pytest.mark.parametrize("kind", ["list", "struct", "map", "dictionary"])
def test_an_append_of_arrow_columns_allocates_no_more_than_announced(kind: str) -> None:
    rows = RowBuffer(pa.schema([("column", COLUMNS[kind][0])]))
    batch = batch_of(kind, list(range(30_000)))
    announced = 0
    with _arrow_pool() as pool:
        for number in range(20):
            announced = max(announced, rows.bytes_after(batch))
            rows.append(batch)
            assert pool.max_memory() <= announced + PEAK_SLACK, f"batch {number}"


def test_doubling_keeps_appends_cheap() -> None:
    """A million rows in small batches: the arrays grow a logarithmic number of times."""
    schema = pa.schema([("column", pa.int64())])
    rows = RowBuffer(schema)
    batch = pa.record_batch([pa.array(np.arange(1000))], schema=schema)
    sizes = set()
    for _ in range(1000):
        rows.append(batch)
        sizes.add(rows.nbytes)
    assert len(sizes) <= 12
    assert rows.nbytes <= 2 * 8 * 1_000_000


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> int:
    """Plain string arrays end at 2 GiB; here they end at 10 bytes."""
    monkeypatch.setattr(etl.rows, "_INT32_BYTES", 10)
    return 10


def test_strings_past_the_end_of_an_array_are_cut_into_batches(small_arrays: int) -> None:
    texts = ["abcd", "", None, "efgh", "i", "exactly 10", "jk", None]
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    batch = pa.record_batch([pa.array(texts), pa.array(range(8))], schema=schema)
    stored = buffer_of(schema, [batch]).to_batches()
    assert pa.Table.from_batches(stored).to_pylist() == batch.to_pylist()
    assert len(stored) > 1
    for part in stored:
        assert sum(len(text or "") for text in part.column("text").to_pylist()) <= small_arrays


def test_a_take_past_the_end_of_an_array_says_so(small_arrays: int) -> None:
    schema = pa.schema([("text", pa.binary())])
    rows = buffer_of(schema, [pa.record_batch([pa.array([b"123456"])], schema=schema)])
    with pytest.raises(pa.ArrowCapacityError, match="12 bytes are too many for one binary array"):
        rows.take(np.array([0, 0]))


@pytest.mark.usefixtures("small_arrays")
def test_large_strings_have_no_end() -> None:
    schema = pa.schema([("text", pa.large_string())])
    rows = buffer_of(schema, [pa.record_batch([pa.array(["0123456789abc"] * 3, pa.large_string())], schema=schema)])
    assert len(rows.to_batches()) == 1
    assert rows.take(np.array([0, 2]))[0].to_pylist() == ["0123456789abc"] * 2


def test_several_columns_grow_together() -> None:
    parts = [
        pa.record_batch([array_of(kind, picks) for kind in ("int64", "string", "list")], names=["a", "b", "c"])
        for picks in ([0, 1], [], [None, 2, 1])
    ]
    rows = buffer_of(parts[0].schema, parts)
    assert pa.Table.from_batches(rows.to_batches()).equals(pa.Table.from_batches(parts).combine_chunks())
    assert rows.views([1, 0])[0].width == 0, "views come in the order that was asked for"


def test_a_buffer_without_rows_gives_an_empty_batch() -> None:
    schema = pa.schema([(kind, type_) for kind, (type_, _) in COLUMNS.items()])
    (empty,) = RowBuffer(schema).to_batches()
    assert empty.schema == schema
    assert empty.num_rows == 0


def test_repeated_names_get_the_suffix_of_their_input() -> None:
    left = pa.schema([("key", pa.int64()), ("name", pa.string())])
    right = pa.schema([pa.field("key", pa.int64(), nullable=False), ("price", pa.float64())])
    joined = join_schema([left, right, right], ["", "_1", "_2"])
    assert joined.names == ["key", "name", "key_1", "price", "key_2", "price_2"]
    assert not joined.field("key_1").nullable


@pytest.mark.parametrize(
    ("left", "right", "suffixes"),
    [
        (["key"], ["key"], ["", ""]),
        (["key", "key_1"], ["key"], ["", "_1"]),
        (["key", "key"], ["other"], ["", "_1"]),
    ],
)
def test_names_that_repeat_in_spite_of_suffixes_are_refused(
    left: list[str], right: list[str], suffixes: list[str]
) -> None:
    schemas = [pa.schema([(name, pa.int64()) for name in names]) for names in (left, right)]
    with pytest.raises(BadInput, match=r"result column 'key.*' repeats: choose other suffixes than"):
        join_schema(schemas, suffixes)


def buffer_of(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> RowBuffer:
    rows = RowBuffer(schema)
    for batch in batches:
        rows.append(batch)
    return rows


@contextmanager
def _numpy_peak() -> Iterator[list[int]]:
    """Bytes that NumPy and Python held more at the peak than at the start; known when the block ends."""
    peak = [0]
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


@contextmanager
def _arrow_pool() -> Iterator[pa.MemoryPool]:
    """A memory pool of its own for a while, which knows its peak."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)


_POOLS: list[pa.MemoryPool] = []
"""Arrow frees an array through the pool that it came from, so a pool lives as long as the tests do."""
