"""Peers of the hybrid joins, each at the best settings that we found for it, with the same memory limit.

- DuckDB: the batch is registered as Arrow, R is a table in the order of its keys (so its zone maps help a stream with
  locality), two threads. Its joins do not use an index; the indexed table is measured all the same.
- RocksDB: R as one sorted file for each source, bloom filters, hash index inside blocks, block cache as large as the
  budget; a batch is sorted and asked for by one multi-get. Turning Arrow into Python objects and back is part of it.
- SQLite: R clustered by its key (WITHOUT ROWID), page cache as large as the budget, the file mapped; a batch goes
  through a temporary table, which beat one query a row.
- polars (streaming engine) and pyarrow keep all of R in memory and hash the batch, not R: no index outlives a batch.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import AccessType, BlockBasedOptions, Cache, DataBlockIndexType, Options, Rdict, SstFileWriter

from benchmarks.key_streams import KEY, relation_batches
from benchmarks.lookups import Answer

SOURCES = 4
_LEAST_FOR_DUCKDB = 32 << 20
"""It refuses to join with the few megabytes of a quick run."""


@dataclass
class _AnswersAtOnce:
    """A peer keeps nothing from batch to batch but its caches, which stay warm from stream to stream."""

    def start(self) -> None:
        return

    def finish(self) -> Answer:
        return []

    def counters(self) -> dict[str, int]:
        return {}


def load_duckdb(folder: Path, rows: int, *, indexed: bool) -> None:
    with duckdb.connect(folder / "relation.duckdb") as connection:
        connection.execute("CREATE TABLE relation (source INTEGER, key VARCHAR, surrogate BIGINT)")
        for batch in relation_batches(rows):
            connection.register("batch", batch)
            connection.execute("INSERT INTO relation SELECT * FROM batch")
        if indexed:
            connection.execute("CREATE UNIQUE INDEX relation_key ON relation (source, key)")


@dataclass
class DuckDb(_AnswersAtOnce):
    folder: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        limits: dict[str, str | bool | int | float | list[str]] = {
            "threads": 2,
            "memory_limit": f"{max(self.memory_bytes, _LEAST_FOR_DUCKDB) // 1024}KiB",
        }
        self._connection = duckdb.connect(self.folder / "relation.duckdb", read_only=True, config=limits)
        self._connection.execute("SET enable_progress_bar = false")

    def answer(self, batch: pa.RecordBatch) -> Answer:
        self._connection.register("batch", batch)
        query = "SELECT row, surrogate FROM batch LEFT JOIN relation USING (source, key)"
        found = self._connection.execute(query).to_arrow_table()
        return [(found.column("row"), found.column("surrogate"))]


def load_sqlite(folder: Path, rows: int) -> None:
    connection = sqlite3.connect(folder / "relation.sqlite")
    connection.executescript(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
        "CREATE TABLE relation (source INTEGER, key TEXT, surrogate INTEGER, PRIMARY KEY (source, key)) WITHOUT ROWID"
    )
    for batch in _in_key_order(rows):
        connection.executemany("INSERT INTO relation VALUES (?, ?, ?)", _tuples(batch))
    connection.commit()
    connection.close()


@dataclass
class Sqlite(_AnswersAtOnce):
    folder: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        self._connection = sqlite3.connect(f"file:{self.folder / 'relation.sqlite'}?mode=ro", uri=True)
        self._connection.executescript(
            f"PRAGMA cache_size = -{self.memory_bytes // 1024}; PRAGMA mmap_size = {1 << 40};"
            "PRAGMA temp_store = MEMORY; CREATE TEMP TABLE batch (source INTEGER, key TEXT, row INTEGER)"
        )

    def answer(self, batch: pa.RecordBatch) -> Answer:
        self._connection.execute("DELETE FROM batch")
        self._connection.executemany("INSERT INTO batch VALUES (?, ?, ?)", _tuples(batch))
        found = self._connection.execute("SELECT row, surrogate FROM batch LEFT JOIN relation USING (source, key)")
        rows, surrogates = zip(*found.fetchall(), strict=True)
        return [(pa.array(rows, pa.int64()), pa.array(surrogates, pa.int64()))]


def load_rocksdb(folder: Path, rows: int) -> None:
    files = [str(folder / f"source_{source}.sst") for source in range(SOURCES)]
    for source, file in enumerate(files):
        writer = SstFileWriter(_rocksdb_options(0))
        writer.open(file)
        for batch in _of_source(source, rows):
            values = batch.column("surrogate").to_numpy().view("V8").tolist()
            for key, value in zip(_rocksdb_keys(batch), values, strict=True):
                writer[key] = value
        writer.finish()
    database = Rdict(str(folder / "database"), _rocksdb_options(0))
    database.ingest_external_file(files)
    database.close()


@dataclass
class RocksDb(_AnswersAtOnce):
    folder: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        options = _rocksdb_options(self.memory_bytes)
        self._database = Rdict(str(self.folder / "database"), options, access_type=AccessType.read_only())

    def answer(self, batch: pa.RecordBatch) -> Answer:
        asked = sorted(zip(_rocksdb_keys(batch), batch.column("row").to_pylist(), strict=True))
        values = self._database.get([key for key, _ in asked])
        surrogates = np.frombuffer(b"".join(value or bytes(8) for value in cast(list[bytes | None], values)), np.int64)
        return [(pa.array([row for _, row in asked], pa.int64()), pa.array(surrogates, mask=surrogates == 0))]


@dataclass
class Polars(_AnswersAtOnce):
    rows: int

    def __post_init__(self) -> None:
        self._relation = polars.DataFrame(pa.Table.from_batches(relation_batches(self.rows))).rechunk().lazy()

    def answer(self, batch: pa.RecordBatch) -> Answer:
        asked = polars.DataFrame(batch).lazy()
        joined = self._relation.join(asked, on=KEY, how="right", maintain_order="none")
        found = joined.select("row", "surrogate").collect(engine="streaming")
        return [(found["row"].to_arrow(), found["surrogate"].to_arrow())]


@dataclass
class PyArrow(_AnswersAtOnce):
    rows: int

    def __post_init__(self) -> None:
        self._relation = pa.Table.from_batches(relation_batches(self.rows)).combine_chunks()

    def answer(self, batch: pa.RecordBatch) -> Answer:
        found = self._relation.join(pa.Table.from_batches([batch]), list(KEY), join_type="right outer")
        return [(found.column("row"), found.column("surrogate"))]


def _in_key_order(rows: int) -> Iterator[pa.RecordBatch]:
    """The relation sorted by source and text, as a loader that knows its database would bring it."""
    for source in range(SOURCES):
        yield from _of_source(source, rows)


def _of_source(source: int, rows: int) -> Iterator[pa.RecordBatch]:
    for batch in relation_batches(rows):
        yield batch.filter(pc.equal(batch.column("source"), source))


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _rocksdb_keys(batch: pa.RecordBatch) -> list[bytes]:
    prefixes = [struct.pack(">I", source) for source in range(SOURCES)]
    texts = batch.column("key").cast(pa.binary()).to_pylist()
    return [prefixes[source] + text for source, text in zip(batch.column("source").to_pylist(), texts, strict=True)]


def _rocksdb_options(cache_bytes: int) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    if cache_bytes:
        blocks.set_block_cache(Cache(cache_bytes))
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    return options
