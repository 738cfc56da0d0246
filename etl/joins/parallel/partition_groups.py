"""Partition groups: which group a key belongs to, and which slot holds a group.

Idea: there are many more groups than slots. A key's group never changes, so the rows that can meet are always
together; only where a group is worked on changes, one group at a time (thesis 7.4.3).
Invariants: a group depends on the key and the number of groups alone. A placement is a value: moving a group makes
another one. Slots are numbered 0 to slots - 1; a slot may be without groups, a group is never without a slot.
The group comes from the high bits of the key hash; the low bits stay free for the extendible directory inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from etl.errors import BadInput
from etl.kernels.compiling import Int32s
from etl.kernels.hashing import KeyHashes
from etl.kernels.scatter import partition_of
from etl.settings import Json


def group_of(keys: KeyHashes, groups: int) -> Int32s:
    """Each row's group. A key with a null is in group 0: it meets nothing, wherever it is."""
    if groups < 1:
        raise BadInput(f"groups is {groups}: there is at least one partition group")
    return partition_of(keys.hashes, groups)


@dataclass(frozen=True, slots=True)
class Placement:
    """`slot_of[group]` is the slot that works on the group."""

    groups: int
    slots: int
    slot_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.slots < 1 or self.groups < 1:
            raise BadInput(f"{self.groups} groups on {self.slots} slots: give at least one of each")
        if len(self.slot_of) != self.groups:
            raise BadInput(f"the placement names slots for {len(self.slot_of)} groups of {self.groups}")
        for group, slot in enumerate(self.slot_of):
            if not 0 <= slot < self.slots:
                raise BadInput(f"group {group} is on slot {slot}: slots are 0 to {self.slots - 1}")

    @classmethod
    def even(cls, groups: int, slots: int) -> Placement:
        """Groups dealt out in turn, as before anything is known of their loads."""
        return cls(groups, slots, tuple(group % slots for group in range(groups)) if slots > 0 else ())

    def groups_on(self, slot: int) -> tuple[int, ...]:
        return tuple(group for group, holder in enumerate(self.slot_of) if holder == slot)

    def moved(self, group: int, slot: int) -> Placement:
        """The placement with one group elsewhere."""
        if not 0 <= group < self.groups:
            raise BadInput(f"there is no group {group}: groups are 0 to {self.groups - 1}")
        return replace(self, slot_of=(*self.slot_of[:group], slot, *self.slot_of[group + 1 :]))

    def to_json(self) -> dict[str, Json]:
        return {"groups": self.groups, "slots": self.slots, "slot_of": list(self.slot_of)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Json]) -> Placement:
        return cls(
            groups=cast(int, stored["groups"]),
            slots=cast(int, stored["slots"]),
            slot_of=tuple(cast(list[int], stored["slot_of"])),
        )
