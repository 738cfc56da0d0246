"""The kernels beside what NumPy, pandas and Arrow offer for the same question."""

import sys
from collections.abc import Iterator
from functools import partial

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.runner import Case, main
from etl.kernels.chunks import Pairs
from etl.kernels.columns import view
from etl.kernels.compare import equal_rows
from etl.kernels.hash_table import HashTable, build
from etl.kernels.hashing import hash_columns
from etl.kernels.merge import merge_band, merge_equal
from etl.kernels.scatter import partition_of, scatter
from etl.kernels.sorted_probe import sorted_probe

Hashes = npt.NDArray[np.uint64]


def cases(quick: bool) -> Iterator[Case]:
    """Hashing, hash tables of three sizes, batches, sorted probes, scatters and merges."""
    rows = 20_000 if quick else 1_000_000
    yield hashing("hash 17-byte strings", pa.array([f"customer-{number:08d}" for number in range(rows)]))
    yield hashing("hash int64", pa.array(np.arange(rows)))
    for size in (1_000, 10_000, 100_000) if quick else (10_000, 1_000_000, 10_000_000):
        yield build_and_probe(size)
    yield batches_into_a_growing_table(rows)
    yield probe_sorted(rows)
    yield compare_strings(rows)
    yield scatter_to_partitions(rows)
    yield merge_duplicates(rows)
    yield merge_a_band(rows)


def hashing(name: str, array: pa.Array) -> Case:
    """Hashes differ between libraries, so each is asked how many distinct ones it finds."""
    objects = array.to_numpy(zero_copy_only=False)
    connection = duckdb.connect(config={"threads": 1})
    connection.register("input", pa.table({"key": array}))
    return Case(
        name,
        rows=len(array),
        subjects={
            "headrace": lambda: hash_columns([view(array)]).hashes,
            "pandas hash_array": lambda: pd.util.hash_array(objects, categorize=False),
            "duckdb hash, 1 thread": lambda: connection.sql("SELECT hash(key) AS h FROM input").fetchnumpy()[
                "h"
            ],
        },
        digest=lambda hashes: np.unique(hashes).size,
    )


def build_and_probe(size: int) -> Case:
    """One match per row; the rows of both sides count. A unique-key join index is what pandas offers."""
    stored = _random_hashes(size)
    probe = np.random.default_rng(2).permutation(stored)

    def by_searchsorted() -> npt.NDArray[np.int64]:
        order = np.argsort(stored)
        return order[np.searchsorted(stored, probe, sorter=order)]

    return Case(
        f"build and probe {size:,} rows",
        rows=2 * size,
        subjects={
            "headrace": lambda: list(build(stored).probe(probe)),
            "pandas Index": lambda: pd.Index(stored).get_indexer(pd.Index(probe)),
            "arrow index_in": lambda: pc.index_in(pa.array(probe), pa.array(stored)),
            "numpy searchsorted": by_searchsorted,
        },
        expected=np.argsort(stored)[np.searchsorted(np.sort(stored), probe)],
        digest=_rows_found,
    )


def batches_into_a_growing_table(rows: int) -> Case:
    """What a symmetric hash join asks of its tables: each batch probes one side and joins the other."""
    left = _random_hashes(rows)
    right = np.random.default_rng(3).permutation(left)

    def in_batches(size: int) -> int:
        tables = HashTable(), HashTable()
        pairs = 0
        for start in range(0, rows, size):
            for side, hashes in enumerate((left, right)):
                batch = hashes[start : start + size]
                pairs += sum(positions.size for positions, _ in tables[1 - side].probe(batch))
                tables[side].insert(batch)
        return pairs

    return Case(
        f"two growing tables of {rows:,} rows",
        rows=2 * rows,
        subjects={f"batches of {size:,}": partial(in_batches, size) for size in (1_000, 10_000)},
        expected=rows,
    )


def probe_sorted(rows: int) -> Case:
    """A tenth as many probes as stored rows, half of them misses."""
    stored = np.sort(_random_hashes(rows))
    hits = np.random.default_rng(4).permutation(stored)[: rows // 20]
    probe = np.random.default_rng(5).permutation(np.concatenate([hits, _random_hashes(rows // 20, seed=6)]))

    def by_searchsorted() -> npt.NDArray[np.int64]:
        places = np.searchsorted(stored, probe)
        return places[stored[np.minimum(places, rows - 1)] == probe]

    return Case(
        f"probe {rows:,} sorted rows",
        rows=probe.size,
        subjects={
            "headrace": lambda: list(sorted_probe(stored, probe)),
            "numpy searchsorted": by_searchsorted,
        },
        digest=_rows_found,
    )


def compare_strings(rows: int) -> Case:
    """Candidate pairs in random order, every other one equal."""
    array = pa.array([f"customer-{number:08d}" for number in range(rows)])
    column = view(array)
    left = np.random.default_rng(7).permutation(rows)
    right = np.where(left % 2 == 0, left, rows - 1 - left)
    return Case(
        "compare 17-byte strings",
        rows=rows,
        subjects={
            "headrace": lambda: equal_rows([column], left, [column], right),
            "arrow take, equal": lambda: pc.equal(array.take(pa.array(left)), array.take(pa.array(right))),
        },
        digest=lambda answer: int(np.asarray(answer).sum()),
    )


def scatter_to_partitions(rows: int) -> Case:
    partitions = 60
    hashes = _random_hashes(rows)

    def by_argsort() -> npt.NDArray[np.int64]:
        return np.argsort(((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32), kind="stable")

    return Case(
        f"scatter to {partitions} partitions",
        rows=rows,
        subjects={
            "headrace": lambda: scatter(partition_of(hashes, partitions), partitions)[0],
            "numpy stable argsort": by_argsort,
        },
    )


def merge_duplicates(rows: int) -> Case:
    """About as many distinct values as rows, so most values come more than once."""
    left, right = (np.sort(np.random.default_rng(seed).integers(0, rows, rows)) for seed in (8, 9))
    tables = [pd.DataFrame({"key": keys}) for keys in (left, right)]
    return Case(
        "merge two sorted runs on equality",
        rows=2 * rows,
        subjects={
            "headrace": lambda: _count(merge_equal(left, right)),
            "pandas merge": lambda: len(tables[0].merge(tables[1], on="key")),
        },
    )


def merge_a_band(rows: int) -> Case:
    """NumPy answers how many partners each row has, not which: the less is asked of it."""
    left, right = (np.sort(np.random.default_rng(seed).integers(0, rows, rows)) for seed in (8, 9))

    def by_searchsorted() -> int:
        return int((np.searchsorted(right, left + 2, side="right") - np.searchsorted(right, left - 1)).sum())

    return Case(
        "merge two sorted runs on a band",
        rows=2 * rows,
        subjects={
            "headrace": lambda: _count(merge_band(left, right, 1, 2)),
            "numpy searchsorted, counts only": by_searchsorted,
        },
    )


def _random_hashes(rows: int, seed: int = 1) -> Hashes:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, rows, dtype=np.uint64)


def _count(chunks: Iterator[Pairs]) -> int:
    return sum(left.size for left, _ in chunks)


def _rows_found(answer: object) -> npt.NDArray[np.int64]:
    """Row numbers in probe order, whichever way a subject returns them."""
    if isinstance(answer, list):
        return np.concatenate([rows for _, rows in answer])
    return np.asarray(answer)


if __name__ == "__main__":
    sys.exit(main(cases))
