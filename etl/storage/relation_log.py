"""The version log of a relation: one small JSON file a version, each made by an exclusive create.

Idea: a version names everything it consists of, so that opening one is reading one file, and a version is
committed the moment its file exists. The number is the lock: of two writers that both try to make version
8, one succeeds.

State: `00000001.json`, `00000002.json`, ... without gaps. Each is an envelope (format, checksum) around
the content.

Invariants: a committed version never changes; the runs that it names were durable before it was.

Limits: the list of loads and of files in an entry grows until compaction shortens it.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from etl.errors import BadInput, CorruptFile, ForeignFormat, MissingFile
from etl.storage.ports import RunName
from etl.storage.relation_rows import RelationShape

FORMAT = "headrace-relation"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class RelationFile:
    """A run of the relation, and the relation segment that each of its blocks belongs to."""

    run: RunName
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """All there is to say about one version."""

    shape: RelationShape
    version: int
    created_at: str
    load_id: str
    highest: int
    files: tuple[RelationFile, ...]
    loads: Mapping[str, int]
    """Each load so far with the version that it made."""


class LogFiles(Protocol):
    """Where the entries lie: a durable folder, or its fake in memory."""

    def put(self, name: str, parts: Iterable[bytes]) -> object:
        """AlreadyPublished when the name is taken."""

    def read_unchecked(self, name: str) -> pa.Buffer:
        """MissingFile when there is no such name."""

    def names(self) -> list[str]: ...


class VersionLog:
    """Reads and commits versions. `place` is how messages name the folder."""

    def __init__(self, files: LogFiles, place: str) -> None:
        self._files = files
        self._place = place

    def newest(self) -> int:
        """The number of the newest version; 0 when there is none."""
        numbers = [name.removesuffix(".json") for name in self._files.names() if name.endswith(".json")]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def commit(self, entry: VersionEntry) -> None:
        """Make the version exist; AlreadyPublished when its number is taken."""
        self._files.put(_name(entry.version), [_encode(entry)])

    def read(self, version: int) -> VersionEntry:
        if version < 1:
            raise MissingFile(f"{self._place} holds no version {version}; versions are numbered from 1")
        content = self._files.read_unchecked(_name(version)).to_pybytes()
        entry = _decode(content, f"{self._place}/{_name(version)}")
        if entry.version != version:
            raise CorruptFile(
                f"file {self._place}/{_name(version)} describes version {entry.version}: "
                "it was renamed or copied; restore the log"
            )
        return entry


def _name(version: int) -> str:
    return f"{version:08d}.json"


def _encode(entry: VersionEntry) -> bytes:
    content = {
        "relation": entry.shape.name,
        "schema": base64.b64encode(entry.shape.schema.serialize().to_pybytes()).decode(),
        "key": entry.shape.key,
        "segments": entry.shape.segments,
        "version": entry.version,
        "created_at": entry.created_at,
        "load_id": entry.load_id,
        "highest": entry.highest,
        "files": [{"run": file.run.to_json(), "segments": file.segments} for file in entry.files],
        "loads": dict(entry.loads),
    }
    envelope = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "checksum": _checksum(content),
        "content": content,
    }
    return json.dumps(envelope, indent=1).encode()


def _decode(text: bytes, path: str) -> VersionEntry:
    try:
        envelope = json.loads(text)
    except ValueError as error:
        raise CorruptFile(f"file {path} is not JSON ({error}); restore it from a copy") from error
    entries = envelope if isinstance(envelope, dict) else {}
    written_as = (entries.get("format"), entries.get("format_version"))
    if written_as != (FORMAT, FORMAT_VERSION):
        raise ForeignFormat(
            f"file {path} has format {written_as}, expected {(FORMAT, FORMAT_VERSION)}; "
            "it belongs to another program or to a newer Headrace: upgrade, or name another folder"
        )
    content = envelope.get("content")
    if envelope.get("checksum") != _checksum(content):
        raise CorruptFile(f"file {path} was changed after it was written; restore it from a copy")
    try:
        return _entry_of(content)
    except (LookupError, TypeError, ValueError, BadInput, pa.ArrowException) as error:
        raise CorruptFile(f"file {path} describes no version of a relation: {error!r}") from error


def _entry_of(content: dict[str, Any]) -> VersionEntry:
    shape = RelationShape(
        content["relation"],
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["schema"]))),
        tuple(content["key"]),
        content["segments"],
    )
    files = tuple(RelationFile(RunName.from_json(file["run"]), tuple(file["segments"])) for file in content["files"])
    return VersionEntry(
        shape,
        content["version"],
        content["created_at"],
        content["load_id"],
        content["highest"],
        files,
        content["loads"],
    )


def _checksum(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128(canonical.encode()).hexdigest()
