"""The symmetric hash join beside a plain-Python dict join and DuckDB's blocking join of the same rows.

Two sides of as many rows, one match per row, arriving in turns in batches of 1,000; results are materialised. The dict
join is what people write by hand; DuckDB sees all rows at once, on one thread like us and on two, and delivers nothing
before it has read one side whole.
"""

import sys
import time
from collections.abc import Callable, Iterator

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.runner import Case, Measure, Outcome, main
from etl import joins

BATCH_ROWS = 1_000


def cases(quick: bool) -> Iterator[Case]:
    """Integer keys, string keys, and both together."""
    rows = 20_000 if quick else 1_000_000
    numbers = [np.random.default_rng(seed).permutation(rows) for seed in (1, 2)]
    texts = [pa.array([f"customer-{number:08d}" for number in side]) for side in numbers]
    yield _case("int64 keys", rows, [{"k": pa.array(side)} for side in numbers], with_dict=True)
    yield _case("17-byte string keys", rows, [{"k": side} for side in texts])
    both = [{"k": text, "m": pa.array(side)} for text, side in zip(texts, numbers, strict=True)]
    yield _case("string and int64 keys", rows, both)


def _case(name: str, rows: int, keys: list[dict[str, pa.Array]], with_dict: bool = False) -> Case:
    tables = [pa.table({**key, f"v{side}": np.arange(rows)}) for side, key in enumerate(keys)]
    on = list(keys[0])
    batches = [_cut(table) for table in tables]
    subjects: dict[str, Callable[[], object]] = {"symmetric-hash": lambda: _ours(batches, on)}
    if with_dict:
        columns = [[batch.to_pydict() for batch in side] for side in batches]
        subjects["python dict"] = lambda: _by_dict(columns)
    subjects["duckdb, 1 thread"] = lambda: _by_duckdb(tables, on, 1)
    subjects["duckdb, 2 threads"] = lambda: _by_duckdb(tables, on, 2)
    return Case(f"{name}, 2 x {rows:,} rows", subjects, rows=2 * rows, expected=_digest_of(tables, on), digest=_digest)


def _ours(batches: list[list[pa.RecordBatch]], on: list[str]) -> Outcome:
    operator = joins.build(
        "symmetric-hash",
        sides=[side[0].schema for side in batches],
        on=[(name, name) for name in on],
        memory_bytes=1 << 31,
    )
    results: list[pa.RecordBatch] = []
    rows_before_first = 0
    began = time.perf_counter()
    first_after = 0.0
    for pair in zip(*batches, strict=True):
        for side, batch in enumerate(pair):
            operator.offer(joins.Rows(side, batch), results.append)
            if not first_after:
                rows_before_first += batch.num_rows
                first_after = time.perf_counter() - began if results else 0.0
    measures = {
        "first_result": Measure(first_after, "s"),
        "rows_offered_by_then": Measure(rows_before_first, "rows"),
        "memory_counted": Measure(operator.counters.peak_memory_bytes, "bytes"),
    }
    return Outcome(pa.Table.from_batches(results), measures)


def _cut(table: pa.Table) -> list[pa.RecordBatch]:
    """Batches as a source would bring them: each with buffers of its own."""
    return [
        pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column.slice(start, BATCH_ROWS).chunks) for column in table.columns], schema=table.schema
        )
        for start in range(0, table.num_rows, BATCH_ROWS)
    ]


def _by_dict(batches: list[list[dict[str, list[int]]]]) -> pa.Table:
    """Row by row, in the same turns, from Python lists; it takes one match per key for granted."""
    seen: list[dict[int, int]] = [{}, {}]
    matched: list[tuple[int, int, int]] = []
    for pair in zip(*batches, strict=True):
        for side, batch in enumerate(pair):
            own, other = seen[side], seen[1 - side]
            for key, value in zip(batch["k"], batch[f"v{side}"], strict=True):
                own[key] = value
                if key in other:
                    matched.append((key, *((value, other[key]) if side == 0 else (other[key], value))))
    keys, first, second = zip(*matched, strict=True)
    return pa.table({"k": keys, "v0": first, "v1": second})


def _by_duckdb(tables: list[pa.Table], on: list[str], threads: int) -> pa.Table:
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.register("a", tables[0])
        connection.register("b", tables[1])
        result: pa.Table = connection.sql(f"SELECT * FROM a JOIN b USING ({', '.join(on)})").to_arrow_table()
        return result


def _digest(table: pa.Table) -> tuple[int, int]:
    """Rows, and a sum over pairs that a wrong partner changes."""
    first, second = (table.column(name).to_numpy().astype(np.uint64) for name in ("v0", "v1"))
    mixed = first * np.uint64(0x9E3779B97F4A7C15) + second
    return table.num_rows, int((mixed * mixed).sum())


def _digest_of(tables: list[pa.Table], on: list[str]) -> tuple[int, int]:
    return _digest(_by_duckdb(tables, on, 2))


if __name__ == "__main__":
    sys.exit(main(cases))
