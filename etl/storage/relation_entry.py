"""Log entries as JSON: what is in them, and how a damaged, foreign or newer one is told.

    {"format": "headrace-relation", "format_version": 2, "checksum": ..., "content":
      {"version": 8, "checkpoint": 1, "difference": {...}}}          an ordinary version
      {"version": 33, "checkpoint": 33, "state": {...}}}             a checkpoint

Numbers that need 64 bits are written as hexadecimal text: many JSON readers round them.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from etl.errors import BadInput, CorruptFile, ForeignFormat
from etl.storage.partitioning import Partitioning
from etl.storage.ports import RunName
from etl.storage.relation_rows import RelationShape
from etl.storage.relation_state import Difference, RelationFile, VersionState

FORMAT = "headrace-relation"
FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One log entry: the full state at a checkpoint, else the difference."""

    version: int
    checkpoint: int
    state: VersionState | None
    difference: Difference | None

    @property
    def made(self) -> VersionState | Difference:
        """Who made the version, when, and what by."""
        made = self.state or self.difference
        assert made is not None
        return made

    @property
    def runs(self) -> list[RunName]:
        """All runs of a checkpoint; of another version those that it added."""
        if self.state is not None:
            return [*(file.run for file in self.state.files), *self.state.load_runs]
        return [] if self.difference is None else [file.run for file in self.difference.added]


def encode(entry: Entry) -> bytes:
    content: dict[str, object] = {"version": entry.version, "checkpoint": entry.checkpoint}
    if entry.state is not None:
        content["state"] = _state_to_json(entry.state)
    if entry.difference is not None:
        content["difference"] = _difference_to_json(entry.difference)
    envelope = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "checksum": _checksum(content),
        "content": content,
    }
    return json.dumps(envelope, indent=1).encode()


def decode(text: bytes, path: str) -> Entry:
    try:
        envelope = json.loads(text)
    except ValueError as error:
        raise CorruptFile(f"file {path} is not JSON ({error}); restore it from a copy") from error
    entries = envelope if isinstance(envelope, dict) else {}
    written_as = (entries.get("format"), entries.get("format_version"))
    if written_as != (FORMAT, FORMAT_VERSION):
        raise ForeignFormat(
            f"file {path} has format {written_as}, expected {(FORMAT, FORMAT_VERSION)}; it belongs to another "
            "program or another release of Headrace: upgrade, or name another folder"
        )
    content = envelope.get("content")
    if envelope.get("checksum") != _checksum(content):
        raise CorruptFile(f"file {path} was changed after it was written; restore it from a copy")
    try:
        return _entry_of(content)
    except (LookupError, TypeError, ValueError, BadInput, pa.ArrowException) as error:
        raise CorruptFile(f"file {path} describes no version of a relation: {error!r}") from error


def _entry_of(content: dict[str, Any]) -> Entry:
    version, checkpoint = content["version"], content["checkpoint"]
    if version == checkpoint:
        return Entry(version, checkpoint, _state_of(version, content["state"]), None)
    return Entry(version, checkpoint, None, _difference_of(version, checkpoint, content["difference"]))


def _state_to_json(state: VersionState) -> dict[str, object]:
    shape, partitioning = state.shape, state.partitioning
    return {
        "relation": shape.name,
        "schema": base64.b64encode(shape.schema.serialize().to_pybytes()).decode(),
        "key": shape.key,
        "partition": shape.partition,
        "range_by": shape.range_by,
        "theta": shape.theta,
        "skip": partitioning.skip,
        "boundaries": [f"{boundary:x}" for boundary in partitioning.boundaries.tolist()],
        "work": state.work,
        "created_at": state.created_at,
        "load_id": state.load_id,
        "highest": state.highest,
        "rows": state.rows,
        "files": [_file_to_json(file) for file in state.files],
        "load_runs": [run.to_json() for run in state.load_runs],
    }


def _state_of(version: int, content: Mapping[str, Any]) -> VersionState:
    shape = RelationShape(
        content["relation"],
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["schema"]))),
        tuple(content["key"]),
        content["partition"],
        content["range_by"],
        content["theta"],
    )
    boundaries = np.array([int(boundary, 16) for boundary in content["boundaries"]], np.uint64)
    return VersionState(
        shape=shape,
        partitioning=Partitioning(shape.partition, boundaries, shape.range_position, content["skip"]),
        version=version,
        checkpoint=version,
        work=content["work"],
        created_at=content["created_at"],
        load_id=content["load_id"],
        highest=content["highest"],
        rows=content["rows"],
        files=_files_of(content["files"]),
        load_runs=tuple(RunName.from_json(run) for run in content["load_runs"]),
        recent_loads={},
    )


def _difference_to_json(difference: Difference) -> dict[str, object]:
    return {
        "work": difference.work,
        "created_at": difference.created_at,
        "load_id": difference.load_id,
        "highest": difference.highest,
        "rows": difference.rows,
        "added": [_file_to_json(file) for file in difference.added],
        "removed": difference.removed,
    }


def _difference_of(version: int, checkpoint: int, content: Mapping[str, Any]) -> Difference:
    return Difference(
        version=version,
        checkpoint=checkpoint,
        work=content["work"],
        created_at=content["created_at"],
        load_id=content["load_id"],
        highest=content["highest"],
        rows=content["rows"],
        added=_files_of(content["added"]),
        removed=tuple(content["removed"]),
    )


def _file_to_json(file: RelationFile) -> dict[str, object]:
    return {
        "run": file.run.to_json(),
        "delta": file.delta,
        "first_version": file.first_version,
        "last_version": file.last_version,
        "dead": [[f"{start:x}", f"{end:x}"] for start, end in file.dead],
    }


def _files_of(content: Sequence[Mapping[str, Any]]) -> tuple[RelationFile, ...]:
    return tuple(
        RelationFile(
            RunName.from_json(file["run"]),
            file["delta"],
            file["first_version"],
            file["last_version"],
            tuple((int(start, 16), int(end, 16)) for start, end in file["dead"]),
        )
        for file in content
    )


def _checksum(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128(canonical.encode()).hexdigest()
