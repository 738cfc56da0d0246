"""The SQL of the warehouse, one statement a file: `sql/<folder>/<name>.sql`.

The folder `sql` stands beside the package `warehouse`, in a checkout as in an installed wheel. The first line
of a file that people run by its name (`sql/inspect`) is a comment that describes it.
"""

from functools import cache
from pathlib import Path

__all__ = ["describe", "names", "read"]

ROOT = Path(__file__).resolve().parent.parent / "sql"


def names(folder: str) -> list[str]:
    """The statements of a folder, sorted by name."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.sql"))


@cache
def read(folder: str, name: str) -> str:
    """The statement, comments included."""
    path = ROOT / folder / f"{name}.sql"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(names(folder)) or "nothing"
        raise FileNotFoundError(f"no SQL file {path}; {ROOT / folder} holds {known}") from None


def describe(folder: str, name: str) -> str:
    """The description in the first line of the file, without the comment mark."""
    first_line = read(folder, name).splitlines()[0]
    if not first_line.startswith("-- "):
        raise ValueError(f"{ROOT / folder / name}.sql does not begin with a line `-- description`: add it")
    return first_line.removeprefix("-- ").strip()
