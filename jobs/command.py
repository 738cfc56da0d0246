"""The `headrace` command: arguments to settings, run, exit code (0 done, 1 failed, 75 try again)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from etl.errors import HeadraceError, TransientError
from warehouse.errors import WarehouseBusy, WarehouseError

DONE, FAILED, TRY_AGAIN = 0, 1, 75
DEMO_FOLDER = Path("build/demo")

app = typer.Typer(
    help="Headrace: the ETL component of an active data warehouse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# A file or a pipe has no width to wrap at.
console = Console(width=None if sys.stdout.isatty() else 1_000)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where feeds, state and warehouse go.")] = DEMO_FOLDER,
    orders: Annotated[int, typer.Option(min=1, help="How many orders the generator places.")] = 40_000,
    resume: Annotated[bool, typer.Option("--continue", help="Go on with a run that was broken off.")] = False,
) -> None:
    """Run the main job end to end on generated feeds and compare every count with the known numbers."""
    from jobs.demo import run_demo, warehouse_file  # Spark is slow to import, and the other commands do not need it
    from jobs.demo_feeds import FeedSettings

    as_known = run_demo(folder, FeedSettings(orders=orders), console, resume)
    program = sys.argv[0] if Path(sys.argv[0]).name == "headrace" else "headrace"
    where = "" if folder == DEMO_FOLDER else f" --warehouse duckdb:///{warehouse_file(folder)}"
    console.print("\nInspect the tables by SQL:")
    for query in ("sales_by_method", '"select * from fact_order limit 5"'):
        console.print(f"  {program} inspect {query}{where}", highlight=False, soft_wrap=True)
    if not as_known:
        console.print("[bold red]some counts differ from the known numbers[/]")
        raise typer.Exit(FAILED)


@app.command()
def inspect(
    query: Annotated[str | None, typer.Argument(help="A named query, or SQL. Without it: the list of names.")] = None,
    warehouse: Annotated[str, typer.Option(help="URL of the warehouse.")] = f"duckdb:///{DEMO_FOLDER}/warehouse.duckdb",
) -> None:
    """Look at the warehouse by SQL, also while a job runs.

    Examples: headrace inspect loads; headrace inspect "select count(*) from fact_order"
    """
    from warehouse.engine import connect
    from warehouse.inspect import named_queries, run_query

    if query is None:
        _print_table(pa.Table.from_pylist([named._asdict() for named in named_queries()]))
    else:
        _print_table(run_query(connect(warehouse, read_only=True), query))


@app.command()
def joins() -> None:
    """List the joins of the catalogue."""
    from etl.joins import catalogue

    columns = ("name", "family", "predicates", "spills", "paper")
    rows = [{name: getattr(entry, name) for name in columns} for entry in catalogue()]
    for row in rows:
        row["predicates"] = ", ".join(row["predicates"])
    _print_table(pa.Table.from_pylist(rows))


def main() -> None:
    """Run the command; an error we know is one sentence, not a traceback."""
    try:
        app(standalone_mode=True)
    except (HeadraceError, WarehouseError) as error:
        Console(stderr=True).print(f"headrace: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(TRY_AGAIN if isinstance(error, TransientError | WarehouseBusy) else FAILED)


def _print_table(table: pa.Table) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for field in table.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type) or pa.types.is_floating(field.type)
        shown.add_column(field.name, justify="right" if number else "left")
    for row in table.to_pylist():
        shown.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    console.print(shown, highlight=False)


if __name__ == "__main__":
    main()
