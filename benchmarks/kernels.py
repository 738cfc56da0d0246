"""The kernels beside what NumPy, pandas and Arrow offer for the same question."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.runner import Case, Subject, Subjects, main
from etl.kernels.blocks import BlockColumn, block_column, equal_in_blocks, gather_from_blocks, probe_blocks
from etl.kernels.chunks import Pairs
from etl.kernels.columns import view
from etl.kernels.compare import equal_rows
from etl.kernels.filters import build_filter, empty_filter, filter_words, may_hold
from etl.kernels.hash_table import HashTable, build
from etl.kernels.hashing import hash_columns
from etl.kernels.merge import merge_band, merge_equal
from etl.kernels.scatter import partition_of, scatter
from etl.kernels.sorted_probe import sorted_probe

Hashes = npt.NDArray[np.uint64]


def cases(quick: bool) -> Iterator[Case]:
    """Hashing, hash tables of three sizes, batches, sorted probes, comparing, scatters, merges, blocks, filters."""
    rows = 20_000 if quick else 1_000_000
    yield Case("hash 17-byte strings", partial(hash_strings, rows), rows=rows, digest=_distinct)
    yield Case("hash int64", partial(hash_integers, rows), rows=rows, digest=_distinct)
    for size in (1_000, 10_000, 100_000) if quick else (10_000, 1_000_000, 10_000_000):
        name = f"build and probe {size:,} rows"
        yield Case(name, partial(build_and_probe, size), rows=2 * size, digest=_rows_found)
    yield Case(f"two growing tables of {rows:,} rows", partial(growing_tables, rows), rows=2 * rows, expected=rows)
    yield Case(f"probe {rows:,} sorted rows", partial(probe_sorted, rows), rows=rows // 5, digest=_rows_found)
    yield Case("compare 17-byte strings", partial(compare_strings, rows), rows=rows, digest=_count_true)
    yield Case("scatter to 60 partitions", partial(scatter_rows, rows, 60), rows=rows)
    yield Case("merge two sorted runs on equality", partial(merge_duplicates, rows), rows=2 * rows)
    yield Case("merge two sorted runs on a band", partial(merge_in_a_band, rows), rows=2 * rows)
    yield from block_cases(Stored(10, 2_000, 3, 500) if quick else Stored(100, 100_000, 30, 10_000))


def hash_strings(rows: int) -> Subjects:
    return _hashing(_strings(rows))


def hash_integers(rows: int) -> Subjects:
    return _hashing(pa.array(np.arange(rows)))


def build_and_probe(rows: int) -> Subjects:
    """One match per row; the rows of both sides count. At ten million rows a sort takes half a minute: left out."""
    stored = _random_hashes(rows)
    probe = np.random.default_rng(2).permutation(stored)

    def by_searchsorted() -> npt.NDArray[np.int64]:
        order = np.argsort(stored)
        return order[np.searchsorted(stored, probe, sorter=order)]

    subjects: dict[str, Subject] = {
        "headrace": lambda: list(build(stored).probe(probe)),
        "pandas Index": lambda: pd.Index(stored).get_indexer(pd.Index(probe)),
        "arrow index_in": lambda: pc.index_in(pa.array(probe), pa.array(stored)),
    }
    return subjects | ({"numpy searchsorted": by_searchsorted} if rows <= 1_000_000 else {})


def growing_tables(rows: int) -> Subjects:
    """What a symmetric hash join asks of its tables: each batch probes one side and joins the other."""
    left = _random_hashes(rows)
    right = np.random.default_rng(3).permutation(left)

    def in_batches(size: int) -> int:
        tables = HashTable(), HashTable()
        pairs = 0
        for start in range(0, rows, size):
            for side, hashes in enumerate((left, right)):
                batch = hashes[start : start + size]
                pairs += _count(tables[1 - side].probe(batch))
                tables[side].insert(batch)
        return pairs

    return {f"batches of {size:,}": partial(in_batches, size) for size in (1_000, 10_000)}


def probe_sorted(rows: int) -> Subjects:
    """A fifth as many probes as stored rows, half of them misses."""
    stored = np.sort(_random_hashes(rows))
    hits = np.random.default_rng(4).permutation(stored)[: rows // 10]
    probe = np.random.default_rng(5).permutation(np.concatenate([hits, _random_hashes(rows // 10, seed=6)]))

    def by_searchsorted() -> npt.NDArray[np.int64]:
        places = np.searchsorted(stored, probe)
        found: npt.NDArray[np.int64] = places[stored[np.minimum(places, rows - 1)] == probe]
        return found

    return {"headrace": lambda: list(sorted_probe(stored, probe)), "numpy searchsorted": by_searchsorted}


def compare_strings(rows: int) -> Subjects:
    """Candidate pairs in random order, every other one equal."""
    array = _strings(rows)
    column = view(array)
    left = np.random.default_rng(7).permutation(rows)
    right = np.where(left % 2 == 0, left, rows - 1 - left)
    return {
        "headrace": lambda: equal_rows([column], left, [column], right),
        "arrow take, equal": lambda: pc.equal(array.take(pa.array(left)), array.take(pa.array(right))),
    }


def scatter_rows(rows: int, partitions: int) -> Subjects:
    hashes = _random_hashes(rows)

    def by_argsort() -> npt.NDArray[np.int64]:
        return np.argsort(((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32), kind="stable")

    return {
        "headrace": lambda: scatter(partition_of(hashes, partitions), partitions)[0],
        "numpy stable argsort": by_argsort,
    }


def merge_duplicates(rows: int) -> Subjects:
    """As many possible values as rows, so most come more than once."""
    left, right = _sorted_runs(rows)
    tables = [pd.DataFrame({"key": keys}) for keys in (left, right)]
    return {
        "headrace": lambda: _count(merge_equal(left, right)),
        "pandas merge": lambda: len(tables[0].merge(tables[1], on="key")),
    }


def merge_in_a_band(rows: int) -> Subjects:
    """NumPy answers how many partners each row has, not which: less is asked of it."""
    left, right = _sorted_runs(rows)

    def by_searchsorted() -> int:
        return int((np.searchsorted(right, left + 2, side="right") - np.searchsorted(right, left - 1)).sum())

    return {
        "headrace": lambda: _count(merge_band(left, right, 1, 2)),
        "numpy searchsorted, counts only": by_searchsorted,
    }


def _hashing(array: pa.Array) -> Subjects:
    """Hashes differ between libraries, so each is asked how many distinct ones it finds."""
    objects = array.to_numpy(zero_copy_only=False)
    connection = duckdb.connect(config={"threads": 1})
    connection.register("input", pa.table({"key": array}))
    return {
        "headrace": lambda: hash_columns([view(array)]).hashes,
        "pandas hash_array": lambda: pd.util.hash_array(objects, categorize=False),
        "duckdb hash, 1 thread": lambda: connection.sql("SELECT hash(key) AS h FROM input").fetchnumpy()["h"],
    }


def _strings(rows: int) -> pa.Array:
    return pa.array([f"customer-{number:08d}" for number in range(rows)])


def _sorted_runs(rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    left, right = (np.random.default_rng(seed).integers(0, rows, rows) for seed in (8, 9))
    return np.sort(left), np.sort(right)


def _random_hashes(rows: int, seed: int = 1) -> Hashes:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, rows, dtype=np.uint64)


def _count(chunks: Iterator[Pairs]) -> int:
    return sum(left.size for left, _ in chunks)


def _distinct(hashes: Hashes) -> int:
    return np.unique(hashes).size


def _count_true(answer: npt.ArrayLike) -> int:
    return int(np.asarray(answer).sum())


def _rows_found(answer: object) -> npt.NDArray[np.int64]:
    """Row numbers in probe order, whichever way a subject returns them."""
    if isinstance(answer, list):
        return np.concatenate([rows for _, rows in answer])
    return np.asarray(answer)


class Stored(NamedTuple):
    """A relation in blocks, and the batches that ask it: enough of them that their rows do not stay in the cache."""

    blocks: int
    block_rows: int
    batches: int
    batch_rows: int

    @property
    def rows(self) -> int:
        return self.blocks * self.block_rows

    def places(self) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
        """Random stored rows, a batch at a time."""
        picks = np.random.default_rng(10).integers(0, self.rows, (self.batches, self.batch_rows))
        return [((pick // self.block_rows).astype(np.int32), pick % self.block_rows) for pick in picks]

    def flat(self) -> list[pa.Array]:
        """The same rows, numbered through all blocks."""
        return [pa.array(block.astype(np.int64) * self.block_rows + row) for block, row in self.places()]

    def column(self, values: pa.Array) -> BlockColumn:
        return block_column([values.slice(block * self.block_rows, self.block_rows) for block in range(self.blocks)])


def block_cases(stored: Stored) -> Iterator[Case]:
    """One call per batch for all blocks, beside peers that get all blocks in one piece.

    The peers read the arrays whose addresses ours get, and so keep them alive.
    """
    asked = stored.batches * stored.batch_rows
    relation = f"{stored.blocks:,} blocks of {stored.block_rows:,} rows, {stored.batches} x {stored.batch_rows:,}"
    yield Case(f"probe {relation}", partial(probe_in_blocks, stored), rows=asked)
    yield Case(f"compare in {relation}", partial(compare_in_blocks, stored), rows=asked, expected=asked)
    yield Case(f"gather int64 from {relation}", partial(gather_integers, stored), rows=asked)
    yield Case(f"gather strings from {relation}", partial(gather_strings, stored), rows=asked)
    yield Case(f"ask the filters of {relation}", partial(ask_filters, stored), rows=asked)
    yield Case("build a filter", partial(build_filters, stored.block_rows), rows=stored.block_rows)


def probe_in_blocks(stored: Stored) -> Subjects:
    hashes, blocks, batches = _hash_blocks(stored)
    starts, addresses = np.arange(stored.blocks + 1), _addresses_of(blocks)
    block_rows = np.full(stored.blocks, stored.block_rows)

    def in_blocks() -> npt.NDArray[np.int64]:
        chunks = [
            chunk for segment, asked in batches for chunk in probe_blocks(starts, addresses, block_rows, segment, asked)
        ]
        return np.concatenate([chunk.block.astype(np.int64) * stored.block_rows + chunk.row for chunk in chunks])

    return {
        "headrace": in_blocks,
        "numpy searchsorted": lambda: np.concatenate([np.searchsorted(hashes, asked) for _, asked in batches]),
    }


def compare_in_blocks(stored: Stored) -> Subjects:
    """A key of an int32 and a 17-byte string; all pairs are equal, so that nothing is cut short."""
    columns = [pa.array(np.arange(stored.rows, dtype=np.int32) % 7), _texts(stored.rows)]
    in_blocks = [stored.column(column) for column in columns]
    places, flat = stored.places(), stored.flat()
    keys = [[column.take(rows) for column in columns] for rows in flat]
    views = [[view(key) for key in batch] for batch in keys]
    positions = np.arange(stored.batch_rows)

    def by_arrow(batch: int) -> int:
        equal = [pc.equal(column.take(flat[batch]), key) for column, key in zip(columns, keys[batch], strict=True)]
        return int(pc.sum(pc.and_(*equal)).as_py())

    return {
        "headrace": lambda: sum(
            int(equal_in_blocks(batch_views, positions, in_blocks, block, row).sum())
            for batch_views, (block, row) in zip(views, places, strict=True)
        ),
        "arrow take, equal": lambda: sum(by_arrow(batch) for batch in range(stored.batches)),
    }


def gather_integers(stored: Stored) -> Subjects:
    return _gathering(stored, pa.array(np.arange(stored.rows)))


def gather_strings(stored: Stored) -> Subjects:
    return _gathering(stored, _texts(stored.rows))


def ask_filters(stored: Stored) -> Subjects:
    """Half of the keys are there; NumPy reads the same filters."""
    _, blocks, batches = _hash_blocks(stored)
    words = filter_words(stored.block_rows)
    all_filters = empty_filter(stored.blocks * words).reshape(stored.blocks, words)
    all_filters[:] = [build_filter(block, words) for block in blocks]
    starts, addresses = np.arange(stored.blocks + 1), _addresses_of(list(all_filters))
    sizes = np.full(stored.blocks, words)
    absent = _random_hashes(stored.batch_rows // 2, seed=11)
    asked = [(segment, np.append(absent, hashes[absent.size :])) for segment, hashes in batches]

    def by_numpy(segment: npt.NDArray[np.int32], hashes: Hashes) -> npt.NDArray[np.bool_]:
        places, bits = _bits_by_numpy(hashes, words)
        held: npt.NDArray[np.bool_] = (all_filters[segment[:, np.newaxis], places] & bits != 0).all(axis=1)
        return held

    return {
        "headrace": lambda: np.concatenate([may_hold(starts, addresses, sizes, *batch) for batch in asked]),
        "numpy": lambda: np.concatenate([by_numpy(*batch) for batch in asked]),
    }


def build_filters(rows: int) -> Subjects:
    hashes, words = _random_hashes(rows), filter_words(rows)

    def by_numpy() -> Hashes:
        built = np.zeros(words, dtype=np.uint64)
        np.bitwise_or.at(built, *_bits_by_numpy(hashes, words))
        return built

    return {"headrace": lambda: build_filter(hashes, words), "numpy bitwise_or.at": by_numpy}


def _gathering(stored: Stored, values: pa.Array) -> Subjects:
    column, places, flat = stored.column(values), stored.places(), stored.flat()
    return {
        "headrace": lambda: pa.chunked_array([gather_from_blocks(column, values.type, *place) for place in places]),
        "arrow take": lambda: pa.chunked_array([values.take(rows) for rows in flat]),
    }


def _hash_blocks(stored: Stored) -> tuple[Hashes, list[Hashes], list[tuple[npt.NDArray[np.int32], Hashes]]]:
    """Sorted hashes in one piece and in blocks; and batches of hashes that are there, with their segments."""
    hashes = np.sort(_random_hashes(stored.rows))
    blocks = np.split(hashes, stored.blocks)
    places = zip(stored.places(), stored.flat(), strict=True)
    return hashes, blocks, [(block, hashes[rows.to_numpy()]) for (block, _), rows in places]


def _addresses_of(arrays: list[Hashes]) -> Hashes:
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


def _bits_by_numpy(hashes: Hashes, words: int) -> tuple[npt.NDArray[np.int64], Hashes]:
    """The words of a filter that each hash touches, and its bit in each, after the description in the module."""
    cell = ((hashes & np.uint64(2**32 - 1)) * np.uint64(words // 8)) >> np.uint64(32)
    places = cell[:, np.newaxis].astype(np.int64) * 8 + np.arange(8)
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    numbers = (mixed[:, np.newaxis] >> np.arange(0, 48, 6, dtype=np.uint64)) & np.uint64(63)
    return places, np.uint64(1) << numbers


def _texts(rows: int) -> pa.Array:
    """The strings of `_strings`, made without a Python object for each."""
    numbers = pc.utf8_lpad(pc.cast(pa.array(np.arange(rows)), pa.string()), 8, "0")
    return pc.binary_join_element_wise("customer-", numbers, "")


if __name__ == "__main__":
    sys.exit(main(cases))
