"""The runs of one partition group's operator: their names tell which load wrote them, and none is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from etl.storage.ports import RunName
from etl.storage.run_files import ENDING, RunFiles, RunFileWriter


class GroupRuns(RunFiles):
    """A run store that knows which runs its operator stands on: those it was restored with, and its own."""

    def __init__(self, folder: Path, known: Iterable[RunName]) -> None:
        super().__init__(folder)
        self._names = {run.name for run in known}

    def writer(self, label: str, schema: pa.Schema) -> RunFileWriter:
        writer = super().writer(label, schema)
        self._names.add(writer.name)
        return writer

    def delete(self, run: RunName | str) -> None:
        """An operator deletes only runs that no snapshot names; the others stay, and stay known."""
        super().delete(run)
        self._names.discard(run if isinstance(run, str) else run.name)

    def file_names(self) -> tuple[str, ...]:
        return tuple(sorted(name + ENDING for name in self._names))
