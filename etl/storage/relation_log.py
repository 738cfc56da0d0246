"""The version log of a relation: one small JSON file a version, each made by an exclusive create.

Idea: a version is committed the moment its file exists, and the number is the lock: of two writers that both try to
make version 8, one succeeds. An entry says what its version changed; every so often one holds the full
state too (a checkpoint), so that reading a version takes a bounded number of small files, however many
versions there were.

State: `00000001.json`, `00000002.json`, ... without gaps, from the oldest retained version on; the first of
them is a checkpoint. Each is an envelope (format, checksum) around the content.

Invariants: a committed version never changes; the runs that it names were durable before it was. Old entries
are deleted in ascending order, so an entry that exists has all newer ones beside it.
"""

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from etl.errors import CorruptFile, MissingFile
from etl.storage.relation_entry import Entry, decode, encode
from etl.storage.relation_state import VersionState, applied, difference_of


class LogFiles(Protocol):
    """Where the entries lie: a durable folder, or its fake in memory."""

    def put(self, name: str, parts: Iterable[bytes]) -> object:
        """AlreadyPublished when the name is taken."""

    def read_unchecked(self, name: str) -> pa.Buffer:
        """MissingFile when there is no such name."""

    def exists(self, name: str) -> bool: ...

    def names(self) -> list[str]: ...

    def delete(self, name: str) -> bool: ...


class VersionLog:
    """Reads and commits versions. `place` is how messages name the folder."""

    def __init__(self, files: LogFiles, place: str) -> None:
        self._files = files
        self._place = place

    def versions(self) -> list[int]:
        """The numbers of all versions in the log, ascending."""
        numbers = [name.removesuffix(".json") for name in self._files.names() if name.endswith(".json")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def openable(self) -> list[int]:
        """Those that can be read: a drop that was cut short leaves some without the checkpoint that they need."""
        versions = self.versions()
        while versions:
            oldest = self.entry_if_there(versions[0])
            if oldest is not None and oldest.checkpoint == oldest.version:
                break
            versions = versions[1:]
        return versions

    def newest(self, known: int = 0) -> int:
        """The number of the newest version; 0 when there is none. From a `known` one it is found without a listing."""
        if known:
            newest = self._newest_from(known)
            # Entries go in ascending order: if the known one is still there, none that was looked at is gone.
            if self._files.exists(entry_name(known)):
                return newest
        return max(self.versions(), default=0)

    def commit(self, state: VersionState, before: VersionState | None) -> None:
        """Make the version exist; AlreadyPublished when its number is taken."""
        if before is None or state.is_checkpoint:
            entry = Entry(state.version, state.checkpoint, state, None)
        else:
            entry = Entry(state.version, state.checkpoint, None, difference_of(state, before))
        self._files.put(entry_name(state.version), [encode(entry)])

    def read(self, version: int, known: VersionState | None = None) -> VersionState:
        """The full state of a version; a `known` one just before it saves reading from the checkpoint on."""
        entry = self.entry(version)
        if entry.state is not None:
            return entry.state
        if known is None or not entry.checkpoint <= known.version <= version:
            known = self.read(entry.checkpoint)
        state = known
        for number in range(known.version + 1, version):
            state = self._applied(state, self.entry(number))
        return state if state.version == version else self._applied(state, entry)

    def entry(self, version: int) -> Entry:
        """One entry as it was written."""
        if version < 1:
            raise MissingFile(f"{self._place} holds no version {version}; versions are numbered from 1")
        name = entry_name(version)
        if not self._files.exists(name):
            raise MissingFile(self._why_missing(version))
        entry = decode(self._files.read_unchecked(name).to_pybytes(), f"{self._place}/{name}")
        if entry.version != version:
            raise CorruptFile(
                f"file {self._place}/{name} describes version {entry.version}: "
                "it was renamed or copied; restore the log"
            )
        return entry

    def entry_if_there(self, version: int) -> Entry | None:
        """One entry; None when another process has dropped it since it was listed."""
        try:
            return self.entry(version)
        except MissingFile:
            if self._files.exists(entry_name(version)):
                raise
            return None

    def loads(self, first: int, last: int) -> list[str | None]:
        """The load that made each of these versions; None for one that no load made."""
        made = [self.entry(version).made for version in range(first, last + 1)]
        return [by.load_id if by.work == "append" else None for by in made]

    def delete(self, version: int) -> None:
        """Drop a version; oldest first, see the invariants."""
        self._files.delete(entry_name(version))

    def _applied(self, before: VersionState, entry: Entry) -> VersionState:
        if entry.difference is None or entry.version != before.version + 1:
            raise CorruptFile(
                f"file {self._place}/{entry_name(entry.version)} does not follow version {before.version}: "
                "it belongs to another relation; restore the log"
            )
        return applied(before, entry.difference)

    def _newest_from(self, known: int) -> int:
        step = 1
        while self._files.exists(entry_name(known + step)):
            known += step
            step += step
        while step > 1:
            step //= 2
            if self._files.exists(entry_name(known + step)):
                known += step
        return known

    def _why_missing(self, version: int) -> str:
        path = f"{self._place}/{entry_name(version)}"
        versions = self.versions()
        if not versions or version > versions[-1]:
            return f"file {path} does not exist: there is no version {version} yet"
        return (
            f"file {path} does not exist: version {version} was dropped or lost; "
            f"the log holds versions {versions[0]} to {versions[-1]}"
        )


def entry_name(version: int) -> str:
    return f"{version:08d}.json"
