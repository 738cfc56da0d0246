"""Asking the operating system what it holds of a file, and to read ahead: on real files, dropped from the cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from etl.storage import page_cache
from etl.storage.block_table import BlockTable
from etl.storage.durable import DurableFolder
from etl.storage.lookup_store import create_relation, open_relation
from etl.storage.relation import Relation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the page cache can be asked on Linux only")

ROWS = 60_000


def test_a_mapped_file_is_not_read_before_it_is_touched(tmp_path: Path) -> None:
    """Arrow's own map reads the whole file ahead, and so did opening a relation."""
    folder = DurableFolder(tmp_path)
    stamp = folder.put("large", [b"x" * (8 << 20)])
    drop_from_cache(tmp_path)
    content = folder.map_sized(stamp)
    assert not page_cache.is_resident(content.address + (4 << 20))


def test_touching_one_page_of_a_map_for_random_access_brings_no_others(tmp_path: Path) -> None:
    folder = DurableFolder(tmp_path)
    stamp = folder.put("large", [b"x" * (8 << 20)])
    drop_from_cache(tmp_path)
    content = folder.map_sized(stamp)
    assert content.slice(0, 1).to_pybytes() == b"x"
    assert page_cache.is_resident(content.address)
    assert not page_cache.is_resident(content.address + (1 << 20))


def test_a_segment_that_many_rows_ask_for_is_read_ahead(tmp_path: Path) -> None:
    relation = _cold_relation(tmp_path)
    table = relation.block_table()
    assert table._is_cold(0)
    segments = np.arange(relation.segments)
    table.read_ahead(segments, np.full(relation.segments, 1_000))
    found = relation.look_up(pa.table({"k": ["key-00000000007", "none"]}), [("k", "k")])
    assert found.column("v").to_pylist() == [7, None]
    assert _becomes_warm(table)


def test_a_segment_that_nobody_asks_for_is_left_alone(tmp_path: Path) -> None:
    relation = _cold_relation(tmp_path)
    table = relation.block_table()
    table.read_ahead(np.arange(relation.segments), np.zeros(relation.segments, np.int64))
    assert table._is_cold(0)


def _cold_relation(folder: Path) -> Relation:
    keys = [f"key-{number:011d}" for number in range(ROWS)]
    rows = pa.record_batch({"k": keys, "v": list(range(ROWS))})
    create_relation(folder / "r", "r", rows.schema, ["k"], [rows], theta=10_000).close()
    drop_from_cache(folder)
    return open_relation(folder / "r")


def _becomes_warm(table: BlockTable) -> bool:
    for _ in range(200):
        if not table._is_cold(0):
            return True
        os.sched_yield()
    return not table._is_cold(0)


def drop_from_cache(folder: Path) -> None:
    """Only what is on disk and mapped by nobody can be dropped."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
