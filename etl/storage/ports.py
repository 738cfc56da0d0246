"""What operators see of storage: runs that they write and read back, and relations that they probe.

A *run* is a sequence of sealed blocks, each one RecordBatch. It is written once, becomes visible as a
whole when it is sealed, is read block by block in any order, and is deleted when nothing names it any
more. A *relation version* is a frozen state of a lookup table: rows in relation segments, probed many
segments at a time through a `BlockTable`.

Each port has an implementation on files and a fake in memory; one suite of tests holds both to the same
behaviour. Runs and relations belong to one thread at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import BadInput
from etl.kernels.columns import ColumnView, view
from etl.kernels.hashing import hash_columns

if TYPE_CHECKING:
    from etl.storage.block_table import BlockTable
    from etl.storage.partitioning import Partitioning
    from etl.storage.relation_filters import FilterSet


@dataclass(frozen=True, slots=True)
class RunName:
    """All it takes to open a sealed run again, in this process or after a restart."""

    name: str
    blocks: int
    rows: int
    bytes: int
    checksum: str

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> "RunName":
        """The inverse of `to_json`; BadInput names the entry that is missing or of the wrong type."""
        values: list[object] = []
        for entry in fields(cls):
            value = document.get(entry.name)
            if type(value) is not entry.type:
                raise BadInput(
                    f"run {document.get('name')!r}: entry {entry.name!r} of its JSON is {value!r}, "
                    "which no sealed run has; take the document from RunName.to_json"
                )
            values.append(value)
        return cls(*values)  # type: ignore[arg-type]  # each was compared with the type of its field


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What a store did so far.

    A read is sequential when it follows the previous block of the same run and nothing else was read in
    between; every other read is random. Bytes are those of the blocks as Arrow IPC messages.
    """

    blocks_read: int = 0
    blocks_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    random_reads: int = 0
    sequential_reads: int = 0
    runs_written: int = 0
    runs_deleted: int = 0

    def since(self, earlier: "StoreCounters") -> "StoreCounters":
        """What happened between `earlier` and now."""
        return StoreCounters(*(getattr(self, entry.name) - getattr(earlier, entry.name) for entry in fields(self)))


class RunWriter(Protocol):
    """A run being written; nobody sees it before `seal`."""

    def append(self, batch: pa.RecordBatch) -> None:
        """Write one block."""

    def seal(self) -> RunName:
        """Close the run for good and publish it."""

    def abandon(self) -> None:
        """Drop a run that was not sealed; harmless otherwise."""


class RunReader(Protocol):
    """A sealed run, read by block. It stays readable when the run is deleted meanwhile."""

    def __len__(self) -> int:
        """The number of blocks."""

    def block(self, number: int) -> pa.RecordBatch:
        """Read one block; every call counts as a read."""

    def rows_in_block(self, number: int) -> int:
        """The size of a block without reading it."""

    def mapped(self, number: int) -> pa.RecordBatch:
        """One block, not counted: for whoever touches only parts of it and counts those itself."""

    def close(self) -> None:
        """Let go of the file; blocks that were read stay valid."""


class RunStore(Protocol):
    """Where operators spill."""

    @property
    def counters(self) -> StoreCounters: ...

    def writer(self, label: str, schema: pa.Schema) -> RunWriter:
        """Start a run; the label is for people and becomes part of its name.

        The name is unique for the life of the store, over restarts and between processes.
        """

    def open(self, run: RunName, *, check_content: bool = True) -> RunReader:
        """Open a sealed run; keep the reader when the run is read again.

        Its content is compared with the checksum, which reads it once. A run of which only a few pages are
        wanted may be opened without that: its presence, size and format are always checked.
        """

    def delete(self, run: RunName | str) -> None:
        """Remove a run; harmless when it is gone already."""

    def runs(self) -> list[str]:
        """The names of all sealed runs."""


Segments: TypeAlias = npt.NDArray[np.int32]

CREATED_BY_COLUMN = "_created_by"
"""The column of a relation's rows that says which load inserted them."""


class Keys(NamedTuple):
    """The keys of some rows: their columns in the order of the relation's key, and the hash of each key.

    `valid` is None when no key holds a null.
    """

    views: tuple[ColumnView, ...]
    hashes: npt.NDArray[np.uint64]
    valid: npt.NDArray[np.bool_] | None


def keys_of(columns: Sequence[pa.Array]) -> Keys:
    """Hash the keys that lie in these columns."""
    views = tuple(view(column) for column in columns)
    return Keys(views, *hash_columns(views))


class RelationView(Protocol):
    """One version of a relation, frozen: what a join needs of it."""

    @property
    def name(self) -> str: ...

    @property
    def opening(self) -> object:
        """The same object for all versions that were made from one opening of the relation."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def version(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def highest(self) -> int:
        """The highest surrogate key given so far."""

    @property
    def partition(self) -> str:
        """How keys go to relation segments: "hash" or "range"."""

    @property
    def partitioning(self) -> "Partitioning":
        """The map from keys to segments."""

    @property
    def theta(self) -> int:
        """A relation segment holds theta to 2 * theta rows after a bulk load and after compaction."""

    @property
    def segments(self) -> int:
        """The number of relation segments in this version; another version may have another."""

    @property
    def segment_rows(self) -> npt.NDArray[np.int64]: ...

    @property
    def segment_blocks(self) -> npt.NDArray[np.int64]: ...

    @property
    def segment_bytes(self) -> npt.NDArray[np.int64]:
        """What a copy of each relation segment takes in memory."""

    @property
    def counters(self) -> StoreCounters: ...

    def same_segments(self, other: "RelationView") -> bool:
        """Whether keys go to the same segments in the two versions; their number alone does not tell."""

    def segment_of(self, keys: Keys) -> Segments:
        """The relation segment that holds each key, if any segment does; -1 for a key with a null in it."""

    def block_table(self) -> "BlockTable":
        """All blocks of this version, ready to be probed; made once and kept."""

    def filters(
        self, limit_bytes: int, previous: "FilterSet | None" = None, order: Sequence[int] | None = None
    ) -> "FilterSet":
        """Filters that tell most keys that are not here, in at most so many bytes of memory.

        Those of the `previous` version are used again; the segments in `order` come first.
        """

    def hashes_added_since(self, version: int) -> npt.NDArray[np.uint64] | None:
        """Hashes of all keys inserted after `version`, perhaps of some more; None when that is not cheap to tell."""

    def count_reads(self, segments: Sequence[int] | npt.NDArray[np.integer]) -> int:
        """Count all blocks of these segments as read, each segment at random; returns how many blocks."""

    def read_segment(self, segment: int) -> list[pa.RecordBatch]:
        """All rows of a relation segment: blocks sorted by their first column `_hash`, last `_created_by`."""

    def brought(self, load_id: str) -> pa.Table:
        """The rows that a load inserted, up to this version."""

    def find(self, load_id: str) -> int | None:
        """The version that a load made, also when it is newer than this one; None when it made none."""


class RelationStore(RelationView, Protocol):
    """A relation that can also move to other versions and make new ones."""

    def at(self, version: int | None = None) -> "RelationStore":
        """Another version of the same relation, the newest by default."""

    def append(self, rows: pa.RecordBatch | pa.Table, load_id: str, highest: int) -> "RelationStore":
        """Commit the next version with these rows.

        A load that has made a version already gets that version, and nothing changes. CommitRace when another
        load made the next version first: resolve against the newest version and try again.
        """
