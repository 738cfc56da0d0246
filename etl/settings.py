"""Settings: frozen dataclasses, made from keyword arguments with a message for every wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TypeVar

from etl.errors import BadInput

Settings = TypeVar("Settings")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def make_settings(kind: type[Settings], given: Mapping[str, object], owner: str) -> Settings:
    """`kind(**given)`, refusing names it does not have. `owner` is what the settings belong to, for the message."""
    assert is_dataclass(kind)
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise BadInput(f"{owner} has no setting {name!r}{suggestion(name, known)}")
    return kind(**given)


def settings_to_json(settings: object) -> dict[str, Json]:
    assert is_dataclass(settings)
    assert not isinstance(settings, type)
    # As JSON gives them back: it knows no tuples.
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


def suggestion(name: str, known: list[str]) -> str:
    """The tail of a message about an unknown name: the nearest one, or all there are."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f": did you mean {near[0]!r}?"
    return f": it takes {', '.join(map(repr, known))}" if known else ": it takes none"
