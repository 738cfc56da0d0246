"""How a Spark task hands tables and documents to the driver: rows of (kind, number, payload).

A payload is an Arrow IPC stream or a JSON document, so that one job brings home tables of several schemas. An error of
ours comes as a payload too: raised in the task it would be tried again in vain, and arrive as pages of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from etl.errors import TerminalError

PAYLOADS = "kind string, number int, payload binary"
"""The output schema of the task, as Spark wants it."""

_SCHEMA = pa.schema([("kind", pa.string()), ("number", pa.int32()), ("payload", pa.binary())])
_FAILURE = "failure"


class Payload(NamedTuple):
    kind: str
    number: int
    content: pa.Buffer

    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.content).read_all()

    def document(self) -> Mapping[str, object]:
        return cast(Mapping[str, object], json.loads(self.content.to_pybytes()))


def table_payload(kind: str, number: int, table: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _payload(kind, number, sink.getvalue().to_pybytes())


def document_payload(kind: str, number: int, document: Mapping[str, object]) -> pa.RecordBatch:
    return _payload(kind, number, json.dumps(document).encode())


def failure_payload(error: TerminalError, where: str) -> pa.RecordBatch:
    return document_payload(_FAILURE, 0, {"error": type(error).__name__, "message": f"{where}: {error}"})


def collected(tasks: DataFrame) -> Iterator[Payload]:
    """Run the tasks and give their payloads; raises the error of a task that failed."""
    outputs = tasks.toArrow()
    kinds, numbers = outputs.column("kind").to_pylist(), outputs.column("number").to_pylist()
    for kind, number, content in zip(kinds, numbers, outputs.column("payload"), strict=True):
        payload = Payload(kind, number, content.as_buffer())
        if kind == _FAILURE:
            failure = payload.document()
            raise _error_named(cast(str, failure["error"]))(failure["message"])
        yield payload


def _payload(kind: str, number: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"kind": kind, "number": number, "payload": content}], schema=_SCHEMA)


def _error_named(name: str) -> type[TerminalError]:
    """The kind of error that the task raised, wherever it is defined."""
    kinds = [TerminalError]
    for kind in kinds:
        if kind.__name__ == name:
            return kind
        kinds += kind.__subclasses__()
    return TerminalError
