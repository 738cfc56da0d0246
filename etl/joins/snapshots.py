"""Snapshots: an operator's memory state plus the names of the sealed runs it has on disk.

A snapshot is plain data: JSON values and Arrow batches, never pickled objects. Its bytes are a small container:

    magic (8) | header length (8) | header: JSON | sections: Arrow IPC streams | xxh3-128 of all before (16)

Readers of format n read every format up to n: files written by older ones stay in `tests/data` and must restore.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
import xxhash

from etl.errors import CorruptFile, ForeignFormat
from etl.settings import Json
from etl.storage.ports import RunName

FORMAT = 1
_MAGIC = b"HRSNAP\r\n"
_LENGTH = struct.Struct("<Q")
_CHECKSUM_BYTES = 16

Tables = Mapping[str, Sequence[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What an operator adds to its snapshot: values, rows in memory, runs on disk."""

    values: Mapping[str, Json] = field(default_factory=dict)
    tables: Tables = field(default_factory=dict)
    runs: tuple[RunName, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Enough to build the operator again, in another process, with another memory budget."""

    operator: str
    arguments: Mapping[str, Json]
    sides: tuple[pa.Schema, ...]
    lifecycle: Mapping[str, Json]
    state: OperatorState
    relation_version: int | None = None

    def to_bytes(self) -> bytes:
        sections = {f"side {number}": _schema_section(schema) for number, schema in enumerate(self.sides)}
        for name, batches in self.state.tables.items():
            sections[f"table {name}"] = _table_section(batches)
        header = {
            "format": FORMAT,
            "operator": self.operator,
            "arguments": self.arguments,
            "lifecycle": self.lifecycle,
            "relation_version": self.relation_version,
            "values": self.state.values,
            "runs": [run.to_json() for run in self.state.runs],
            "sections": [[name, section.size] for name, section in sections.items()],
        }
        encoded = json.dumps(header, separators=(",", ":")).encode()
        parts = [_MAGIC, _LENGTH.pack(len(encoded)), encoded, *sections.values()]
        checksum = xxhash.xxh3_128()
        for part in parts:
            checksum.update(part)
        return b"".join([*parts, checksum.digest()])

    @classmethod
    def from_bytes(cls, stored: pa.Buffer | bytes, origin: str = "snapshot") -> Snapshot:
        """`origin` names the file in messages."""
        buffer = pa.py_buffer(stored)
        header, sections = _opened(buffer, origin)
        sides: list[pa.Schema] = []
        while (section := sections.pop(f"side {len(sides)}", None)) is not None:
            sides.append(pa.ipc.read_schema(section))
        tables = {
            name.removeprefix("table "): pa.ipc.open_stream(section).read_all().to_batches()
            for name, section in sections.items()
        }
        runs = tuple(RunName.from_json(run) for run in cast(list[dict[str, object]], header["runs"]))
        return cls(
            operator=cast(str, header["operator"]),
            arguments=cast(dict[str, Json], header["arguments"]),
            sides=tuple(sides),
            lifecycle=cast(dict[str, Json], header["lifecycle"]),
            relation_version=cast(int | None, header["relation_version"]),
            state=OperatorState(cast(dict[str, Json], header["values"]), tables, runs),
        )


def _opened(buffer: pa.Buffer, origin: str) -> tuple[dict[str, object], dict[str, pa.Buffer]]:
    start = len(_MAGIC) + _LENGTH.size
    if buffer.size < len(_MAGIC) or buffer.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise ForeignFormat(f"{origin} is not a Headrace snapshot")
    body_end = buffer.size - _CHECKSUM_BYTES
    if body_end < start:
        raise CorruptFile(f"{origin} is truncated: {buffer.size} bytes")
    if xxhash.xxh3_128_digest(buffer.slice(0, body_end)) != buffer.slice(body_end).to_pybytes():
        raise CorruptFile(f"{origin} does not match its checksum: it was truncated or changed")
    (length,) = _LENGTH.unpack(buffer.slice(len(_MAGIC), _LENGTH.size).to_pybytes())
    header: dict[str, object] = json.loads(buffer.slice(start, length).to_pybytes())
    if cast(int, header["format"]) > FORMAT:
        raise ForeignFormat(f"{origin} has snapshot format {header['format']}; this Headrace reads up to {FORMAT}")
    sections = {}
    position = start + length
    for name, size in cast(list[tuple[str, int]], header["sections"]):
        sections[name] = buffer.slice(position, size)
        position += size
    return header, sections


def _schema_section(schema: pa.Schema) -> pa.Buffer:
    return schema.serialize()


def _table_section(batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()
