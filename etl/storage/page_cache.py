"""What the operating system holds of a mapped file, and asking it to read ahead.

Touching a mapped page that is not in the page cache waits for one small read. A segment that many rows wait for is
cheaper read as a whole, in large reads that overlap; but asking for pages that are there already costs time too. So one
page of a stretch is looked at first: a stretch is read and dropped by the system as a whole, or nearly.

Limits: Linux. Elsewhere nothing is known to be missing, and nothing is asked for.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable

__all__ = ["is_resident", "read_ahead"]

_WILL_NEED = 3
_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def is_resident(address: int) -> bool:
    """Whether the page at this address is in memory; True when the system does not tell."""
    if _LIBC is None or address == 0:
        return True
    answer = ctypes.c_ubyte(1)
    failed = _LIBC.mincore(ctypes.c_void_p(address - address % _PAGE), ctypes.c_size_t(1), ctypes.byref(answer))
    return bool(failed) or bool(answer.value & 1)


def read_ahead(stretches: Iterable[tuple[int, int]]) -> None:
    """Ask for the pages of these stretches (address, bytes); the reads go on while we do."""
    if _LIBC is None:
        return
    for address, size in stretches:
        start = address - address % _PAGE
        if size > 0:
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + size - start), _WILL_NEED)
