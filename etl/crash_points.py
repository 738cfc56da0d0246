"""Named instants at which a test may kill the process: right before and right after each durable step of a load.

Idea: whether a load survives a crash is a question about real processes that really die. A process that finds the name
of a crash point in its environment kills itself there, without a chance to tidy up; nobody else pays more than the
look at one variable. The names stand here together, so that a test can go through all of them.

    HEADRACE_CRASH_AT=after-publish              die when the package has just been published
    HEADRACE_CRASH_AT=before-relation-commit:3   die when that point is reached for the third time
    HEADRACE_CRASH_AT=after-snapshot:1:/tmp/died die once: only the process that can create the file /tmp/died

The last form is for Spark's Python workers, which are started again with the same environment.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from enum import StrEnum
from pathlib import Path

__all__ = ["IN_WORKERS", "VARIABLE", "CrashPoint", "reached"]

VARIABLE = "HEADRACE_CRASH_AT"


class CrashPoint(StrEnum):
    """In the order in which a load passes them."""

    BEFORE_SNAPSHOT = "before-snapshot"
    """In a Python worker, as the next: a partition group's state is about to be written."""
    AFTER_SNAPSHOT = "after-snapshot"
    BEFORE_SETTLEMENT = "before-settlement"
    AFTER_SETTLEMENT = "after-settlement"
    BEFORE_RELATION_COMMIT = "before-relation-commit"
    """Once for each relation, as the next."""
    AFTER_RELATION_COMMIT = "after-relation-commit"
    BEFORE_TABLE = "before-table"
    """Once for each table of the package, as the next."""
    AFTER_TABLE = "after-table"
    BEFORE_PUBLISH = "before-publish"
    AFTER_PUBLISH = "after-publish"
    BEFORE_WAREHOUSE_COMMIT = "before-warehouse-commit"
    """The transaction is open and holds the whole load."""
    AFTER_WAREHOUSE_COMMIT = "after-warehouse-commit"
    BEFORE_RETIREMENT = "before-retirement"
    BETWEEN_RETIREMENTS = "between-retirements"
    """Old packages are gone, the files that only they named are not."""
    BEFORE_UPKEEP = "before-upkeep"
    """Once for each relation, as the next, in the loads after which relations are looked after."""
    AFTER_UPKEEP = "after-upkeep"
    AFTER_RETIREMENT = "after-retirement"


IN_WORKERS = frozenset({CrashPoint.BEFORE_SNAPSHOT, CrashPoint.AFTER_SNAPSHOT})
"""Those that a Python worker passes; all others belong to the driver."""


def reached(point: CrashPoint) -> None:
    """Say that the point is reached. Returns, unless the environment names it."""
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return
    name, _, rest = chosen.partition(":")
    if CrashPoint(name) is not point:
        return
    number, _, mark = rest.partition(":")
    _times_reached[point] += 1
    if _times_reached[point] == int(number or 1) and (not mark or _is_created(Path(mark))):
        os.kill(os.getpid(), signal.SIGKILL)


_times_reached: Counter[CrashPoint] = Counter()


def _is_created(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
