"""Many blocks in one call answer like one block after the other, and like Arrow over all blocks in one array."""

from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from etl.kernels.blocks import BlockColumn, block_column, equal_in_blocks, gather_from_blocks, probe_blocks
from etl.kernels.columns import view
from etl.kernels.compiling import Bools, Int32s, Int64s, UInt64s
from etl.kernels.hashing import hash_columns

Values = list[Any]
Triple = tuple[int, int, int]

HASHES = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1]))
SEGMENTS = st.lists(st.lists(st.lists(HASHES, max_size=6), max_size=4), min_size=1, max_size=4)


class Stored:
    """Blocks of hashes by segment; holds the arrays whose addresses it gives away."""

    def __init__(self, segments: list[list[UInt64s]]) -> None:
        self.blocks = [np.sort(block) for segment in segments for block in segment]
        self.blocks_from = np.cumsum([0, *(len(segment) for segment in segments)])
        self.rows = np.array([block.size for block in self.blocks], np.int64)
        self.addresses = np.array([block.ctypes.data for block in self.blocks], np.uint64)

    def probe(self, segment: Int32s, hashes: UInt64s, valid: Bools | None = None, limit: int = 65536) -> list[Triple]:
        """All pairs; fails on a chunk that is empty, too large or of the wrong type."""
        found: list[Triple] = []
        chunks = probe_blocks(self.blocks_from, self.addresses, self.rows, segment, hashes, valid, limit)
        for pairs in chunks:
            assert [part.dtype for part in pairs] == [np.int64, np.int32, np.int64]
            assert 1 <= pairs.positions.size == pairs.block.size == pairs.row.size <= limit
            found.extend(zip(*(part.tolist() for part in pairs), strict=True))
        return found

    def by_definition(self, segment: list[int], hashes: list[int], valid: list[bool]) -> list[Triple]:
        return [
            (position, block, row)
            for position, (owner, key_hash) in enumerate(zip(segment, hashes, strict=True))
            if owner >= 0 and valid[position]
            for block in range(self.blocks_from[owner], self.blocks_from[owner + 1])
            for row, other in enumerate(self.blocks[block].tolist())
            if other == key_hash
        ]


@given(SEGMENTS, st.data(), st.integers(1, 7))
def test_probe_finds_the_pairs_by_definition(segments: list[list[list[int]]], data: st.DataObject, limit: int) -> None:
    stored = Stored([[np.array(block, np.uint64) for block in segment] for segment in segments])
    known = [key_hash for segment in segments for block in segment for key_hash in block]
    one_hash = st.one_of(HASHES, st.sampled_from(known)) if known else HASHES
    one_row = st.tuples(st.integers(-1, len(segments) - 1), one_hash, st.booleans())
    rows = data.draw(st.lists(one_row, max_size=12))
    segment, hashes = [row[0] for row in rows], [row[1] for row in rows]
    valid = [row[2] for row in rows]
    found = stored.probe(np.array(segment, np.int32), np.array(hashes, np.uint64), np.array(valid, np.bool_), limit)
    assert found == stored.by_definition(segment, hashes, valid)


UNIFORM = np.random.default_rng(3).integers(0, 2**64 - 1, 5_000, dtype=np.uint64)
BLOCKS = {
    "uniform": UNIFORM,
    "one part of the range": UNIFORM >> np.uint64(6),
    "crowded at the low end": np.concatenate([UNIFORM >> np.uint64(40), UNIFORM[:10]]),
    "crowded at the high end": ~np.concatenate([UNIFORM >> np.uint64(40), UNIFORM[:10]]),
    "powers": np.uint64(1) << np.repeat(np.arange(64, dtype=np.uint64), 30),
    "all the same": np.full(300, 12345, np.uint64),
    "adjacent": np.arange(2**64 - 500, 2**64, dtype=np.uint64),
    "empty": np.empty(0, np.uint64),
    "one row": UNIFORM[:1],
}


@pytest.mark.parametrize("limit", [1, 63, 64, 65, 65536])
def test_large_blocks_agree_with_searchsorted(limit: int) -> None:
    """One segment per distribution, one with all of them, one without blocks; limits around the size of a group."""
    stored = Stored([*([block] for block in BLOCKS.values()), list(BLOCKS.values()), []])
    known = np.concatenate([block[::97] for block in BLOCKS.values()])
    wanted = np.concatenate([known, known + np.uint64(1), UNIFORM[:20]])
    owners = np.arange(-1, len(BLOCKS) + 2, dtype=np.int32)
    hashes, segment = np.repeat(wanted, owners.size), np.tile(owners, wanted.size)
    expected: list[Triple] = []
    for position, (owner, key_hash) in enumerate(zip(segment, hashes, strict=True)):
        owned = range(stored.blocks_from[owner], stored.blocks_from[owner + 1]) if owner >= 0 else range(0)
        for block in owned:
            first, last = (np.searchsorted(stored.blocks[block], key_hash, side=side) for side in ("left", "right"))
            expected.extend((position, block, row) for row in range(first, last))
    assert len(expected) > 1000
    assert stored.probe(segment, hashes, limit=limit) == expected


def test_a_read_only_memory_map_is_probed_where_it_lies(tmp_path: Path) -> None:
    np.sort(UNIFORM).tofile(tmp_path / "hashes")
    mapped = np.memmap(tmp_path / "hashes", np.uint64, mode="r")
    addresses = np.array([mapped.ctypes.data], np.uint64)
    segment = np.zeros(100, np.int32)
    (pairs,) = probe_blocks(np.array([0, 1]), addresses, np.array([mapped.size]), segment, UNIFORM[:100])
    assert np.array_equal(mapped[pairs.row], UNIFORM[:100])


def test_no_segments_no_blocks_and_no_rows_give_nothing() -> None:
    nothing = Stored([[], []])
    assert nothing.probe(np.array([0, 1, -1], np.int32), UNIFORM[:3]) == []
    assert Stored([[UNIFORM]]).probe(np.empty(0, np.int32), UNIFORM[:0]) == []
    assert Stored([]).probe(np.full(2, -1, np.int32), UNIFORM[:2]) == []


def test_a_directory_that_leads_astray_is_refused() -> None:
    stored, hashes = Stored([[UNIFORM], [UNIFORM]]), UNIFORM[:2]
    segment = np.zeros(2, np.int32)
    with pytest.raises(IndexError, match="row 1 is in segment 2, but there are 2 segments"):
        stored.probe(np.array([0, 2], np.int32), hashes)
    with pytest.raises(IndexError, match="row 0 is in segment -2"):
        stored.probe(np.array([-2, 0], np.int32), hashes)
    with pytest.raises(ValueError, match="1 segment numbers for 2 rows"):
        stored.probe(segment[:1], hashes)
    with pytest.raises(ValueError, match="limit is 0"):
        stored.probe(segment, hashes, limit=0)
    with pytest.raises(ValueError, match="mask has 1 values for 2 rows"):
        stored.probe(segment, hashes, np.ones(1, np.bool_))
    for astray in ([0, 2, 1], [0, 1, 3], [-1, 1, 2]):
        with pytest.raises(ValueError, match=r"blocks_from must ascend within 0\.\.2"):
            probe_blocks(np.array(astray), stored.addresses, stored.rows, segment, hashes)
    with pytest.raises(ValueError, match="blocks_from is empty"):
        probe_blocks(np.empty(0, np.int64), stored.addresses, stored.rows, segment, hashes)
    with pytest.raises(ValueError, match="block 1 has 5000 rows at address 0"):
        probe_blocks(stored.blocks_from, stored.addresses * np.array([1, 0], np.uint64), stored.rows, segment, hashes)
    with pytest.raises(ValueError, match="1 hash addresses for 2 blocks"):
        probe_blocks(stored.blocks_from, stored.addresses[:1], stored.rows, segment, hashes)


def fixed_bytes(width: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=width, max_size=width)


TEXTS = st.one_of(st.text("ab", max_size=3), st.text("aé", min_size=7, max_size=40))
BYTES = st.one_of(st.binary(max_size=2), st.binary(min_size=60, max_size=70))
KEY_TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-2, 2),
    pa.uint16(): st.integers(0, 3),
    pa.int32(): st.integers(-2, 2),
    pa.int64(): st.one_of(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1)),
    pa.uint64(): st.sampled_from([0, 1, 2**64 - 1]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1969, 12, 30), date(1970, 1, 2)),
    pa.timestamp("us"): st.sampled_from([-1, 0, 1_700_000_000_000_000]),
    pa.decimal32(5, 1): st.decimals(-1, 1, places=1),
    pa.decimal128(5, 1): st.decimals(-1, 1, places=1),
    pa.decimal256(50, 1): st.sampled_from([Decimal("-1.5"), Decimal("1e40")]),
    pa.binary(3): st.sampled_from([b"abc", b"abd", b"\0\0\0"]),
    pa.binary(4): st.sampled_from([b"abcd", b"abce"]),
    pa.binary(16): fixed_bytes(16),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
}
OTHER_TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float16(): st.sampled_from([np.float16(1.5), np.float16(-2)]),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.month_day_nano_interval(): st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
}


@st.composite
def stored_arrays(draw: st.DrawFn, column_type: pa.DataType, values: st.SearchStrategy[Any]) -> list[pa.Array]:
    """Blocks, some of them empty, some without nulls, each a slice that starts at any bit."""
    arrays = []
    for _ in range(draw(st.integers(1, 4))):
        skipped = draw(st.integers(0, 10))
        cells = draw(st.lists(st.one_of(st.none(), values) if draw(st.booleans()) else values, max_size=6))
        padding = draw(st.sampled_from([[None], cells[:1]])) * skipped
        arrays.append(pa.array(padding + cells, column_type).slice(len(padding)))
    return arrays


def all_places(arrays: list[pa.Array]) -> tuple[Int32s, Int64s]:
    lengths = [len(array) for array in arrays]
    block = np.repeat(np.arange(len(arrays), dtype=np.int32), lengths)
    return block, np.concatenate([np.arange(length) for length in lengths]).astype(np.int64)


@pytest.mark.parametrize("column_type", KEY_TYPES | OTHER_TYPES, ids=str)
def test_gather_agrees_with_take_over_all_blocks(column_type: pa.DataType) -> None:
    @settings(max_examples=40)
    @given(stored_arrays(column_type, (KEY_TYPES | OTHER_TYPES)[column_type]), st.data())
    def agree(arrays: list[pa.Array], data: st.DataObject) -> None:
        block, row = all_places(arrays)
        picks = data.draw(st.lists(st.integers(0, block.size - 1), max_size=20)) if block.size else []
        gathered = gather_from_blocks(block_column(arrays), column_type, block[picks], row[picks])
        gathered.validate(full=True)
        assert gathered.equals(pa.concat_arrays(arrays).take(pa.array(picks, pa.int64())))

    agree()


@pytest.mark.parametrize("column_type", [pa.int64(), pa.bool_(), pa.string(), pa.binary(16)], ids=str)
def test_no_block_gives_a_null(column_type: pa.DataType) -> None:
    example = {pa.int64(): 7, pa.bool_(): True, pa.string(): "seven"}.get(column_type, b"7" * 16)
    array = pa.array([example], column_type)
    block, row = np.array([-1, 0, -1], np.int32), np.array([5, 0, 0])
    gathered = gather_from_blocks(block_column([array]), column_type, block, row)
    gathered.validate(full=True)
    assert gathered.to_pylist() == [None, example, None]


@pytest.mark.parametrize("column_type", KEY_TYPES, ids=str)
def test_all_pairs_compare_as_in_python(column_type: pa.DataType) -> None:
    values = KEY_TYPES[column_type]

    @settings(max_examples=40)
    @given(st.lists(st.one_of(st.none(), values), max_size=8), stored_arrays(column_type, values), st.integers(0, 3))
    def agree(keys: Values, arrays: list[pa.Array], skipped: int) -> None:
        key = view(pa.array([None] * skipped + keys, column_type).slice(skipped))
        block, row = all_places(arrays)
        positions = np.repeat(np.arange(len(keys)), block.size)
        pairs = np.tile(block, len(keys)), np.tile(row, len(keys))
        found = equal_in_blocks([key], positions, [block_column(arrays)], *pairs)
        assert found.dtype == np.bool_
        stored = pa.array([], column_type).to_pylist() + [cell for array in arrays for cell in array.to_pylist()]
        key_cells = pa.array(keys, column_type).to_pylist()
        assert found.tolist() == [one is not None and one == other for one in key_cells for other in stored]

    agree()


def compare(keys: pa.Array, stored: pa.Array) -> Values:
    places = np.arange(len(keys))
    block = np.zeros(len(keys), np.int32)
    return list(equal_in_blocks([view(keys)], places, [block_column([stored])], block, places).tolist())


def test_values_are_compared_not_containers() -> None:
    assert compare(pa.array([1, -1, 300], pa.int32()), pa.array([1, -1, 44], pa.int64())) == [True, True, False]
    assert compare(pa.array([2**64 - 1, 5], pa.uint64()), pa.array([-1, 5], pa.int64())) == [False, True]
    assert compare(pa.array([-1, 5], pa.int64()), pa.array([2**64 - 1, 5], pa.uint64())) == [False, True]
    assert compare(pa.array([1, 0, 2], pa.int8()), pa.array([True, False, True])) == [True, True, False]
    assert compare(pa.array(["a", "b" * 20]), pa.array(["a", "b" * 20], pa.large_string())) == [True, True]
    assert compare(pa.array(["a"]).dictionary_encode(), pa.array([b"a"])) == [True]
    with pytest.raises(TypeError, match="key column 0 holds integers in the stream and values of 8 bytes"):
        compare(pa.array([1]), pa.array([1.0]))
    with pytest.raises(TypeError, match="holds variable-width values in the stream and integers in the blocks"):
        compare(pa.array(["1"]), pa.array([1]))


def test_colliding_hashes_are_told_apart_by_every_column() -> None:
    """All rows share one hash, so every pair is a candidate; the key columns decide."""
    sources, texts = [pa.array([1, 1, 2]), pa.array([2])], [pa.array(["a", "b", "a"]), pa.array(["b"])]
    stored = Stored([[np.zeros(3, np.uint64), np.zeros(1, np.uint64)]])
    keys = [view(pa.array([2, 1, 1])), view(pa.array(["a", "b", "c"]))]
    candidates = stored.probe(np.zeros(3, np.int32), np.zeros(3, np.uint64), limit=2)
    positions, block, row = (np.array(part) for part in zip(*candidates, strict=True))
    equal = equal_in_blocks(keys, positions, [block_column(sources), block_column(texts)], block, row)
    assert len(candidates) == 12
    assert [triple for triple, same in zip(candidates, equal, strict=True) if same] == [(0, 0, 2), (1, 0, 1)]


def test_memory_mapped_files_are_joined_where_they_lie(tmp_path: Path) -> None:
    """Probe, compare and gather on the read-only blocks of an Arrow file, as an operator does."""
    rows, size = 4_000, 500
    keys = pa.array([None if number % 97 == 0 else f"customer-{number:08d}" for number in range(rows)])
    hashed = hash_columns([view(keys)]).hashes
    order = pa.array(np.argsort(hashed))
    table = pa.table({"hash": hashed, "key": keys, "surrogate": np.arange(rows)}).take(order)
    with pa.ipc.new_file(str(tmp_path / "run"), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)
    file = pa.ipc.open_file(pa.memory_map(str(tmp_path / "run")))
    batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    hash_column, key_column, surrogate_column = (block_column([batch[n] for batch in batches]) for n in range(3))

    boundaries = np.array([batch["hash"][0].as_py() for batch in batches], np.uint64)
    wanted = pa.array([f"customer-{number:08d}" for number in range(0, 2 * rows, 3)] + [None])
    probe = hash_columns([view(wanted)])
    segment = np.maximum(np.searchsorted(boundaries, probe.hashes, side="right") - 1, 0).astype(np.int32)
    blocks_from = np.arange(len(batches) + 1)
    chunks = probe_blocks(blocks_from, hash_column.values, hash_column.rows, segment, probe.hashes, probe.valid)
    (pairs,) = chunks
    equal = equal_in_blocks([view(wanted)], pairs.positions, [key_column], pairs.block, pairs.row)
    surrogates = gather_from_blocks(surrogate_column, pa.int64(), pairs.block[equal], pairs.row[equal])
    assert surrogates.to_pylist() == [number for number in range(0, rows, 3) if number % 97]


def test_a_stored_row_that_is_not_there_is_refused() -> None:
    column = block_column([pa.array([1, 2]), pa.array([3])])
    key = [view(pa.array([1]))]
    for block, row, there in ((0, 2, "it has 2 rows"), (0, -1, "it has 2 rows"), (2, 0, "there are 2 blocks")):
        place = np.array([block], np.int32), np.array([row])
        with pytest.raises(IndexError, match=f"pair 0 names row {row} of block {block}, but {there}"):
            gather_from_blocks(column, pa.int64(), *place)
        with pytest.raises(IndexError, match=f"pair 0 names row {row} of block {block}, but {there}"):
            equal_in_blocks(key, np.zeros(1, np.int64), [column], *place)
    with pytest.raises(IndexError, match="pair 1 names row 0 of block -2"):
        gather_from_blocks(column, pa.int64(), np.array([-1, -2], np.int32), np.zeros(2, np.int64))
    with pytest.raises(IndexError, match="pair 0 names row 0 of block -1"):
        equal_in_blocks(key, np.zeros(1, np.int64), [column], np.array([-1], np.int32), np.zeros(1, np.int64))
    for position in (-1, 1):
        with pytest.raises(IndexError, match="a position lies outside key column 0 of the stream: it has 1 rows"):
            equal_in_blocks(key, np.array([position]), [column], np.zeros(1, np.int32), np.zeros(1, np.int64))


@pytest.mark.parametrize("column_type", [pa.bool_(), pa.string(), pa.large_binary(), pa.binary(3)], ids=str)
def test_a_row_past_the_end_is_refused_for_every_layout(column_type: pa.DataType) -> None:
    column = block_column([pa.nulls(2, column_type), pa.nulls(0, column_type)])
    for block, row in ((0, 2), (1, 0)):
        with pytest.raises(IndexError, match=f"pair 1 names row {row} of block {block}"):
            gather_from_blocks(column, column_type, np.array([0, block], np.int32), np.array([1, row]))


def test_pairs_and_columns_must_fit_together() -> None:
    column = block_column([pa.array([1, 2])])
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="the stream's key has 0 columns, the stored key has 1"):
        equal_in_blocks([], one, [column], one.astype(np.int32), one)
    with pytest.raises(ValueError, match="2 positions for 1 stored rows"):
        equal_in_blocks([view(pa.array([1]))], two, [column], one.astype(np.int32), one)
    with pytest.raises(ValueError, match="not 2 blocks and 1 rows"):
        gather_from_blocks(column, pa.int64(), two.astype(np.int32), one)
    with pytest.raises(ValueError, match="one entry per block"):
        gather_from_blocks(column._replace(rows=np.array([2, 2])), pa.int64(), one.astype(np.int32), one)
    with pytest.raises(TypeError, match="the blocks do not hold int32"):
        gather_from_blocks(column, pa.int32(), one.astype(np.int32), one)


def test_types_without_a_plain_layout_are_refused() -> None:
    for array in (
        pa.array(["a"]).dictionary_encode(),
        pa.array(["a"], pa.string_view()),
        pa.array([[1]]),
        pa.nulls(1),
        pa.array([b"0" * 16], pa.uuid()),
    ):
        with pytest.raises(TypeError, match="cast a dictionary or a view to the plain type"):
            block_column([array])
    with pytest.raises(TypeError, match="block 1 holds int32 where the column is int64"):
        block_column([pa.array([1]), pa.array([1], pa.int32())])


def test_a_column_of_no_blocks_needs_its_type() -> None:
    with pytest.raises(ValueError, match="give the type"):
        block_column([])
    nowhere = np.array([-1], np.int32), np.zeros(1, np.int64)
    assert gather_from_blocks(block_column([], pa.string()), pa.string(), *nowhere).to_pylist() == [None]


def test_more_text_than_32_bit_offsets_can_count_is_refused() -> None:
    """The sizes are added up before anything is copied, so this takes 1 MiB and not 2 GiB."""
    text = pa.array(["x" * 2**20])
    block, row = np.zeros(2048, np.int32), np.zeros(2048, np.int64)
    with pytest.raises(pa.ArrowCapacityError, match="2147483648 bytes are too many for one string array"):
        gather_from_blocks(block_column([text]), pa.string(), block, row)
    assert len(gather_from_blocks(block_column([text]), pa.string(), block[:3], row[:3])[2].as_py()) == 2**20


def test_the_bytes_under_a_null_do_not_show() -> None:
    """A null may have bytes of its own in the block; the result has none, whatever they were."""
    bits, offsets = pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 5], np.int32))
    text = pa.Array.from_buffers(pa.string(), 2, [bits, offsets, pa.py_buffer(b"abcde")])
    number = pa.Array.from_buffers(pa.int64(), 2, [bits, pa.py_buffer(np.array([77, 5]))])
    block, row = np.zeros(2, np.int32), np.arange(2)
    gathered_text = gather_from_blocks(block_column([text]), pa.string(), block, row)
    gathered_number = gather_from_blocks(block_column([number]), pa.int64(), block, row)
    assert gathered_text.to_pylist() == [None, "de"]
    assert gathered_text.buffers()[2].to_pybytes() == b"de"
    assert np.frombuffer(gathered_number.buffers()[1], np.int64).tolist() == [0, 5]


def test_a_block_column_says_where_the_rows_lie() -> None:
    texts = [pa.array(["a", None, "c"]).slice(1), pa.array(["d", "e"]), pa.array([], pa.string())]
    column = block_column(texts)
    assert isinstance(column, BlockColumn)
    assert column.rows.tolist() == [2, 2, 0]
    assert column.bit_offset.tolist() == [1, 0, 0]
    assert column.offsets[0] == texts[0].buffers()[1].address + 4
    assert [bool(address) for address in column.validity] == [True, False, False]
    assert all(earlier != later for earlier, later in pairwise(column.values))
