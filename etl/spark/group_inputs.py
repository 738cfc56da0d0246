"""The inputs of one partition group in one load: what its operator was offered, and the log entry that says so.

An entry is enough to repeat what the load did to the operator: the same events in the same order, then work until
there is none. Operators have no clock and no chance in them, so an operator that takes the entries of a log after the
same base gives the same results at the same entries. The results went out with their load; repeating drops them.

The bytes of an entry: length of the header (8) | header: JSON | one Arrow IPC stream for each side that has rows.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from etl import joins
from etl.errors import ForeignFormat
from etl.storage.durable import BytesLike

FORMAT = 1
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, eq=False)
class GroupInputs:
    """Each side's watermark if it has one, and its rows if there are any."""

    watermarks: Mapping[int, int]
    rows: Mapping[int, pa.RecordBatch]

    def offer_to(self, operator: joins.Operator, emit: joins.Emit) -> None:
        """Watermarks first: rows behind them have been taken out."""
        for side, instant in sorted(self.watermarks.items()):
            operator.offer(joins.Watermark(side, instant), emit)
        for side, batch in sorted(self.rows.items()):
            operator.offer(joins.Rows(side, batch), emit)
        while operator.work(joins.WorkBudget(), emit) is joins.Progress.MORE:
            pass

    def to_parts(self) -> list[BytesLike]:
        """The log entry, in pieces that need not be joined before they are written."""
        streams = {side: _stream(batch) for side, batch in sorted(self.rows.items())}
        header = json.dumps(
            {
                "format": FORMAT,
                "watermarks": sorted(self.watermarks.items()),
                "sides": [[side, stream.size] for side, stream in streams.items()],
            },
            separators=(",", ":"),
        ).encode()
        return [_LENGTH.pack(len(header)), header, *streams.values()]

    @classmethod
    def from_buffer(cls, stored: pa.Buffer, origin: str) -> GroupInputs:
        """`origin` names the file in messages; the bytes have been compared with their checksum."""
        (length,) = _LENGTH.unpack(stored.slice(0, _LENGTH.size).to_pybytes())
        position = _LENGTH.size + length
        header = json.loads(stored.slice(_LENGTH.size, length).to_pybytes())
        if header["format"] > FORMAT:
            raise ForeignFormat(f"{origin} has log format {header['format']}; this Headrace reads up to {FORMAT}")
        rows = {}
        for side, size in header["sides"]:
            rows[side] = pa.ipc.open_stream(stored.slice(position, size)).read_next_batch()
            position += size
        return cls(dict(header["watermarks"]), rows)


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
