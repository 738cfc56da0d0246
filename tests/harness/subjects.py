"""Subjects: what the suites are run on. A new operator in the catalogue is a new subject, with nothing to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import hypothesis
from hypothesis import strategies as st

from etl import joins
from tests.scripts import Script, scripts

SETTINGS: Mapping[str, list[dict[str, object]]] = {}
"""Further settings under which an operator is proven, beside its defaults."""


@dataclass(frozen=True)
class Subject:
    name: str
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def entry(self) -> joins.CatalogueEntry:
        return next(entry for entry in joins.catalogue() if entry.name == self.name)

    @property
    def keeps_to_any_budget(self) -> bool:
        """Whether it has somewhere to put what memory does not hold; otherwise it refuses rows."""
        return self.entry.needs_spill or self.entry.with_relation

    def scripts(self) -> st.SearchStrategy[Script]:
        return scripts(sides=self.entry.streams, with_relation=self.entry.with_relation)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.settings.items())])


Check = Callable[[Subject, Script], None]


def subjects() -> list[Subject]:
    return [Subject(entry.name, given) for entry in joins.catalogue() for given in [{}, *SETTINGS.get(entry.name, [])]]


def prove(check: Check, subject: Subject, examples: int = 100, shrink: bool = True) -> None:
    """Run the check on scripts until one fails; the failing script is shown whole."""
    factor = int(os.environ.get("HEADRACE_EXAMPLES", "1"))  # raised by the slow run, which also leaves the fixed seed
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])]

    @hypothesis.settings(
        max_examples=examples * factor,
        derandomize=factor == 1,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(subject.scripts())
    def on_scripts(script: Script) -> None:
        check(subject, script)

    on_scripts()
