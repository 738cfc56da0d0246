"""Rows of several sides in one set of columns, on their way from Spark's rows to the operators' batches.

A row belongs to one side. With a struct for each side it would carry the nulls of all others through the shuffle and
the conversion to Arrow, which handle them one by one: at two sides a third of the whole cost. So columns of the same
type share a packed column, as far as they belong to different sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from etl.errors import BadInput
from etl.kernels.compiling import Int64s

Layout = tuple[tuple[int, ...], ...]
"""For each side, the packed columns that hold its columns, in the order of its schema."""


def layout_of(rows: StructType, sides: Sequence[pa.Schema]) -> Layout:
    """Which packed columns the tagged rows need; BadInput names a column that a side's struct lacks."""
    places: dict[tuple[str, int], int] = {}
    layout = []
    for number, schema in enumerate(sides):
        used: dict[str, int] = {}
        columns = []
        for name in schema.names:
            type_ = _type_of(rows, number, name)
            occurrence = used[type_] = used.get(type_, -1) + 1
            columns.append(places.setdefault((type_, occurrence), len(places)))
        layout.append(tuple(columns))
    return tuple(layout)


def packed(layout: Layout, sides: Sequence[pa.Schema]) -> list[str]:
    """The packed columns of tagged rows, as SQL.

    Not as `Column`s: those are put together by hundreds of calls to Java, in every load again; text takes one.
    """
    cases: dict[int, list[str]] = {}
    for number, (places, schema) in enumerate(zip(layout, sides, strict=True)):
        for place, name in zip(places, schema.names, strict=True):
            cases.setdefault(place, []).append(f"WHEN side = {number} THEN {value_of(number, name)}")
    return [f"CASE {' '.join(whens)} END AS {_name(place)}" for place, whens in sorted(cases.items())]


def value_of(side: int, column: str) -> str:
    """A column of a side's struct, as SQL."""
    return f"row_{side}.`{column.replace('`', '``')}`"


def unpacked(rows: pa.RecordBatch, chosen: Int64s, places: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    """The chosen rows, all of one side, as that side's batch."""
    indices = pa.array(chosen)
    columns = [rows.column(_name(place)).take(indices) for place in places]
    return pa.RecordBatch.from_arrays(columns, names=schema.names).cast(schema)


def _name(place: int) -> str:
    return f"packed_{place}"


def _type_of(rows: StructType, side: int, name: str) -> str:
    struct = rows[f"row_{side}"].dataType
    if not isinstance(struct, StructType) or name not in struct.names:
        raise BadInput(f"row_{side} of the tagged rows has no column {name!r}, which side {side} is said to have")
    return struct[name].dataType.simpleString()
