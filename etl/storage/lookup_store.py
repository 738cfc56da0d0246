"""The lookup store: relations on disk, a folder each.

    customers/_log/00000001.json      one entry a version, see `relation_log`
    customers/segments/load-...arrow  immutable runs, see `relation_rows` and `run_files`
    customers/writers/...             a lock for each writer at work, see `writers`
    customers/scratch/                rows set aside by a bulk load or a compaction; its files have no names

Writing never waits for a lock: a version is committed by the exclusive create of its entry, so any number of
processes may read, append and compact at once, on one file system.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from etl.errors import AlreadyPublished, MissingFile
from etl.storage.bulk_load import DEFAULT_MEMORY_BYTES, LoadSettings, Progress, no_progress
from etl.storage.durable import DurableFolder
from etl.storage.partitioning import PartitionKind
from etl.storage.relation import Relation
from etl.storage.relation_creation import first_version
from etl.storage.relation_log import VersionLog
from etl.storage.relation_rows import RelationShape
from etl.storage.relation_version import OpenVersion, RelationParts, WallClock
from etl.storage.run_files import RunFiles
from etl.storage.writers import WriterFiles

_LOG = "_log"
_RUNS = "segments"
_WRITERS = "writers"
_SCRATCH = "scratch"


def utc_now() -> datetime:
    return datetime.now(UTC)


def create_relation(
    folder: Path,
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    batches: Iterable[pa.RecordBatch] = (),
    *,
    partition: PartitionKind = "hash",
    range_by: str | None = None,
    theta: int = 65_536,
    highest: int | str = 0,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress = no_progress,
    clock: WallClock = utc_now,
) -> Relation:
    """Make version 1 from `batches`; AlreadyPublished when the folder holds a relation.

    By "range", segments are ranges of the key column `range_by`, the last one if it is not given. `highest` is the
    highest surrogate key in the rows, or the name of the column that holds them. `progress` is told about the work.
    """
    shape = RelationShape(name, schema, tuple(key), partition, range_by, theta)
    settings = LoadSettings(folder / _SCRATCH, memory_bytes, progress)
    parts = _parts(folder, clock)
    if parts.log.newest():
        raise _exists(folder)
    try:
        return Relation(first_version(parts, shape, batches, highest, settings))
    except AlreadyPublished as error:
        raise _exists(folder) from error


def open_relation(folder: Path, version: int | None = None, clock: WallClock = utc_now) -> Relation:
    """Open one version, the newest by default, and keep it whatever others commit."""
    log_folder = folder / _LOG
    if not log_folder.is_dir():
        raise MissingFile(f"folder {folder} holds no relation: {log_folder} does not exist; create it first")
    parts = _parts(folder, clock)
    number = parts.log.newest() if version is None else version
    if version is None and number == 0:
        raise MissingFile(f"folder {folder} holds no relation: {log_folder} is empty; create it first")
    return Relation(OpenVersion(parts, parts.log.read(number)))


def _parts(folder: Path, clock: WallClock) -> RelationParts:
    log_files = DurableFolder(folder / _LOG)
    log_files.sweep_temporary()
    log = VersionLog(log_files, str(folder / _LOG))
    runs = RunFiles(folder / _RUNS)
    return RelationParts(log, runs, WriterFiles(folder / _WRITERS), clock, scratch=folder / _SCRATCH, folder=folder)


def _exists(folder: Path) -> AlreadyPublished:
    return AlreadyPublished(f"folder {folder} holds a relation already; open it, or name another folder")
