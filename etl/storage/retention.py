"""Letting go of old versions, and of files that no retained version names.

Idea: entries go first, oldest first; a version whose entry is gone cannot be opened any more. Then every run goes
that no retained entry names, whether a dropped version named it or a crash left it behind. A run whose writer is
still at work stays: a version is about to name it.

Invariants: the oldest retained version is a checkpoint, since the later ones are told by differences to it. A crash
at any point leaves whole versions, and runs that the next call removes. A reader that has mapped its files keeps them.
"""

from dataclasses import dataclass

from etl.errors import BadInput
from etl.storage.relation_version import RelationParts
from etl.storage.writers import token_of


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a call removed."""

    versions: int
    runs: int


def drop_versions(parts: RelationParts, name: str, keep: int) -> Dropped:
    """Keep the newest `keep` versions, and those before them up to the next checkpoint."""
    if keep < 1:
        raise BadInput(f"relation {name}: keep is {keep}; at least one version stays")
    # The order matters: a run that is listed, and whose writer is not at work any more when asked next, is named by
    # an entry that is read last, or it never will be.
    listed = parts.runs.runs()
    at_work = parts.writers.active()
    # Another process may be dropping versions too: what it takes from under us is dropped, and needs no runs.
    entries = [entry for version in parts.log.openable() if (entry := parts.log.entry_if_there(version)) is not None]
    if not entries:
        return Dropped(0, 0)
    oldest = entries[max(0, len(entries) - keep)].checkpoint
    dropped = [version for version in parts.log.versions() if version < oldest]
    retained = [entry for entry in entries if entry.version >= oldest]
    for version in dropped:
        parts.log.delete(version)
    named = {run.name for entry in retained for run in entry.runs}
    orphans = [run for run in listed if run not in named and token_of(run) not in at_work]
    for run in orphans:
        parts.runs.delete(run)
    return Dropped(len(dropped), len(orphans))
