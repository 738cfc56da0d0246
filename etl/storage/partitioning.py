"""Which relation segment a key belongs to.

Idea: every key has a 64-bit *coordinate*: its hash, or the rank of one of its columns. A relation segment
is a range of coordinates, so one array of boundaries describes all segments, and splitting or merging
segments is inserting or removing a boundary. A slot array finds the segment of a coordinate in one or
two steps: equal stretches of the coordinates, each with the segments that it overlaps.

State: `boundaries`, the first coordinate of each segment, ascending; the first one is 0, so that every
coordinate belongs to a segment. By range, `column` says which key column is ranked and `skip` how many
of its leading bytes all keys shared when the boundaries were drawn.

Invariants: equal keys have equal coordinates, so the rows of a key lie in one segment. A key that does not
share the skipped bytes still has its one coordinate; it only loses its neighbourhood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as arrow_types

from etl.errors import BadInput
from etl.kernels.ranks import SlotArray, rank, segment_of_rank, slot_array
from etl.storage.ports import Keys, Segments

PartitionKind: TypeAlias = Literal["hash", "range"]
Coordinates: TypeAlias = npt.NDArray[np.uint64]
END = 1 << 64
"""One past the last coordinate."""


@dataclass(frozen=True, slots=True, eq=False)
class Partitioning:
    """A map from keys to relation segments."""

    kind: PartitionKind
    boundaries: Coordinates
    column: int = 0
    skip: int = 0
    _slots: SlotArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ascending = bool((self.boundaries[1:] > self.boundaries[:-1]).all())
        if not self.boundaries.size or self.boundaries[0] != 0 or not ascending:
            raise ValueError(f"boundaries of segments start at 0 and ascend, not {self.boundaries}")
        object.__setattr__(self, "_slots", _slots_of(self.boundaries))

    @property
    def segments(self) -> int:
        return int(self.boundaries.size)

    def coordinates(self, keys: Keys) -> Coordinates:
        return keys.hashes if self.kind == "hash" else rank(keys.views[self.column], self.skip)

    def segment_of(self, keys: Keys) -> Segments:
        """The segment of each key; -1 for a key with a null in it."""
        segment = self.segment_at(self.coordinates(keys))
        if keys.valid is not None:
            segment[~keys.valid] = -1
        return segment

    def segment_at(self, coordinates: Coordinates) -> Segments:
        return segment_of_rank(*self._slots, coordinates)

    def interval(self, segment: int) -> tuple[int, int]:
        """The coordinates of a segment, the second one excluded."""
        after = segment + 1
        end = END if after == self.segments else int(self.boundaries[after])
        return int(self.boundaries[segment]), end

    def same_segments(self, other: "Partitioning") -> bool:
        """Whether keys go to the same segments in both."""
        return (self.kind, self.column, self.skip) == (other.kind, other.column, other.skip) and np.array_equal(
            self.boundaries, other.boundaries
        )

    def redrawn(self, boundaries: Coordinates) -> "Partitioning":
        """The same kind of map with other segments."""
        return Partitioning(self.kind, boundaries, self.column, self.skip)


def one_segment(kind: PartitionKind, column: int = 0, skip: int = 0) -> Partitioning:
    return Partitioning(kind, np.zeros(1, np.uint64), column, skip)


def check_range_column(
    relation: str, schema: pa.Schema, key: Sequence[str], kind: PartitionKind, range_by: str | None
) -> None:
    """Refuse a way of partitioning that does not fit the key, before anything is written."""
    if kind not in get_args(PartitionKind):
        raise BadInput(f"relation {relation}: partition is {kind!r}; choose 'hash' or 'range'")
    if kind == "hash":
        if range_by is not None:
            raise BadInput(f"relation {relation}: range_by={range_by!r} needs partition='range'")
        return
    column = key[-1] if range_by is None else range_by
    if column not in key:
        raise BadInput(f"relation {relation}: range_by={range_by!r} is no key column; its key is {tuple(key)}")
    type_ = schema.field(column).type
    if not any(is_one(type_) for is_one in _RANKED_TYPES):
        raise BadInput(
            f"relation {relation}: column {column!r} is {type_}, which has no ranges to partition by; name a "
            "key column of integers, dates, times, strings or binary in range_by, or partition by hash"
        )


_RANKED_TYPES = (
    arrow_types.is_integer,
    arrow_types.is_temporal,
    arrow_types.is_string,
    arrow_types.is_large_string,
    arrow_types.is_binary,
    arrow_types.is_large_binary,
)


def _slots_of(boundaries: Coordinates) -> SlotArray:
    # What lies before the second boundary is in the first segment: the slots need not reach down to 0, where
    # ranks of ordinary keys leave a wide gap.
    shifted = boundaries.copy()
    if shifted.size > 1:
        shifted[0] = shifted[1] - np.uint64(1)
    return slot_array(shifted)
