"""Subjects: what the suites are run on. A new operator in the catalogue is a new subject, with nothing to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import cast

import hypothesis
from hypothesis import strategies as st

from etl import joins
from etl.storage.partitioning import PartitionKind
from tests.scripts import KEY_SHAPES, ORDERED_SHAPES, Script, scripts

_PARTITIONED: list[dict[str, object]] = [
    {"cache_share": 0.5, "frequent_after": 1},
    {"invocation_rows": 5, "deadline": 3, "rho": 0.0},
    {"high_mark": 0.01, "low_mark": 0.005, "filter_share": 0.0},
]
SETTINGS: Mapping[str, list[dict[str, object]]] = {
    "hash-partitioned": _PARTITIONED,
    "range-partitioned": _PARTITIONED,
    "bucketed-window": [{"row_blocks": 2**30}, {"theta_rows": 2, "row_blocks": 2**30}],
    "meshjoin": [
        {"queue_rows": 3, "scan_when_idle": False},
        {"cache_share": 0.4, "frequent_after": 1, "filter_share": 0.2},
    ],
}
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

    @property
    def partition(self) -> PartitionKind:
        """How the relation is to be partitioned."""
        return cast(PartitionKind, getattr(self.entry.operator, "partition", "hash"))

    @property
    def has_windows(self) -> bool:
        """Whether it joins by event time as well: window joins share the names of these settings."""
        return "windows" in {setting.name for setting in fields(self.entry.settings)}

    def scripts(self) -> st.SearchStrategy[Script]:
        shapes = ORDERED_SHAPES if self.partition == "range" else tuple(KEY_SHAPES)
        return scripts(
            sides=self.entry.streams,
            shapes=shapes,
            with_relation=self.entry.with_relation,
            with_windows=self.has_windows,
        )

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.settings.items())])


Check = Callable[[Subject, Script], None]


def subjects() -> list[Subject]:
    return [Subject(entry.name, given) for entry in joins.catalogue() for given in [{}, *SETTINGS.get(entry.name, [])]]


def prove(check: Check, subject: Subject, examples: int | None = None, shrink: bool = True) -> None:
    """Run the check on scripts until one fails; the failing script is shown whole.

    Where no number of examples is given, an operator under its defaults gets the most: settings are variations of it.
    """
    examples = examples or (30 if subject.settings else 100)
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
