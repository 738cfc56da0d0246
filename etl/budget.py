"""Budgets: what an operator may hold in memory, and what it may do before it hands control back.

A work budget counts blocks read and rows compared, not seconds: the same budget gives the same run on any machine.
A unit of work is done whole, so `work` overshoots by at most one block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from etl.errors import BadInput

BLOCK_BYTES = 64 * 1024
"""Default capacity of a block, the unit of memory and of disk transfer."""


@dataclass(frozen=True, slots=True)
class WorkBudget:
    """Limits of one call of `work`; None leaves a limit open. `interrupt` is asked at block boundaries."""

    blocks: int | None = None
    rows: int | None = None
    interrupt: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        for name, limit in (("blocks", self.blocks), ("rows", self.rows)):
            if limit is not None and limit < 0:
                raise BadInput(f"a work budget of {limit} {name}: give zero or more, or None for no limit")


class WorkMeter:
    """Counts what one call of `work` has done against its budget."""

    def __init__(self, budget: WorkBudget) -> None:
        self.blocks = 0
        self.rows = 0
        self._budget = budget

    def charge(self, blocks: int = 0, rows: int = 0) -> None:
        self.blocks += blocks
        self.rows += rows

    @property
    def blocks_left(self) -> float:
        return math.inf if self._budget.blocks is None else self._budget.blocks - self.blocks

    @property
    def rows_left(self) -> float:
        return math.inf if self._budget.rows is None else self._budget.rows - self.rows

    @property
    def spent(self) -> bool:
        budget = self._budget
        return (
            (budget.blocks is not None and self.blocks >= budget.blocks)
            or (budget.rows is not None and self.rows >= budget.rows)
            or (budget.interrupt is not None and budget.interrupt())
        )


class MemoryMeter:
    """What an operator holds now and held at its peak, against the budget it promised to keep."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0

    def set(self, used: int) -> None:
        self.used = used
        if used > self.peak:
            self.peak = used

    def peak_at(self, moment: int) -> None:
        """A moment of higher use that has passed already, such as a table while it grew."""
        if moment > self.peak:
            self.peak = moment


def check_memory(memory_bytes: int, block_bytes: int) -> None:
    if block_bytes < 1:
        raise BadInput(f"block_bytes is {block_bytes}: a block holds at least one byte")
    if memory_bytes < block_bytes:
        raise BadInput(
            f"memory_bytes is {memory_bytes}, below one block of {block_bytes} bytes: "
            "give more memory or a smaller block_bytes"
        )
