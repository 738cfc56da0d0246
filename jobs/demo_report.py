"""What the demo prints: a line a load, and at the end each count beside the known number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from jobs.demo_feeds import KnownNumbers
from warehouse.load_package import LoadPackage

_LABELS = {
    "orders_rows": "orders in",
    "payments_rows": "payments in",
    "matched": "matched",
    "facts": "facts loaded",
    "customers": "new customer keys",
    "products": "new product keys",
    "duplicates": "duplicates dropped",
    "malformed": "malformed",
    "late": "late",
    "unknown_codes": "unknown codes",
    "quarantined": "quarantined in all",
}


def print_load(console: Console, package: LoadPackage, seconds: float) -> None:
    counts = package.counts
    rows = counts["orders_rows"] + counts["payments_rows"]
    console.print(
        f"load {package.load_id.batch_id:>2}: {rows:>7,} rows, {counts['facts']:>6,} facts, "
        f"{counts['duplicates']:>3} duplicates, {counts['quarantined']:>3} quarantined {seconds:6.2f} s",
        highlight=False,
        soft_wrap=True,
    )


def agrees(known: KnownNumbers, totals: Mapping[str, int]) -> bool:
    """True when every count equals the known number."""
    expected = asdict(known)
    return all(totals.get(name) == expected[name] for name in _LABELS)


def print_summary(console: Console, known: KnownNumbers, totals: Mapping[str, int]) -> None:
    expected = asdict(known)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("counted", justify="right")
    table.add_column("known", justify="right")
    table.add_column("")
    for name, label in _LABELS.items():
        counted = totals.get(name, 0)
        verdict = "as known" if counted == expected[name] else "[bold red]DIFFERS[/]"
        table.add_row(label, f"{counted:,}", f"{expected[name]:,}", verdict)
    console.print()
    console.print(table)
