"""The logical clock that orders what happens inside an operator.

The papers stamp rows with wall-clock time and argue exactness from the stamps; two events can then share an instant.
A counter that advances with every admitted batch, flush and task cannot.
"""

from __future__ import annotations


class LogicalClock:
    def __init__(self, instant: int = 0) -> None:
        self._instant = instant

    @property
    def instant(self) -> int:
        return self._instant

    def advance(self) -> int:
        """The next instant, never given out before."""
        self._instant += 1
        return self._instant
