"""Coded-value translation: several code sets in one relation, keyed by (code set, code).

The relation has the columns `code_set` and `code`, usually `code_key` with a surrogate key, and whatever else there is
to tell of a code. What becomes of a row with a code that the relation does not know is one choice of the caller:
`UnknownCode`. A null is no code, and is treated like one that is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput, TerminalError
from etl.storage.ports import RelationView
from etl.transforms.lookups import Lookups, Pairs, looked_up
from etl.transforms.surrogate_keys import UNKNOWN_MEMBER

CODE_SET = "code_set"
CODE = "code"
CODE_KEY = "code_key"
_CODES_SHOWN = 5


class UnknownCode(Enum):
    """What becomes of a row with a code that the relation does not know."""

    UNKNOWN_MEMBER = "unknown member"  # it goes on: its `code_key` is 0, all else is null
    QUARANTINE = "quarantine"  # it is set aside, as it came
    FAIL = "fail"  # the load ends with `UnknownCodesFound`


class UnknownCodesFound(TerminalError):
    """The policy is to fail, and a code is not known."""


@dataclass(frozen=True)
class CodeColumn:
    """A column of the rows with codes of one set; `gives` pairs columns of the relation with those it becomes."""

    name: str
    code_set: str
    gives: Pairs


@dataclass(frozen=True)
class Translated:
    """`rows`: those that go on, in their order, with the new columns; `quarantined`: the others, as they came."""

    rows: pa.Table
    quarantined: pa.Table


def translate(
    rows: pa.Table,
    columns: Sequence[CodeColumn],
    codes: RelationView,
    unknown: UnknownCode,
    *,
    lookups: Lookups | None = None,
) -> Translated:
    """Translate these columns, each by its own code set; a row needs all its codes to be known."""
    _check(rows, columns, codes)
    if not columns:
        return Translated(rows, rows.slice(0, 0))
    # The columns one below the other, so that one lookup serves them all.
    asked = pa.concat_tables([_asked(rows, column) for column in columns])
    answer = looked_up(asked, codes, [(CODE_SET, CODE_SET), (CODE, CODE)], lookups)
    places = [number * rows.num_rows for number in range(len(columns))]
    known = [answer.known.slice(place, rows.num_rows) for place in places]
    if unknown is UnknownCode.FAIL:
        _fail_if_unknown(rows, columns, known, codes)
    translated = rows
    for column, place, is_known in zip(columns, places, known, strict=True):
        for related, name in column.gives:
            values = answer.found.column(related).slice(place, rows.num_rows)
            if related == CODE_KEY:
                values = pc.if_else(is_known, values, pa.scalar(UNKNOWN_MEMBER, values.type))
            translated = translated.append_column(name, values)
    if unknown is UnknownCode.UNKNOWN_MEMBER:
        return Translated(translated, rows.slice(0, 0))
    all_known = reduce(pc.and_, known)
    return Translated(translated.filter(all_known), rows.filter(pc.invert(all_known)))


def _asked(rows: pa.Table, column: CodeColumn) -> pa.Table:
    code_set = pa.repeat(pa.scalar(column.code_set, pa.string()), rows.num_rows)
    return pa.table({CODE_SET: code_set, CODE: rows.column(column.name)})


def _check(rows: pa.Table, columns: Sequence[CodeColumn], codes: RelationView) -> None:
    taken = set(rows.column_names)
    for column in columns:
        if column.name not in rows.column_names:
            raise BadInput(f"the rows have no column {column.name!r} with codes; their columns are {rows.column_names}")
        type_ = rows.schema.field(column.name).type
        if type_ != codes.schema.field(CODE).type:
            raise BadInput(
                f"column {column.name!r} of the rows is {type_}, codes in relation {codes.name} are "
                f"{codes.schema.field(CODE).type}: cast one of them"
            )
        for related, name in column.gives:
            if related not in codes.schema.names or related in codes.key:
                raise BadInput(f"relation {codes.name} has no column {related!r} beside its key to translate into")
            if name in taken:
                raise BadInput(f"the rows would have two columns {name!r}: let {column.name!r} give another name")
            taken.add(name)


def _fail_if_unknown(
    rows: pa.Table, columns: Sequence[CodeColumn], known: Sequence[pa.ChunkedArray], codes: RelationView
) -> None:
    for column, is_known in zip(columns, known, strict=True):
        unknown = pc.unique(rows.column(column.name).filter(pc.invert(is_known)))
        if len(unknown):
            shown = ", ".join(repr(code) for code in unknown[:_CODES_SHOWN].to_pylist())
            raise UnknownCodesFound(
                f"column {column.name!r}: relation {codes.name} has no code {shown} in code set {column.code_set!r} "
                f"({len(unknown)} unknown in all): add them to the relation, or choose another policy than "
                f"{UnknownCode.FAIL.value!r}"
            )
