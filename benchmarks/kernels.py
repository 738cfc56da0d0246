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

from benchmarks.runner import Case, Subject, Subjects, main
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
    """Hashing, hash tables of three sizes, batches, sorted probes, comparing, scatters and merges."""
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


if __name__ == "__main__":
    sys.exit(main(cases))
