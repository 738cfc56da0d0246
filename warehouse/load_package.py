"""Load packages: the frozen result of one load, as files.

Idea: the tables of a load are written first, as Arrow IPC files under names that hold the load id and the
attempt. Then one manifest that names them, with counts, details and checksums, is published by an exclusive
create. That create is the commit point: before it the load has not happened, after it the load can only
happen this way.

Before that a load may settle what another attempt of it could see differently, by an exclusive create too: from
then on every attempt goes on from there, so that what the first one told others (a relation, say) stays true.

State: `<pipeline>/packages/<batch id>.json` and `<pipeline>/settlements/<batch id>.json` (the manifests), and
`<pipeline>/tables/<batch id>/<attempt>/<table>.arrow`.

Invariants: a load id has one package and one settlement for ever, whoever publishes again gets the first; ids only
grow; what is read was verified against the manifest, and the manifest against its own checksum.

Limits: the tables of attempts that were never published stay until `retire` passes their batch id.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import pyarrow as pa
import xxhash

from warehouse.errors import CorruptPackage, ForeignPackage, PackageError, StaleLoad

__all__ = ["FileStamp", "JSON", "LoadId", "LoadPackage", "LoadPackages", "PackageFolder", "Settlement", "Stamp"]

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None

FORMAT = 1
_PACKAGES, _SETTLEMENTS, _TABLES = "packages", "settlements", "tables"
_LEGAL_PIPELINE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")


class Stamp(Protocol):
    """What identifies the content of a file; the checksum is xxh3 of 128 bits, in hexadecimal."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def checksum(self) -> str: ...


class FileStamp(NamedTuple):
    """A stamp as the manifest holds it."""

    name: str
    size: int
    checksum: str


class PackageFolder(Protocol):
    """The port to the files: durable, immutable, each published whole by an exclusive create."""

    def put(self, name: str, parts: Iterable[pa.Buffer | bytes]) -> Stamp:
        """Publishes the parts as one file; raises when the name is taken."""

    def read_unchecked(self, name: str) -> pa.Buffer:
        """The content, best memory-mapped; it is verified here, where the expected checksum is known."""

    def exists(self, name: str) -> bool: ...

    def names(self, prefix: str) -> Sequence[str]: ...

    def delete(self, name: str) -> bool: ...


@dataclass(frozen=True, order=True)
class LoadId:
    """One micro-batch of one pipeline."""

    pipeline: str
    batch_id: int

    def __post_init__(self) -> None:
        if not _LEGAL_PIPELINE.fullmatch(self.pipeline):
            raise PackageError(
                f"{self.pipeline!r} cannot name a pipeline: use letters, digits and _ . = -, "
                "and begin with a letter, a digit or _"
            )
        if self.batch_id < 0:
            raise PackageError(f"pipeline {self.pipeline}: batch id {self.batch_id} is negative; ids start at 0")

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.batch_id:08d}"


@dataclass(frozen=True)
class Settlement:
    """What a load has settled before it commits anything. `details` are for the pipeline."""

    load_id: LoadId
    tables: Mapping[str, FileStamp]
    counts: Mapping[str, int]
    details: Mapping[str, JSON]
    checksum: str
    folder: PackageFolder = field(repr=False, compare=False)

    def table(self, name: str) -> pa.Table:
        """The table, verified against its stamp."""
        stamp = self.tables.get(name)
        if stamp is None:
            raise PackageError(f"load {self.load_id} has no table {name!r}, only {', '.join(self.tables) or 'none'}")
        content = self.folder.read_unchecked(stamp.name)
        if content.size != stamp.size or _checksum(content) != stamp.checksum:
            raise CorruptPackage(
                f"file {stamp.name} of load {self.load_id} was changed after it was written "
                f"({content.size} bytes, expected {stamp.size} with checksum {stamp.checksum}): "
                "restore it from a copy"
            )
        with pa.ipc.open_file(content) as reader:
            return reader.read_all()


class LoadPackage(Settlement):
    """A published package. `details` are for the pipeline: versions, watermarks, snapshots."""


_Frozen = TypeVar("_Frozen", bound=Settlement)


class LoadPackages:
    """The packages of one pipeline in a folder."""

    def __init__(self, folder: PackageFolder, pipeline: str) -> None:
        self.pipeline = LoadId(pipeline, 0).pipeline
        self._folder = folder

    def write_table(self, load_id: LoadId, attempt: int | str, table_name: str, table: pa.Table) -> FileStamp:
        """Writes one table of a load that may still fail; an attempt's name is used once."""
        self._check_mine(load_id)
        name = f"{self.pipeline}/{_TABLES}/{load_id.batch_id:08d}/{attempt}/{table_name}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        stamp = self._folder.put(name, [sink.getvalue()])
        return FileStamp(stamp.name, stamp.size, stamp.checksum)

    def settle(
        self, load_id: LoadId, tables: Mapping[str, Stamp], counts: Mapping[str, int], details: Mapping[str, JSON]
    ) -> Settlement:
        """Settle what every attempt of this load must take as given; the first settlement is returned, ours or not."""
        self._check_mine(load_id)
        return self._created(Settlement, _SETTLEMENTS, load_id, tables, counts, details)

    def publish(
        self, load_id: LoadId, tables: Mapping[str, Stamp], counts: Mapping[str, int], details: Mapping[str, JSON]
    ) -> LoadPackage:
        """The commit point. The package that was published first under this id is returned, ours or not."""
        published = self.find(load_id)
        if published is not None:
            return published
        self._check_newest(load_id)
        return self._created(LoadPackage, _PACKAGES, load_id, tables, counts, details)

    def find(self, load_id: LoadId) -> LoadPackage | None:
        """The package with this id, None if it was never published or is retired."""
        return self._found(LoadPackage, _PACKAGES, load_id)

    def find_settlement(self, load_id: LoadId) -> Settlement | None:
        """What the load has settled, None if it has not or is retired."""
        return self._found(Settlement, _SETTLEMENTS, load_id)

    def check_next(self, load_id: LoadId) -> None:
        """StaleLoad unless this is the load after the newest package: a stream numbers its loads without gaps."""
        self._check_newest(load_id)
        newest = max(self._batch_ids(), default=-1)
        if load_id.batch_id > newest + 1:
            before = f"the newest package is {LoadId(self.pipeline, newest)}" if newest >= 0 else "there is no package"
            raise StaleLoad(
                f"load {load_id} would skip loads, {before}: the stream's checkpoint is newer than these packages; "
                "restore both from the same time, or start both over"
            )

    def latest(self) -> LoadPackage | None:
        """The package with the highest id."""
        batch_ids = self._batch_ids()
        return self.find(LoadId(self.pipeline, batch_ids[-1])) if batch_ids else None

    def all(self) -> "list[LoadPackage]":
        """All packages that are there, oldest first."""
        found = (self.find(LoadId(self.pipeline, batch_id)) for batch_id in self._batch_ids())
        return [package for package in found if package is not None]

    def retire(self, keep: int) -> int:
        """Deletes all packages but the newest ones, and what older attempts left; returns how many went.

        Keep at least those that the warehouse may still have to load.
        """
        if keep < 1:
            raise PackageError(f"pipeline {self.pipeline}: cannot keep {keep} packages; keep 1 or more")
        retired = self._batch_ids()[:-keep]
        if not retired:
            return 0
        for batch_id in retired:  # the manifest first: a package is whole or not there
            self._folder.delete(self._manifest_name(_PACKAGES, batch_id))
        for folder in (_SETTLEMENTS, _TABLES):
            for name in self._folder.names(f"{self.pipeline}/{folder}/"):
                if int(name.split("/")[2].removesuffix(".json")) <= retired[-1]:
                    self._folder.delete(name)
        return len(retired)

    def _created(
        self,
        kind: type[_Frozen],
        folder: str,
        load_id: LoadId,
        tables: Mapping[str, Stamp],
        counts: Mapping[str, int],
        details: Mapping[str, JSON],
    ) -> _Frozen:
        """The manifest that was created first under this id, ours or another's."""
        self._check_written(load_id, tables)
        document: dict[str, JSON] = {
            "format": FORMAT,
            "pipeline": load_id.pipeline,
            "batch_id": load_id.batch_id,
            "tables": {name: FileStamp(s.name, s.size, s.checksum)._asdict() for name, s in tables.items()},
            "counts": dict(counts),
            "details": dict(details),
        }
        document["checksum"] = _checksum(_canonical(document))
        name = self._manifest_name(folder, load_id.batch_id)
        try:
            self._folder.put(name, [json.dumps(document, indent=2).encode()])
        except Exception:
            # Whatever kind of error the folder raises: if a manifest is there now, another run won the race.
            if not self._folder.exists(name):
                raise
        return self._open(kind, name, load_id)

    def _found(self, kind: type[_Frozen], folder: str, load_id: LoadId) -> "_Frozen | None":
        self._check_mine(load_id)
        name = self._manifest_name(folder, load_id.batch_id)
        return self._open(kind, name, load_id) if self._folder.exists(name) else None

    def _open(self, kind: type[_Frozen], name: str, load_id: LoadId) -> _Frozen:
        document = _parse_manifest(name, self._folder.read_unchecked(name))
        return kind(
            load_id=load_id,
            tables={table: FileStamp(**stamp) for table, stamp in document["tables"].items()},
            counts=document["counts"],
            details=document["details"],
            checksum=document["checksum"],
            folder=self._folder,
        )

    def _batch_ids(self) -> list[int]:
        prefix = f"{self.pipeline}/{_PACKAGES}/"
        return sorted(int(name.removeprefix(prefix).removesuffix(".json")) for name in self._folder.names(prefix))

    def _manifest_name(self, folder: str, batch_id: int) -> str:
        return f"{self.pipeline}/{folder}/{batch_id:08d}.json"

    def _check_mine(self, load_id: LoadId) -> None:
        if load_id.pipeline != self.pipeline:
            raise PackageError(f"load {load_id} does not belong to pipeline {self.pipeline}")

    def _check_newest(self, load_id: LoadId) -> None:
        batch_ids = self._batch_ids()
        if batch_ids and load_id.batch_id < batch_ids[-1]:
            raise StaleLoad(
                f"load {load_id} comes after {LoadId(self.pipeline, batch_ids[-1])}, and ids only grow: "
                "another run of this pipeline is ahead (stop one of the two), or the stream's checkpoint "
                "is older than these packages (start both over)"
            )

    def _check_written(self, load_id: LoadId, tables: Mapping[str, Stamp]) -> None:
        for table_name, stamp in tables.items():
            if not self._folder.exists(stamp.name):
                raise PackageError(
                    f"load {load_id}: table {table_name!r} is to be published, but its file {stamp.name} "
                    "does not exist; write it with write_table first"
                )


class _Manifest(TypedDict):
    format: int
    tables: dict[str, "_StampFields"]
    counts: dict[str, int]
    details: dict[str, JSON]
    checksum: str


class _StampFields(TypedDict):
    name: str
    size: int
    checksum: str


def _parse_manifest(name: str, content: pa.Buffer) -> _Manifest:
    try:
        document = json.loads(bytes(content))
        written_format = int(document["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptPackage(f"load package manifest {name} is no manifest: restore it from a copy") from error
    if written_format > FORMAT:
        raise ForeignPackage(
            f"load package manifest {name} has format {written_format}, and this version of Headrace reads "
            f"up to {FORMAT}: run the newer version that wrote it"
        )
    claimed = document.pop("checksum", None)
    if claimed != _checksum(_canonical(document)):
        raise CorruptPackage(f"load package manifest {name} was changed after it was published: restore it from a copy")
    document["checksum"] = claimed
    manifest: _Manifest = document
    return manifest


def _canonical(document: Mapping[str, JSON]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _checksum(content: pa.Buffer | bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()
