"""Resolving some rows of a load, and putting the parts of a load together: the same code wherever it runs.

A part holds all rows that could be duplicates of each other. Everything about it is final but the numbers of new keys:
those depend on the whole load, so a part says which keys it does not know, and `finished` numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import BadInput
from etl.spark.resolution import AssignKeys, Members, Resolution, ResolvedLoad
from etl.storage.relation import Relation
from etl.transforms.code_translation import translate
from etl.transforms.duplicate_detection import drop_duplicates
from etl.transforms.lookups import Lookups
from etl.transforms.new_rows import as_relation_rows, has_key, in_number_order, is_new
from etl.transforms.surrogate_keys import fill_in, find_keys, number_new

PLACE = "place in the load"
"""A column that rows of a part may have: where they stood in the load. It decides nothing, and is gone in the end."""


@dataclass(frozen=True)
class Part:
    """Some rows of a load, looked up.

    `loaded`: what the relation of the duplicates learns, in the order of its keys; `unknown`: for each step with keys,
    the natural keys that have no number yet.
    """

    rows: pa.Table
    quarantined: pa.Table
    duplicates: int
    loaded: pa.Table | None
    unknown: Sequence[pa.Table]


def resolve_part(
    rows: pa.Table, plan: Resolution, relations: Mapping[str, Relation], load_id: str, lookups: Lookups
) -> Part:
    """All steps but the numbering."""
    quarantined, duplicates, loaded = rows.slice(0, 0), 0, None
    if plan.codes is not None:
        codes = plan.codes
        translated = translate(rows, codes.columns, relations[codes.relation], codes.unknown, lookups=lookups)
        rows, quarantined = translated.rows, translated.quarantined
    if plan.duplicates is not None:
        step = plan.duplicates
        # Where a row stood must not decide which of two duplicates wins; all else may.
        prefer = [*step.prefer, *(name for name in rows.column_names if name not in (*step.prefer, PLACE))]
        relation = relations[step.relation]
        first = drop_duplicates(rows, relation, step.on, load_id, prefer, attributes=step.attributes, lookups=lookups)
        rows, loaded, duplicates = first.first, first.members, first.duplicates
    unknown: list[pa.Table] = []
    for keys in plan.keys:
        rows, not_known = _with_keys(rows, keys, relations[keys.relation], load_id, lookups)
        unknown.append(not_known)
    return Part(rows, quarantined, duplicates, loaded, unknown)


def together(parts: Sequence[Part], plan: Resolution, relations: Mapping[str, Relation]) -> Part:
    """All parts of a load as one."""
    loaded = None
    if plan.duplicates is not None:
        relation = relations[plan.duplicates.relation]
        loaded = pa.concat_tables([part.loaded for part in parts if part.loaded is not None])
        loaded = as_relation_rows(in_number_order(loaded, relation), relation)
    return Part(
        rows=pa.concat_tables([part.rows for part in parts]),
        quarantined=pa.concat_tables([part.quarantined for part in parts]),
        duplicates=sum(part.duplicates for part in parts),
        loaded=loaded,
        unknown=[pa.concat_tables(tables) for tables in zip(*(part.unknown for part in parts), strict=True)],
    )


def finished(whole: Part, plan: Resolution, relations: Mapping[str, Relation]) -> ResolvedLoad:
    """The load: its new keys are numbered, and its rows stand in their order again."""
    rows = _in_order(whole.rows)
    members: dict[str, Members] = {}
    if plan.duplicates is not None:
        assert whole.loaded is not None
        members[plan.duplicates.relation] = Members(whole.loaded, relations[plan.duplicates.relation].highest)
    for name in dict.fromkeys(step.relation for step in plan.keys):
        # Several steps may ask one relation, as buyers and sellers are customers: a new key gets one number.
        steps = {number: step for number, step in enumerate(plan.keys) if step.relation == name}
        first = next(iter(steps.values()))
        unknown = pa.concat_tables([whole.unknown[number] for number in steps])
        numbered = number_new(unknown, relations[name], first.key_column, first.attributes)
        for step in steps.values():
            keys = fill_in(rows.column(step.column), rows, numbered.members, step.on, step.key_column)
            rows = rows.set_column(rows.column_names.index(step.column), step.column, keys)
        members[name] = Members(numbered.members, numbered.highest)
    return ResolvedLoad(
        rows=rows,
        quarantined=_in_order(whole.quarantined),
        duplicates=whole.duplicates,
        members=members,
        versions={name: relations[name].version for name in plan.relations},
    )


def check(plan: Resolution, relations: Mapping[str, Relation], columns: Sequence[str]) -> None:
    """BadInput when the plan asks a relation that is not given, or would name two columns alike."""
    missing = [name for name in plan.relations if name not in relations]
    if missing:
        raise BadInput(
            f"the resolution asks relation {missing[0]!r}, which was not given: there are "
            f"{', '.join(map(repr, relations)) or 'none'}"
        )
    _check_steps_of_one_relation(plan)
    taken = list(columns)
    taken += [name for column in (plan.codes.columns if plan.codes else ()) for _, name in column.gives]
    for step in plan.keys:
        for name in filter(None, (step.column, step.marks_new)):
            if name in taken:
                raise BadInput(
                    f"the rows would have two columns {name!r}: let the keys of {step.relation} give another"
                )
            taken.append(name)


def _check_steps_of_one_relation(plan: Resolution) -> None:
    learnt: dict[str, tuple[str, ...]] = {}
    if plan.duplicates is not None:
        learnt[plan.duplicates.relation] = ()
    for step in plan.keys:
        learns = (step.key_column, *(related for _, related in (*step.on, *step.attributes)))
        if learnt.setdefault(step.relation, learns) != learns:
            raise BadInput(
                f"two steps bring members of relation {step.relation} in different columns: give them the same key "
                "column, the same order of `on` and the same attributes, or relations of their own"
            )


def _with_keys(
    rows: pa.Table, step: AssignKeys, relation: Relation, load_id: str, lookups: Lookups
) -> tuple[pa.Table, pa.Table]:
    found = find_keys(rows, relation, step.on, step.key_column, attributes=step.attributes, lookups=lookups)
    keyed = rows.append_column(step.column, found.keys)
    if step.marks_new:
        with_key = has_key(rows, [name for name, _ in step.on])
        keyed = keyed.append_column(step.marks_new, is_new(with_key, found.created_by, load_id))
    return keyed, found.unknown


def _in_order(rows: pa.Table) -> pa.Table:
    if PLACE not in rows.column_names:
        return rows
    return rows.take(pc.sort_indices(rows.column(PLACE))).drop_columns([PLACE])
