"""Looking into the warehouse by SQL, without being able to change it.

Idea: a query is a file of `sql/inspect`, run by its name, or one statement of the user's own. It runs in a
read-only transaction on a short-lived connection, so that a running pipeline waits for it no longer than it
takes.

Invariants: one statement that returns rows, nothing else: a second one could end the read-only transaction.
"""

from typing import NamedTuple

import duckdb
import pyarrow as pa
from sqlalchemy import Engine

from warehouse import sql_files
from warehouse.errors import BadQuery, WarehouseUnusable

__all__ = ["NamedQuery", "named_queries", "run_query"]

READING = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}


class NamedQuery(NamedTuple):
    """A query that can be run by its name."""

    name: str
    description: str


def named_queries() -> list[NamedQuery]:
    """The queries of `sql/inspect`, sorted by name."""
    return [NamedQuery(name, sql_files.describe("inspect", name)) for name in sql_files.names("inspect")]


def run_query(engine: Engine, name_or_sql: str) -> pa.Table:
    """The result of a named query or of a statement that only reads."""
    if engine.dialect.name != "duckdb":
        raise WarehouseUnusable(
            f"inspecting {engine.dialect.name} is not built yet: run the files of sql/inspect in its shell"
        )
    statement = _statement(name_or_sql)
    with engine.connect() as connection:
        # The driver's own connection gives Arrow; SQLAlchemy would build a Python object for each value.
        database = connection.connection.driver_connection
        assert database is not None
        try:
            _refuse_writing(database, statement)
            database.execute("BEGIN TRANSACTION READ ONLY")
            return database.execute(statement).to_arrow_table()
        except duckdb.Error as error:
            raise BadQuery(f"the query failed: {error}") from error


def _statement(name_or_sql: str) -> str:
    known = sql_files.names("inspect")
    if name_or_sql in known:
        return sql_files.read("inspect", name_or_sql)
    if len(name_or_sql.split()) < 2:
        raise BadQuery(f"no query is named {name_or_sql!r}: use one of {', '.join(known)}, or write a SELECT")
    return name_or_sql


def _refuse_writing(database: duckdb.DuckDBPyConnection, statement: str) -> None:
    kinds = [parsed.type for parsed in database.extract_statements(statement)]
    if len(kinds) != 1 or kinds[0] not in READING:
        found = ", ".join(kind.name for kind in kinds) or "none"
        raise BadQuery(f"a query is one statement that only reads, such as a SELECT; this has {found}")
