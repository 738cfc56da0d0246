"""Which relation segments stay in memory: those with the most arrivals for their size, in the recent past.

The arrival frequency of a segment counts its arriving rows and fades by a factor after every epoch (thesis 6.3.3). A
segment that was just read takes the place of one in memory if its frequency per byte is larger by a fraction rho (eq.
6.1) and it fits once the other has gone (eq. 6.2); among those that could go, the one with the least frequency per byte
goes. Where the thesis is silent: an empty place is taken by any segment that fits and has had arrivals; equals stay,
and the lower number goes first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float64]
Sizes = NDArray[np.int64]
Numbers = NDArray[np.intp]


class ArrivalFrequency:
    """Decayed counts of arriving rows by segment."""

    def __init__(self, segments: int, decay: float, epoch_rows: int) -> None:
        self.counts: Frequencies = np.zeros(segments, np.float64)
        self._decay = decay
        self._epoch_rows = epoch_rows
        self._rows_in_epoch = 0

    def arrive(self, segment: NDArray[np.int32]) -> None:
        self.counts += np.bincount(segment, minlength=len(self.counts))
        self._rows_in_epoch += len(segment)
        epochs, self._rows_in_epoch = divmod(self._rows_in_epoch, self._epoch_rows)
        if epochs:
            self.counts *= self._decay**epochs


class JoinMemory:
    """The choice of segments; whoever reads them keeps their bytes."""

    def __init__(self, capacity: int, rho: float) -> None:
        self.held: dict[int, int] = {}
        self.used = 0
        self._capacity = capacity
        self._rho = rho

    def consider(self, candidates: Numbers, frequency: Frequencies, size: Sizes) -> bool:
        """Let segments that were just read compete for their place; whether anything changed."""
        before = set(self.held)
        for segment in self._worth_a_look(candidates, frequency, size):
            self._admit(int(segment), frequency, size)
        return set(self.held) != before

    def fit(self, capacity: int, frequency: Frequencies, size: Sizes) -> None:
        """Segments may have grown, or the room shrunk: the least in demand for their size leave until the rest fits."""
        self._capacity = capacity
        self.held = {segment: int(size[segment]) for segment in self.held}
        self.used = sum(self.held.values())
        for segment in sorted(self.held, key=lambda held: (frequency[held] / size[held], held)):
            if self.used <= capacity:
                break
            self.drop(segment)

    def drop(self, segment: int) -> None:
        self.used -= self.held.pop(segment)

    def _worth_a_look(self, candidates: Numbers, frequency: Frequencies, size: Sizes) -> Numbers:
        """Most candidates cannot win: leave them out before looking one by one, the best first."""
        density = frequency[candidates] / size[candidates]
        bar = 0.0
        if self.held and self._capacity - self.used < int(size[candidates].min()):
            held = np.fromiter(self.held, np.int64, len(self.held))
            bar = (1 + self._rho) * float((frequency[held] / size[held]).min())
        hopeful = (density >= bar) & (density > 0) & (size[candidates] <= self._capacity)
        chosen: Numbers = candidates[hopeful]
        best_first: Numbers = chosen[np.argsort(-density[hopeful], kind="stable")]
        return best_first

    def _admit(self, segment: int, frequency: Frequencies, size: Sizes) -> None:
        if segment in self.held:
            return
        needed = int(size[segment])
        free = self._capacity - self.used
        if needed > free:
            leaver = self._leaver(segment, frequency, size, free)
            if leaver is None:
                return
            self.drop(leaver)
        self.held[segment] = needed
        self.used += needed

    def _leaver(self, segment: int, frequency: Frequencies, size: Sizes, free: int) -> int | None:
        held = np.sort(np.fromiter(self.held, np.int64, len(self.held)))
        density = frequency[held] / size[held]
        asked_for = frequency[segment] / size[segment]
        # The second condition matters when rho is zero: equals that replaced each other would be read for ever.
        in_more_demand = (asked_for >= (1 + self._rho) * density) & (asked_for > density)
        may_go = in_more_demand & (free + size[held] >= size[segment])
        return int(held[may_go][density[may_go].argmin()]) if may_go.any() else None
