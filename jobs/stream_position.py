"""Where a stream's micro-batch ends in its sources, read from Spark's checkpoint.

A load id is a number that Spark counts from 0 in each checkpoint. It means the same rows only as long as the checkpoint
is the same one; so a package says which stream it was made from, and how far that had read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

__all__ = ["NOWHERE", "StreamPosition", "position_of"]

PositionFields: TypeAlias = dict[str, str | list[str]]


@dataclass(frozen=True)
class StreamPosition:
    """`stream` is the checkpoint's own id, `offsets` are the sources' in Spark's words."""

    stream: str
    offsets: tuple[str, ...]

    def to_json(self) -> PositionFields:
        return {"stream": self.stream, "offsets": list(self.offsets)}


NOWHERE = StreamPosition("", ())
"""Of rows that no stream brought."""


def position_of(checkpoint: Path, batch_id: int) -> StreamPosition:
    """What Spark wrote down before it handed over the rows of the micro-batch."""
    stream: str = json.loads((checkpoint / "metadata").read_text())["id"]
    _format, _metadata, *offsets = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return StreamPosition(stream, tuple(offsets))
