"""What can happen to a join operator, as frozen values.

A list of events is at once a test case, a log and a replay. Events carry no behaviour; which of them an operator
accepts in which phase is said once, in `etl.joins.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from etl.storage.ports import RelationView

Scalar = int | str | bytes | bool


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows admitted together on one side. An empty batch is legal and changes nothing."""

    side: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class EndOfSide:
    """No more rows will come on this side."""

    side: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Rows with an event time below `instant` are late on this side from now on."""

    side: int
    instant: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time as the driver sees it; operators own no clock. Deadlines are held against it."""

    instant: int


@dataclass(frozen=True, slots=True)
class Exactly:
    value: Scalar


@dataclass(frozen=True, slots=True)
class Between:
    """Both ends belong to the range; None leaves an end open."""

    low: Scalar | None
    high: Scalar | None


@dataclass(frozen=True, slots=True)
class OneOf:
    values: frozenset[Scalar]


Pattern = Exactly | Between | OneOf


@dataclass(frozen=True, slots=True, eq=False)
class Punctuation:
    """No later row on this side matches every pattern; a column that is not named is a wildcard."""

    side: int
    where: Mapping[str, Pattern]


@dataclass(frozen=True, slots=True, eq=False)
class RelationVersion:
    """The relation has moved on: rows that are not answered yet may be answered from this version."""

    relation: RelationView


Event = Rows | EndOfSide | Watermark | Tick | Punctuation | RelationVersion
