"""Where partition groups are worked on, and how that follows their loads.

A distribution epoch is a load. Each group's work in it is counted as the rows that it took and the rows that it gave;
that depends on the data alone, not on how busy a machine was. At the end of a reorganisation epoch the rules of
`etl.joins.parallel.rebalancing` move one group from each overloaded slot to one with little to do, and let the number
of slots grow or shrink. Results never depend on the placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import GroupLoad, Rebalancing, Reorganisation, reorganise
from etl.settings import Json


class Balance(NamedTuple):
    """The placement of the next load, the number of loads so far, and the groups' work in this reorganisation epoch."""

    placement: Placement
    epoch: int = 0
    work: Mapping[int, int] = {}

    def after(
        self, work: Mapping[int, int], slot_rows: int, settings: Rebalancing | None
    ) -> tuple[Balance, Reorganisation | None]:
        """One load later; with the reorganisation, if its epoch ended now."""
        if settings is None:
            return self._replace(epoch=self.epoch + 1), None
        total = {group: self.work.get(group, 0) + work.get(group, 0) for group in {*self.work, *work}}
        if not settings.due(self.epoch):
            return Balance(self.placement, self.epoch + 1, total), None
        capacity = slot_rows * settings.epoch_length
        loads = [GroupLoad(group, rows / capacity) for group, rows in sorted(total.items())]
        reorganisation = reorganise(self.placement, loads, settings, self.epoch)
        return Balance(reorganisation.placement, self.epoch + 1), reorganisation

    def to_json(self) -> dict[str, object]:
        return {
            "placement": self.placement.to_json(),
            "epoch": self.epoch,
            "work": {str(group): rows for group, rows in sorted(self.work.items())},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Balance:
        work = cast(Mapping[str, int], stored["work"])
        return cls(
            Placement.from_json(cast(Mapping[str, Json], stored["placement"])),
            cast(int, stored["epoch"]),
            {int(group): rows for group, rows in work.items()},
        )
