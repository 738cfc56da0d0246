"""What keeps a relation that grows for ever small on disk and quick to probe: when to compact it, what to let go of.

Idea: an append leaves a delta run and a version behind. Deltas are merged into the segments when they are many, or so
many rows that merging them is worth reading the rest; then versions that nobody needs any more go, with their files.

Limits: a compaction here holds up whoever asks for it. It rewrites every segment that a delta touches, which is all of
them when keys are hashed: a relation with more than `most_rows_inline` rows is left to a process of its own, beside
which appends and probes go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from etl.storage.relation import Relation, RelationDescription

__all__ = ["Upkeep", "keep_up"]


@dataclass(frozen=True)
class Upkeep:
    """How much may pile up."""

    versions_kept: int = 32
    most_delta_files: int = 32
    most_delta_share: float = 0.25
    """Of all rows; fewer delta rows than make a segment are never worth it."""
    most_rows_inline: int = 1 << 22

    def is_due(self, now: RelationDescription) -> bool:
        """Whether the relation is to be compacted."""
        worth_it = now.delta_rows > max(now.theta, self.most_delta_share * now.rows)
        return (worth_it or now.delta_files > self.most_delta_files) and now.rows <= self.most_rows_inline


def keep_up(relation: Relation, upkeep: Upkeep) -> Relation:
    """Compact the relation if that is due, and drop old versions; gives the newest version."""
    newest = relation.at()
    if upkeep.is_due(newest.describe()):
        newest = newest.compact()
    newest.drop_versions(upkeep.versions_kept)
    return newest
