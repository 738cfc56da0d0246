"""The relations that the benchmark of the hybrid joins asks, in every subject's own form, built once and kept.

They lie below `build/bench`; `make clean` removes them. A folder gets its name when it is whole, so that a build that
was interrupted is begun anew.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks import lookup_peers
from benchmarks.key_streams import KEY, RELATION_SCHEMA, relation_batches
from etl.errors import StorageError
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.partitioning import PartitionKind

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "build" / "bench" / "hybrid"
_PARQUET_FILES = 8
_RECIPE = "1"
"""Another one, whenever the same name stands for other content."""


@dataclass(frozen=True)
class LookupData:
    """Relations of one size."""

    rows: int
    theta: int
    folder: Path = DEFAULT_FOLDER

    def relation(self, partition: PartitionKind) -> Path:
        """A relation of the lookup store; built anew if its format is not today's."""
        name = f"{partition}-{self.theta}"
        build = partial(_create, rows=self.rows, theta=self.theta, partition=partition)
        folder = self._made(name, build)
        try:
            open_relation(folder).close()
        except StorageError:
            shutil.rmtree(folder)
            folder = self._made(name, build)
        return folder

    def parquet(self) -> Path:
        """As Spark reads it: some files, in the order of the keys."""
        return self._made("parquet", partial(_write_parquet, rows=self.rows))

    def duckdb(self, *, indexed: bool) -> Path:
        name = "duckdb-indexed" if indexed else "duckdb"
        return self._made(name, partial(lookup_peers.load_duckdb, rows=self.rows, indexed=indexed))

    def sqlite(self) -> Path:
        return self._made("sqlite", partial(lookup_peers.load_sqlite, rows=self.rows))

    def rocksdb(self) -> Path:
        return self._made("rocksdb", partial(lookup_peers.load_rocksdb, rows=self.rows))

    def _made(self, name: str, build: Callable[[Path], None]) -> Path:
        whole = self.folder / f"recipe-{_RECIPE}" / f"{self.rows}-rows" / name
        if whole.exists():
            return whole
        partial_folder = whole.with_name(name + ".partial")
        shutil.rmtree(partial_folder, ignore_errors=True)
        partial_folder.mkdir(parents=True)
        start = time.perf_counter()
        build(partial_folder)
        partial_folder.rename(whole)
        note = f"built {name} of {self.rows:,} rows in {time.perf_counter() - start:.1f} s"
        Console(stderr=True).print(note, style="dim", highlight=False)
        return whole


def _write_parquet(folder: Path, rows: int) -> None:
    for number, batch in enumerate(relation_batches(rows, batch_rows=max(1, rows // _PARQUET_FILES))):
        pq.write_table(pa.Table.from_batches([batch]), folder / f"part-{number:04d}.parquet")


def _create(folder: Path, rows: int, theta: int, partition: PartitionKind) -> None:
    create_relation(
        folder,
        "customers",
        RELATION_SCHEMA,
        KEY,
        relation_batches(rows),
        partition=partition,
        range_by="key" if partition == "range" else None,
        theta=theta,
        highest="surrogate",
    )
