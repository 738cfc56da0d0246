"""Rebalancing: at the end of a reorganisation epoch, which groups move and how many slots work.

Idea: a slot above the supply threshold is a supplier, one below the consume threshold a consumer, the rest are
neutral. Each supplier yields one group to a consumer; the number of slots grows when suppliers outnumber a share
beta of the consumers and shrinks when there is no supplier (thesis 7.4.3, 7.5.1).
State: none. The same placement, loads, settings and epoch give the same answer in every process.
Where we say more than the thesis, and why:
- `yielded_groups` may be more than one: with many groups on a slot, one an epoch takes long to relieve it.
- Slots that are added are consumers at once: they would stand idle for an epoch otherwise.
- The yielded group is the one that brings the two slots closest to each other (`choose="fitting"`), and no group moves
  if the consumer would end up as loaded as the supplier was. The thesis takes any (`choose="random"`), which may be
  one that relieves nothing or one that only carries the overload elsewhere.
- The highest-numbered slots leave, and their groups go to the least loaded slots that stay, heaviest first. None
  leave if the others would pass the supply threshold on average: the slots would come straight back.
Limits: a single group heavier than a slot cannot be split here; the directory inside it makes it cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from etl.errors import BadInput
from etl.joins.parallel.partition_groups import Placement


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What one group asked of its slot in the epoch.

    `work` is a share of what a slot can do (or hold) in an epoch: the works of a slot's groups add up to its
    occupancy, and a slot at 1 is full. Any measure will do (waiting bytes over the buffer's size as in the thesis, rows
    over the rows that a slot can take), as long as all groups have the same.
    """

    group: int
    work: float


@dataclass(frozen=True, slots=True)
class Rebalancing:
    """When slots count as suppliers and consumers, and how the number of slots follows (names of thesis 7.4, 7.5)."""

    supply_threshold: float = 0.5  # Th_sup
    consume_threshold: float = 0.01  # Th_con
    growth_share: float = 0.5  # beta
    growth_step: int = 1  # delta
    fewest_slots: int = 1
    most_slots: int = 1_000_000
    fewest_suppliers: int = 1  # S_low: with fewer, the system is loaded too little to need all its slots
    epoch_length: int = 10  # distribution epochs in a reorganisation epoch
    choose: Literal["fitting", "random"] = "fitting"
    yielded_groups: int = 1  # what a supplier yields in an epoch at most

    def __post_init__(self) -> None:
        if not 0 <= self.consume_threshold < self.supply_threshold:
            raise BadInput(
                f"consume_threshold {self.consume_threshold} and supply_threshold {self.supply_threshold}: "
                "the first is at least 0 and below the second"
            )
        if not 0 < self.growth_share < 1:
            raise BadInput(f"growth_share is {self.growth_share}: it lies between 0 and 1")
        if not 1 <= self.fewest_slots <= self.most_slots:
            raise BadInput(f"fewest_slots {self.fewest_slots}, most_slots {self.most_slots}: give 1 <= fewest <= most")
        for name in ("growth_step", "fewest_suppliers", "epoch_length", "yielded_groups"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: it is at least 1")
        if self.choose not in ("fitting", "random"):
            raise BadInput(f"choose is {self.choose!r}: it can be 'fitting' or 'random'")

    def due(self, epoch: int) -> bool:
        """Whether the distribution epoch with this number, from 0, is the last of a reorganisation epoch."""
        return (epoch + 1) % self.epoch_length == 0


@dataclass(frozen=True, slots=True)
class Move:
    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Reorganisation:
    """The placement from now on, and how it came about. Slots are classified as they were in the old placement."""

    placement: Placement
    suppliers: tuple[int, ...]
    consumers: tuple[int, ...]
    neutrals: tuple[int, ...]
    moves: tuple[Move, ...]
    reason: str


def occupancies(placement: Placement, loads: Sequence[GroupLoad]) -> tuple[float, ...]:
    """Each slot's occupancy; a group without a load counts as idle."""
    return tuple(_Slots(placement, loads).occupancy)


def reorganise(
    placement: Placement, loads: Sequence[GroupLoad], settings: Rebalancing, epoch: int = 0
) -> Reorganisation:
    """The placement after this epoch. `epoch` seeds the choice of groups when it is random."""
    slots = _Slots(placement, loads)
    count = placement.slots
    suppliers = [slot for slot in range(count) if slots.occupancy[slot] > settings.supply_threshold]
    consumers = [slot for slot in range(count) if slots.occupancy[slot] < settings.consume_threshold]
    neutrals = [slot for slot in range(count) if slot not in suppliers and slot not in consumers]
    wanted, reason = _wanted_slots(placement, slots, settings, len(suppliers), len(consumers))
    slots.resize(wanted)
    if wanted >= count:
        slots.pair(suppliers, [*consumers, *range(count, wanted)], settings, epoch)
    return Reorganisation(
        placement=Placement(placement.groups, wanted, tuple(slots.slot_of)),
        suppliers=tuple(suppliers),
        consumers=tuple(consumers),
        neutrals=tuple(neutrals),
        moves=tuple(slots.moves),
        reason=reason,
    )


def _wanted_slots(
    placement: Placement, slots: _Slots, settings: Rebalancing, suppliers: int, consumers: int
) -> tuple[int, str]:
    """The number of slots from now on, and why."""
    count = placement.slots
    most = min(settings.most_slots, placement.groups)
    fewest = min(settings.fewest_slots, most)
    if not fewest <= count <= most:
        wanted = min(max(count, fewest), most)
        return wanted, f"{count} slot(s) are outside of {fewest} to {most}: now {wanted}"
    seen = f"{suppliers} supplier(s) and {consumers} consumer(s) on {count} slot(s)"
    if suppliers > settings.growth_share * consumers:
        wanted = min(count + settings.growth_step, most)
        if wanted == count:
            return count, f"{seen}: no more than {most} slot(s) can be used"
        return wanted, f"{seen}, more than {settings.growth_share:g} suppliers per consumer: grow to {wanted}"
    if suppliers < settings.fewest_suppliers:
        wanted = max(count - settings.growth_step, fewest)
        if wanted == count:
            return count, f"{seen}: no fewer than {fewest} slot(s) are wanted"
        if sum(slots.occupancy) / wanted > settings.supply_threshold:
            return count, f"{seen}: too few suppliers, but {wanted} slot(s) would all be suppliers"
        return wanted, f"{seen}, fewer than {settings.fewest_suppliers} supplier(s): shrink to {wanted}"
    return count, f"{seen}: the number of slots fits"


@dataclass(slots=True)
class _Slots:
    """The slots while groups are moved between them."""

    placement: Placement
    loads: Sequence[GroupLoad]
    slot_of: list[int] = field(init=False)
    work: list[float] = field(init=False)
    occupancy: list[float] = field(init=False)
    groups_on: list[list[int]] = field(init=False)
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slot_of = list(self.placement.slot_of)
        self.work = [0.0] * self.placement.groups
        for load in self.loads:
            if not 0 <= load.group < self.placement.groups:
                raise BadInput(f"a load names group {load.group}: groups are 0 to {self.placement.groups - 1}")
            self.work[load.group] += load.work
        self.occupancy = [0.0] * self.placement.slots
        self.groups_on = [[] for _ in range(self.placement.slots)]
        for group, slot in enumerate(self.slot_of):
            self.occupancy[slot] += self.work[group]
            self.groups_on[slot].append(group)

    def resize(self, wanted: int) -> None:
        """Empty slots at the end are added, or the last slots emptied and taken away."""
        leaving = [group for slot in range(wanted, len(self.occupancy)) for group in self.groups_on[slot]]
        for group in sorted(leaving, key=lambda group: (-self.work[group], group)):
            target = min(range(wanted), key=lambda slot: (self.occupancy[slot], len(self.groups_on[slot]), slot))
            self.move(group, target)
        for _ in range(wanted - len(self.occupancy)):
            self.occupancy.append(0.0)
            self.groups_on.append([])
        del self.occupancy[wanted:], self.groups_on[wanted:]

    def pair(self, suppliers: list[int], consumers: list[int], settings: Rebalancing, epoch: int) -> None:
        """The most loaded supplier yields a group to the least loaded consumer, and so on, in rounds."""
        for round_ in range(settings.yielded_groups):
            loaded = [slot for slot in suppliers if self.occupancy[slot] > settings.supply_threshold]
            loaded.sort(key=lambda slot: (-self.occupancy[slot], slot))
            consumers = sorted(consumers, key=lambda slot: (self.occupancy[slot], slot))
            for supplier, consumer in zip(loaded, consumers, strict=False):
                group = self.yielded(supplier, consumer, settings, seed=(epoch, round_))
                if group is not None:
                    self.move(group, consumer)

    def yielded(self, supplier: int, consumer: int, settings: Rebalancing, seed: tuple[int, int]) -> int | None:
        """The group that the supplier gives away, if giving one helps."""
        held = self.groups_on[supplier]
        if settings.choose == "random":
            return held[int(np.random.default_rng([*seed, supplier]).integers(len(held)))] if len(held) > 1 else None
        gap = self.occupancy[supplier] - self.occupancy[consumer]
        helping = [group for group in held if 0 < self.work[group] < gap]
        return min(helping, key=lambda group: (abs(gap - 2 * self.work[group]), group), default=None)

    def move(self, group: int, target: int) -> None:
        source = self.slot_of[group]
        self.moves.append(Move(group, source, target))
        self.slot_of[group] = target
        self.groups_on[source].remove(group)
        self.groups_on[target].append(group)
        self.occupancy[source] -= self.work[group]
        self.occupancy[target] += self.work[group]
