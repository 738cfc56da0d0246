"""The lookup store: relations on disk, a folder each.

    customers/_log/00000001.json      one entry a version, see `relation_log`
    customers/segments/load-...arrow  immutable runs, see `run_files`

Writing never waits for a lock: a version is committed by the exclusive create of its entry, so any number of
processes may read and append at once, on one file system.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from etl.errors import AlreadyPublished, MissingFile
from etl.storage.durable import DurableFolder
from etl.storage.relation import Relation, RelationParts, WallClock, first_version
from etl.storage.relation_log import VersionLog
from etl.storage.relation_rows import RelationShape
from etl.storage.run_files import RunFiles

_LOG = "_log"
_RUNS = "segments"


def utc_now() -> datetime:
    return datetime.now(UTC)


def create_relation(
    folder: Path,
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    segments: int = 16,
    batches: Iterable[pa.RecordBatch] = (),
    highest: int = 0,
    clock: WallClock = utc_now,
) -> Relation:
    """Make version 1 from `batches`; AlreadyPublished when the folder holds a relation."""
    shape = RelationShape(name, schema, tuple(key), segments)
    parts = _parts(folder, clock)
    if parts.log.newest():
        raise _exists(folder)
    try:
        return first_version(parts, shape, pa.Table.from_batches(batches, shape.schema), highest)
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
    return Relation(parts, parts.log.read(number))


def _parts(folder: Path, clock: WallClock) -> RelationParts:
    log = VersionLog(DurableFolder(folder / _LOG), str(folder / _LOG))
    return RelationParts(log, RunFiles(folder / _RUNS), clock)


def _exists(folder: Path) -> AlreadyPublished:
    return AlreadyPublished(f"folder {folder} holds a relation already; open it, or name another folder")
