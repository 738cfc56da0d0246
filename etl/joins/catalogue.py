"""The catalogue: every join by its name, and the one way to build or restore one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import pyarrow as pa

from etl.budget import BLOCK_BYTES, check_memory
from etl.errors import BadInput
from etl.joins.contract import RESULT_ROWS, How, JoinPlan, NoSettings, Ports
from etl.joins.lifecycle import Operator
from etl.joins.snapshots import Snapshot
from etl.keys import bind_keys
from etl.rows import join_schema
from etl.settings import make_settings, suggestion
from etl.storage.ports import RelationView, RunStore

MEMORY_BYTES = 256 * 1024 * 1024
"""Default memory budget of one operator."""

CREATED_BY = "created_by"
RELATION_VERSION = "relation_version"
"""The last two columns of a hybrid join's results: the load that inserted the relation's row, and the version seen."""


Factory = Callable[[JoinPlan, Ports, Snapshot | None], Operator]
"""An operator's class, or a function that chooses one."""
Registered = TypeVar("Registered", bound=Factory)


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One join: what it is for people, and what `build` needs to know."""

    name: str
    family: str
    predicates: tuple[str, ...]
    spills: str
    paper: str
    operator: Factory
    settings: type = NoSettings
    streams: int = 2
    with_relation: bool = False

    @property
    def needs_spill(self) -> bool:
        return self.spills != "nothing"


_ENTRIES: dict[str, CatalogueEntry] = {}


def register(
    name: str,
    *,
    family: str,
    predicates: tuple[str, ...],
    spills: str,
    paper: str,
    settings: type = NoSettings,
    streams: int = 2,
    with_relation: bool = False,
) -> Callable[[Registered], Registered]:
    """Decorator that puts an operator into the catalogue."""

    def enter(operator: Registered) -> Registered:
        _ENTRIES[name] = CatalogueEntry(
            name, family, predicates, spills, paper, operator, settings, streams, with_relation
        )
        return operator

    return enter


def catalogue() -> tuple[CatalogueEntry, ...]:
    """All joins, by family and name."""
    return tuple(sorted(_ENTRIES.values(), key=lambda entry: (entry.family, entry.name)))


def make(plan: JoinPlan, ports: Ports, saved: Snapshot | None) -> Operator:
    """The operator that a finished plan names."""
    return _ENTRIES[plan.name].operator(plan, ports, saved)


def build(
    name: str,
    *,
    sides: Sequence[pa.Schema],
    on: Sequence[tuple[str, ...]],
    memory_bytes: int = MEMORY_BYTES,
    spill: RunStore | None = None,
    relation: RelationView | None = None,
    how: How = "inner",
    suffixes: Sequence[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
    result_rows: int = RESULT_ROWS,
    **settings: object,
) -> Operator:
    """A new operator, or `BadInput` naming what does not fit; nothing is created before all is checked.

    `on` pairs key columns: one from each side, or from the stream side and the relation. A column name that repeats
    in the results gets its input's suffix, "_1" for input 1 and so on unless `suffixes` says otherwise.
    `settings` are the operator's own; see its page.
    """
    return _make(
        None,
        name,
        sides=sides,
        on=on,
        memory_bytes=memory_bytes,
        spill=spill,
        relation=relation,
        how=how,
        suffixes=suffixes,
        block_bytes=block_bytes,
        result_rows=result_rows,
        settings=settings,
    )


def restore(
    snapshot: Snapshot,
    *,
    spill: RunStore | None = None,
    relation: RelationView | None = None,
    memory_bytes: int | None = None,
) -> Operator:
    """An operator that goes on where the snapshot was taken; `memory_bytes` may differ from what it had."""
    if relation is not None and snapshot.relation_version is not None and relation.version < snapshot.relation_version:
        raise BadInput(
            f"{snapshot.operator}: the snapshot saw version {snapshot.relation_version} of relation {relation.name}, "
            f"version {relation.version} is older: open that version or a newer one"
        )
    arguments = snapshot.arguments
    return _make(
        snapshot,
        snapshot.operator,
        sides=snapshot.sides,
        on=[tuple(columns) for columns in cast(list[list[str]], arguments["on"])],
        memory_bytes=cast(int, arguments["memory_bytes"]) if memory_bytes is None else memory_bytes,
        spill=spill,
        relation=relation,
        how=cast(How, arguments["how"]),
        suffixes=cast(list[str], arguments["suffixes"]),
        block_bytes=cast(int, arguments["block_bytes"]),
        result_rows=cast(int, arguments["result_rows"]),
        settings=cast(dict[str, object], arguments["settings"]),
        reason=cast(str, arguments.get("reason", "")),
    )


def _make(
    saved: Snapshot | None,
    name: str,
    *,
    sides: Sequence[pa.Schema],
    on: Sequence[tuple[str, ...]],
    memory_bytes: int,
    spill: RunStore | None,
    relation: RelationView | None,
    how: How,
    suffixes: Sequence[str] | None,
    block_bytes: int,
    result_rows: int,
    settings: Mapping[str, object],
    reason: str = "",
) -> Operator:
    entry = _entry(name)
    _check_inputs(entry, sides, how, spill, relation)
    check_memory(memory_bytes, block_bytes)
    if result_rows < 1:
        raise BadInput(f"result_rows is {result_rows}: an emitted batch holds at least one row")
    if relation is not None:
        on = _in_key_order(name, on, relation)
    inputs = [*sides] if relation is None else [*sides, relation.schema]
    labels = _labels(len(sides), relation)
    _refuse_view_types(inputs, labels)
    suffixes = _checked_suffixes(suffixes, len(inputs))
    plan = JoinPlan(
        name=name,
        sides=tuple(sides),
        on=tuple(tuple(columns) for columns in on),
        keys=bind_keys(inputs, labels, on),
        how=how,
        suffixes=tuple(suffixes),
        result_schema=_result_schema(inputs, suffixes, relation, how),
        memory_bytes=memory_bytes,
        block_bytes=block_bytes,
        result_rows=result_rows,
        settings=make_settings(entry.settings, settings, owner=name),
        reason=reason,
    )
    return make(plan, Ports(spill, relation), saved)


def _entry(name: str) -> CatalogueEntry:
    entry = _ENTRIES.get(name)
    if entry is None:
        raise BadInput(f"there is no join named {name!r}{suggestion(name, sorted(_ENTRIES))}")
    return entry


def _check_inputs(
    entry: CatalogueEntry,
    sides: Sequence[pa.Schema],
    how: str,
    spill: RunStore | None,
    relation: RelationView | None,
) -> None:
    if len(sides) != entry.streams:
        raise BadInput(f"{entry.name} joins {entry.streams} stream side(s), sides names {len(sides)}")
    if entry.with_relation and relation is None:
        raise BadInput(f"{entry.name} joins a stream with a relation: give relation=an opened relation")
    if relation is not None and not entry.with_relation:
        raise BadInput(f"{entry.name} joins streams only: it takes no relation")
    if entry.needs_spill and spill is None:
        raise BadInput(f"{entry.name} spills {entry.spills}: give spill=RunFiles(folder)")
    allowed = ("inner", "left") if entry.with_relation else ("inner",)
    if how not in allowed:
        raise BadInput(f"{entry.name}: how is {how!r}, it can be {' or '.join(map(repr, allowed))}")


def _result_schema(
    inputs: Sequence[pa.Schema], suffixes: Sequence[str], relation: RelationView | None, how: How
) -> pa.Schema:
    if relation is None:
        return join_schema(inputs, suffixes)
    *streams, relation_schema = inputs
    if how == "left":
        relation_schema = pa.schema([field.with_nullable(True) for field in relation_schema])
    seen = pa.schema([(CREATED_BY, pa.string()), pa.field(RELATION_VERSION, pa.int64(), nullable=False)])
    return join_schema([*streams, relation_schema, seen], [*suffixes, "_of_relation"])


def _in_key_order(name: str, on: Sequence[tuple[str, ...]], relation: RelationView) -> list[tuple[str, ...]]:
    """The pairs in the order of the relation's key, which is the order its rows were hashed in."""
    named = {columns[-1]: columns for columns in on if columns}
    if set(named) != set(relation.key) or len(on) != len(relation.key):
        raise BadInput(
            f"{name}: relation {relation.name} is keyed by {', '.join(map(repr, relation.key))}, "
            f"on names {', '.join(map(repr, named)) or 'nothing'}: name each key column once"
        )
    return [named[column] for column in relation.key]


def _labels(streams: int, relation: RelationView | None) -> list[str]:
    labels = [f"side {number}" for number in range(streams)]
    return labels if relation is None else [*labels, f"relation {relation.name}"]


def _refuse_view_types(inputs: Sequence[pa.Schema], labels: Sequence[str]) -> None:
    """Arrow cannot take rows out of view arrays yet: better said here than in the middle of a run."""
    for schema, label in zip(inputs, labels, strict=True):
        for field in schema:
            if field.type in (pa.string_view(), pa.binary_view()):
                raise BadInput(f"{label} column {field.name!r} is {field.type}: cast it to string or binary")


def _checked_suffixes(suffixes: Sequence[str] | None, inputs: int) -> Sequence[str]:
    if suffixes is None:
        return ["", *(f"_{number}" for number in range(1, inputs))]
    if len(suffixes) != inputs:
        raise BadInput(f"suffixes has {len(suffixes)} entries for {inputs} inputs")
    return suffixes
