"""Operators that outlive a load: a worker keeps them, each with the state that it stands for.

Restoring an operator costs time in proportion to the rows it holds; going on with one that is there costs nothing.
Which worker gets which group changes from load to load, and a load may be run again from an older state. So an
operator is used only for the state it stands for, or for one that continues it: then it takes the rest of the log. In
every other case the group is restored from its files, with the same results.

Invariants: whoever takes an operator owns it, and a failure leaves it with nobody. What is kept takes at most the
given bytes by the operators' own count; those that were not used for longest go first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from etl import joins
from etl.spark.group_runs import GroupRuns
from etl.spark.group_state import GroupState

LiveKey = tuple[str, int]
"""The folder of the correlation, and the group."""


@dataclass(slots=True)
class LiveOperator:
    """`runs` is None for an operator that never spills."""

    operator: joins.Operator
    runs: GroupRuns | None
    state: GroupState

    def reaches(self, state: GroupState) -> bool:
        """Whether the rest of the state's log is all it takes.

        Runs of its own that the state does not name may be gone: who deletes asks the states, not the operators.
        """
        return state.begins_like(self.state) and set(self.state.runs) <= set(state.runs)

    def close(self) -> None:
        self.operator.close()


class LiveOperators:
    def __init__(self) -> None:
        self._kept: OrderedDict[LiveKey, tuple[LiveOperator, int]] = OrderedDict()
        self._bytes = 0

    def take(self, key: LiveKey, state: GroupState) -> LiveOperator | None:
        """The group's operator if it reaches the state; one that does not is closed."""
        live = self._removed(key)
        if live is not None and not live.reaches(state):
            live.close()
            return None
        return live

    def keep(self, key: LiveKey, live: LiveOperator, limit_bytes: int) -> None:
        replaced = self._removed(key)
        if replaced is not None:
            replaced.close()
        held = live.operator.counters.memory_bytes
        self._kept[key] = live, held
        self._bytes += held
        while self._kept and self._bytes > limit_bytes:
            self._close_oldest()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        while self._kept:
            self._close_oldest()

    def _close_oldest(self) -> None:
        oldest = self._removed(next(iter(self._kept)))
        assert oldest is not None
        oldest.close()

    def _removed(self, key: LiveKey) -> LiveOperator | None:
        live, held = self._kept.pop(key, (None, 0))
        self._bytes -= held
        return live


LIVE_OPERATORS = LiveOperators()
"""Those of this process."""
