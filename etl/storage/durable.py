"""A folder whose files are immutable, checksummed, and appear whole or not at all.

Idea: a file is written under a temporary name, fsynced, and then published by a hard link to its final
name. A link fails when the name is taken, so publishing is an exclusive create: of two racing writers
exactly one wins, and nobody ever sees half a file. The checksum (xxh3, 128 bits) is computed while
writing.

State: the published files, and temporary files in a sub-folder. A writer holds a lock on its temporary
file, and the kernel frees that lock when the process dies; that is how a sweep tells leftovers from files
that are being written.

Invariants: a published name never changes its content; after `publish` returns, content and name survive
a power cut.

Limits: needs hard links and `flock`, as local POSIX file systems have them. An object store needs a
sibling of this module with a conditional put.
"""

import fcntl
import mmap
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import xxhash

from etl.errors import AlreadyPublished, BadInput, CorruptFile, MissingFile, StorageError

BytesLike: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

_TEMPORARY_FOLDER = ".temporary"
_WRITE_BUFFER_BYTES = 1 << 18
# No part may begin with a dot: that rules out "..", hidden files and the temporary folder at once.
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*")


class FileStamp(NamedTuple):
    """A published file and what identifies its content."""

    name: str
    size: int
    checksum: str


class DurableFolder:
    """Creates the folder, and refuses one that cannot be written before anything depends on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._temporary = root / _TEMPORARY_FOLDER
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            # Mode bits say nothing to root or on a read-only mount: only a real file proves we may write.
            probe = self._temporary / f"probe-{uuid.uuid4().hex}"
            probe.touch(exist_ok=False)
            probe.unlink(missing_ok=True)  # a sweep may be faster
        except OSError as error:
            raise StorageError(
                f"cannot write to folder {root}: {error.strerror}; "
                "name a folder on a writable disk, or make this one writable"
            ) from error

    def put(self, name: str, parts: Iterable[BytesLike]) -> FileStamp:
        """Publish `parts`, one after the other, as `name`; AlreadyPublished when the name is taken."""
        pending = self.begin(name)
        try:
            for part in parts:
                pending.write(part)
            return pending.publish()
        finally:
            pending.abandon()

    def begin(self, name: str) -> "PendingFile":
        """Start a file that stays invisible until its `publish`."""
        return PendingFile(self.path(name), name, self._temporary)

    def read(self, stamp: FileStamp) -> pa.Buffer:
        """The file, memory-mapped, after its size and checksum were compared with the stamp."""
        content = self._sized(stamp, self.read_unchecked(stamp.name))
        checksum = xxhash.xxh3_128(content).hexdigest()
        if checksum != stamp.checksum:
            raise CorruptFile(
                f"file {self.path(stamp.name)} was changed after it was written: its checksum is {checksum}, "
                f"expected {stamp.checksum}; restore it from a copy or rebuild it"
            )
        return content

    def map_sized(self, stamp: FileStamp) -> pa.Buffer:
        """The file, memory-mapped for access here and there, after its size was compared with the stamp.

        Touches no page, and a page that is touched later brings no others along: how far the system reads ahead is
        set for whole files, and can be megabytes.
        """
        mapped = self._mapped(stamp.name)
        if mapped is None:
            return self._sized(stamp, pa.py_buffer(b""))
        mapped.madvise(mmap.MADV_RANDOM)
        return self._sized(stamp, pa.py_buffer(mapped))

    def _sized(self, stamp: FileStamp, content: pa.Buffer) -> pa.Buffer:
        if content.size != stamp.size:
            raise CorruptFile(
                f"file {self.path(stamp.name)} has {content.size} bytes, expected {stamp.size}; "
                "restore it from a copy or rebuild it"
            )
        return content

    def read_unchecked(self, name: str) -> pa.Buffer:
        """The file, memory-mapped, whatever it holds."""
        mapped = self._mapped(name)
        return pa.py_buffer(b"" if mapped is None else mapped)

    def _mapped(self, name: str) -> mmap.mmap | None:
        """None for an empty file, which cannot be mapped. A buffer keeps the mapping alive, also of a deleted file."""
        path = self.path(name)
        with _naming(path), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return None
            # Not Arrow's own map: it asks the system for all pages of what it reads.
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def exists(self, name: str) -> bool:
        return self.path(name).is_file()

    def names(self, prefix: str = "") -> list[str]:
        """Published names that begin with `prefix`, sorted."""
        # Only the sub-folder that the prefix names is walked: listing a log does not list the data.
        sub_folder = prefix.rpartition("/")[0]
        found = []
        for folder, sub_folders, files in os.walk(self.root / sub_folder):
            if _TEMPORARY_FOLDER in sub_folders:
                sub_folders.remove(_TEMPORARY_FOLDER)
            found += [(Path(folder) / file).relative_to(self.root).as_posix() for file in files]
        return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> bool:
        """Remove the file; False when it was gone already, so that a repeated clean-up is harmless.

        Folders that are empty then go as well: with one a load they would pile up.
        """
        path = self.path(name)
        with _naming(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        for folder in path.relative_to(self.root).parents[:-1]:
            try:
                (self.root / folder).rmdir()
            except OSError:
                break  # there is something in it, or somebody else removed it
        return True

    def sweep_temporary(self) -> int:
        """Remove what dead writers left behind, not what is being written; returns how many files went."""
        swept = 0
        for path in sorted(self._temporary.iterdir()):
            with suppress(FileNotFoundError), path.open("rb") as leftover:
                try:
                    fcntl.flock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                path.unlink()
                swept += 1
        return swept

    def path(self, name: str) -> Path:
        """Where the file stands; BadInput when the name could lead out of the folder."""
        if not _LEGAL_NAME.fullmatch(name):
            raise BadInput(
                f"{name!r} is not a legal file name in {self.root}: use letters, digits and _ . = - "
                "in parts divided by /, none of which begins with a dot"
            )
        return self.root / name


class PendingFile:
    """A file being written: `write` as often as needed, then `publish` or `abandon`.

    It has the methods of a writable Python file, so that an Arrow writer can use it as its sink.
    """

    def __init__(self, target: Path, name: str, temporary_folder: Path) -> None:
        self.size = 0
        self._target = target
        self._name = name
        self._checksum = xxhash.xxh3_128()
        with _naming(target):
            self._temporary, descriptor = _create_locked(temporary_folder)
            self._file = os.fdopen(descriptor, "wb", buffering=_WRITE_BUFFER_BYTES)

    def write(self, part: BytesLike) -> int:
        view = memoryview(part)
        with _naming(self._target):
            self._file.write(view)
        self._checksum.update(view)
        self.size += view.nbytes
        return view.nbytes

    def publish(self) -> FileStamp:
        """Make the file durable and visible; AlreadyPublished when another writer took the name first."""
        with _naming(self._target):
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                _link(self._temporary, self._target)
            except FileExistsError:
                raise AlreadyPublished(
                    f"file {self._target} exists, and published files never change; choose another name"
                ) from None
            finally:
                self.abandon()
            _sync_folder(self._target.parent)
        return FileStamp(self._name, self.size, self._checksum.hexdigest())

    def abandon(self) -> None:
        """Drop what was not published; harmless after `publish` and when repeated."""
        if not self._file.closed:
            self._temporary.unlink(missing_ok=True)
            # Closing flushes what is still buffered; on a full disk that fails, for bytes nobody wants.
            with suppress(OSError):
                self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def flush(self) -> None:
        """Nothing to do before `publish`: until then nobody can see the content."""

    def close(self) -> None:
        self.abandon()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours, with the path that the caller knows instead of a temporary one."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFile(
            f"file {path} does not exist: deleted or never written; restore it or rebuild what names it"
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot use file {path}: {error.strerror or error}; check free space, permissions and the disk"
        ) from error


def _create_locked(folder: Path) -> tuple[Path, int]:
    """A new temporary file whose lock we hold."""
    while True:
        path = folder / uuid.uuid4().hex
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink == 1:
            return path, descriptor
        os.close(descriptor)  # a sweep took it for a leftover between the create and the lock


def _link(temporary: Path, target: Path) -> None:
    """Give the file its name; the folder is made for it, again if somebody who deletes finds it empty meanwhile."""
    while True:
        try:
            _make_folders(target.parent)
            os.link(temporary, target)
        except FileNotFoundError:
            if not temporary.exists():
                raise
        else:
            return


def _make_folders(folder: Path) -> None:
    """Create the folder and its missing parents, each durable before something is published in it."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
