"""Key columns: which columns join with which, checked once, before anything is built.

Keys may be several columns of any integer, string, binary, decimal, date, time, timestamp or boolean type. Both sides
of a pair have the same Arrow type, so that equal keys hash alike and compare without a conversion in the hot path.
Floats are refused: NaN differs from itself and 0.1 + 0.2 from 0.3, so an equality join on them loses rows in silence.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from etl.errors import BadInput

KeyColumns = tuple[int, ...]
"""Positions of a side's key columns, in the order of `on`."""


def bind_keys(
    schemas: Sequence[pa.Schema], names: Sequence[str], on: Sequence[tuple[str, ...]]
) -> tuple[KeyColumns, ...]:
    """Each input's key columns, or `BadInput` naming the input and the column that does not fit.

    `names` is what the inputs are called in messages, such as "side 0" or "relation customer".
    """
    if not on:
        raise BadInput("on is empty: name at least one pair of key columns")
    for number, columns in enumerate(on):
        if len(columns) != len(schemas):
            raise BadInput(f"on[{number}] is {columns!r}: it names {len(columns)} columns for {len(schemas)} inputs")
        types = [_key_type(schema, name, column) for schema, name, column in zip(schemas, names, columns, strict=True)]
        for name, column, type_ in zip(names, columns, types, strict=True):
            if type_ != types[0]:
                raise BadInput(
                    f"key columns of different types: {names[0]} column {columns[0]!r} is {types[0]}, "
                    f"{name} column {column!r} is {type_}: cast one of them"
                )
    return tuple(
        tuple(schema.get_field_index(columns[position]) for columns in on) for position, schema in enumerate(schemas)
    )


def is_key_type(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_date(type_)
        or pa.types.is_time(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    )


def _key_type(schema: pa.Schema, name: str, column: str) -> pa.DataType:
    positions = schema.get_all_field_indices(column)
    if not positions:
        raise BadInput(f"{name} has no key column {column!r}: it has {', '.join(map(repr, schema.names))}")
    if len(positions) > 1:
        raise BadInput(f"{name} has {len(positions)} columns named {column!r}: rename all but one")
    type_ = schema.field(positions[0]).type
    if pa.types.is_floating(type_):
        raise BadInput(
            f"{name} key column {column!r} is {type_}: floats do not compare exactly, cast to a decimal or an integer"
        )
    if not is_key_type(type_):
        raise BadInput(f"{name} key column {column!r} is {type_}, which cannot be a key")
    return type_
