"""Connections to the warehouse.

Idea: a DuckDB file has one writing process at a time, and a process that reads it keeps writers out. So
nobody keeps a connection: there is no pool, each use opens the file and closes it, and whoever finds it taken
waits a little and tries again. After a bounded wait the message says who holds the file.

Limits: one file, one machine. A PostgreSQL URL gives a plain engine, for which nothing of this is needed.
"""

import time
from typing import TYPE_CHECKING

import duckdb
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

from warehouse.errors import WarehouseBusy, WarehouseUnusable

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
    from sqlalchemy.pool import ConnectionPoolEntry

__all__ = ["connect"]

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1


def connect(url: str, *, read_only: bool = False, longest_wait_seconds: float = 10.0) -> Engine:
    """An engine for the warehouse at a SQLAlchemy URL, such as `duckdb:///warehouse.duckdb`.

    Connections are opened on use and must be short-lived. `read_only` lets several processes read at once.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "duckdb":
        return create_engine(parsed, poolclass=NullPool)
    _refuse_memory(parsed)
    # Nothing is downloaded behind the user's back: DuckDB would fetch an extension that it thinks it needs.
    config = {"autoinstall_known_extensions": False}
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"config": config, "read_only": read_only})

    @event.listens_for(engine, "do_connect")
    def open_when_free(
        dialect: "Dialect",
        _entry: "ConnectionPoolEntry",
        arguments: tuple[str, ...],
        options: dict[str, object],
    ) -> "DBAPIConnection":
        deadline = time.monotonic() + longest_wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return dialect.connect(*arguments, **options)
            except duckdb.Error as error:
                if not _is_held(error):
                    raise WarehouseUnusable(
                        f"cannot open the warehouse {parsed.database}: {_first_sentence(error)}"
                    ) from error
                if time.monotonic() + pause > deadline:
                    raise WarehouseBusy(_busy_message(parsed, longest_wait_seconds, error)) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    return engine


def _refuse_memory(url: URL) -> None:
    if url.database in (None, "", ":memory:"):
        raise WarehouseUnusable(
            f"{url} is a database in memory, which ends with each connection: "
            "name a file, such as duckdb:///warehouse.duckdb"
        )


def _is_held(error: duckdb.Error) -> bool:
    """DuckDB has no class of errors for this: a lock of another process, or of this one in another mode."""
    message = str(error)
    return "Could not set lock" in message or "different configuration" in message


def _busy_message(url: URL, waited_seconds: float, error: duckdb.Error) -> str:
    message = str(error)
    holder = "this process, in another mode"
    if "Conflicting lock is held in " in message:
        holder = message.split("Conflicting lock is held in ", 1)[1].split(". See also", 1)[0]
    return (
        f"the warehouse {url.database} is held by {holder} and did not become free within "
        f"{waited_seconds:g} s: close that program (an open SQL shell keeps everyone else out) and try again"
    )


def _first_sentence(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]
