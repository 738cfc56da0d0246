"""What a process keeps from one micro-batch to the next: open relations, and the joins that look up in them.

The driver has one of these and so has every Python worker, because Spark reuses its workers. Which worker gets which
rows changes from batch to batch, and a worker may be ended at any time: what is kept here makes a batch quick and never
changes its results.

Limits: the memory of the look-ups is granted to each process and each combination of join and budget; a driver whose
pipelines ask for two combinations keeps two. Relations that were opened longest ago go first.
"""

from __future__ import annotations

import threading
from pathlib import Path

from etl.storage.lookup_store import open_relation
from etl.storage.relation import Relation
from etl.transforms.lookups import MOST_RELATIONS, Lookups

_MOST_OPEN = 2 * MOST_RELATIONS
_Place = tuple[str, int, int]


class ProcessMemory:
    """Open relations by their folder, and look-ups by their settings."""

    def __init__(self) -> None:
        self._relations: dict[_Place, Relation] = {}
        self._lookups: dict[tuple[str, int], Lookups] = {}
        self._lock = threading.Lock()

    def relation(self, folder: Path, version: int | None = None) -> Relation:
        """A version of the relation in this folder, the newest by default; its files stay open."""
        with self._lock:
            place = _place(folder)
            kept = self._relations.pop(place, None)
            relation = open_relation(folder, version) if kept is None else kept.at(version)
            self._keep(place, relation)
            return relation

    def lookups(self, join: str, memory_bytes: int) -> Lookups:
        """The look-ups with these settings; they live as long as the process."""
        with self._lock:
            return self._lookups.setdefault((join, memory_bytes), Lookups(join, memory_bytes))

    def forget(self) -> None:
        """Release everything, for tests and for whoever wants the memory back."""
        with self._lock:
            for lookups in self._lookups.values():
                lookups.close()
            self._lookups.clear()
            self._relations.clear()

    def _keep(self, place: _Place, relation: Relation) -> None:
        self._relations[place] = relation
        while len(self._relations) > _MOST_OPEN:
            self._relations.pop(next(iter(self._relations)))


PROCESS_MEMORY = ProcessMemory()


def _place(folder: Path) -> _Place:
    """The folder itself, not its name only: one that was deleted and made anew is another relation."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return str(folder), 0, 0
    return str(folder.absolute()), status.st_dev, status.st_ino
