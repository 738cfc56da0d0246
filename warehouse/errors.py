"""The exceptions that the warehouse raises on purpose.

As in the rest of Headrace, whoever drives a run decides by the family alone: after a `WarehouseBusy` trying
again may help, after any other `WarehouseError` it will not. The message names the culprit and the remedy.
"""

__all__ = [
    "WarehouseError",
    "WarehouseBusy",
    "WarehouseUnusable",
    "PackageError",
    "CorruptPackage",
    "ForeignPackage",
    "StaleLoad",
    "PackageMismatch",
    "GateFailure",
    "BadQuery",
]


class WarehouseError(Exception):
    """The root: catch this to catch all of the warehouse's own and nothing else."""


class WarehouseBusy(WarehouseError):
    """Another process holds the database file; trying again may help."""


class WarehouseUnusable(WarehouseError):
    """The database cannot be opened, or it is of a kind that cannot serve as a warehouse."""


class PackageError(WarehouseError):
    """A load package cannot be written or read."""


class CorruptPackage(PackageError):
    """A file of a load package is not what was published."""


class ForeignPackage(PackageError):
    """The manifest is of a format that this version does not know."""


class StaleLoad(PackageError):
    """A load with a higher id was published already."""


class PackageMismatch(PackageError):
    """The package does not fit the warehouse: other columns, or another package under the same load id."""


class GateFailure(WarehouseError):
    """A check of the quality gate could not be carried out; that says nothing about the data."""


class BadQuery(WarehouseError):
    """The inspection is not one statement that only reads."""
