"""Every exception that Headrace raises on purpose.

Two families: a `TransientError` may go away when the caller tries again, a `TerminalError` will not.
Whoever drives a run decides by the family alone; the message is for people and names the culprit and the
remedy.
"""


class HeadraceError(Exception):
    """The root: catch this to catch all of ours and nothing else."""


class TransientError(HeadraceError):
    """Trying again may help."""


class TerminalError(HeadraceError):
    """Trying the same thing again gives the same error."""


class BadInput(TerminalError):
    """An argument is wrong: unknown join, unsuitable key columns, a memory budget that is too small."""


class IllegalEvent(TerminalError):
    """The event is not allowed in the phase that the operator is in."""


class MemoryBudgetExceeded(TerminalError):
    """The work cannot be done within the memory that was granted."""


class StorageError(TerminalError):
    """A file or folder cannot be used."""


class CorruptFile(StorageError):
    """A file is not what was written: its size, its checksum or its content differs."""


class ForeignFormat(StorageError):
    """A file is whole, but it was not written by Headrace or was written by a newer one."""


class MissingFile(StorageError):
    """A file that is still named does not exist."""


class AlreadyPublished(StorageError):
    """The name is taken; published files never change."""


class CommitRace(TransientError):
    """Another writer committed first; resolve against its version and try again."""


class PipelineBusy(TransientError):
    """Another run holds the pipeline."""


class Fenced(TerminalError):
    """A newer run of the pipeline has taken over; this one must not commit anything any more."""
