"""The quality gate: Great Expectations on a frozen package, before it is loaded.

Idea: bad rows were quarantined one by one upstream; the gate looks at the facts of a load as a whole and
catches a defect of the pipeline itself, such as an unresolved key or a duplicate. It checks a data frame,
because Great Expectations cannot check through DuckDB's connections.

Invariants: an expectation that could not be carried out raises `GateFailure`. Great Expectations reports it
like bad data, and whoever believed that would stop a load, or worse let one pass, for the wrong reason.

Limits: the import takes two seconds, so it happens on the first check. Money is checked as floating point,
which keeps its sign.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pyarrow as pa

from warehouse.errors import GateFailure
from warehouse.load_package import LoadId, LoadPackage
from warehouse.schema import fact_order

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.expectations.expectation import Expectation

__all__ = ["Failure", "GateReport", "check"]

BUSINESS_KEY = ("source_system", "order_no", "payment_no")
POSITIVE = ("customer_key", "product_key", "payment_method_key", "quantity", "amount", "paid_amount")
EXAMPLES = 3


@dataclass(frozen=True)
class Failure:
    """An expectation that rows of the package do not meet."""

    expectation: str
    columns: tuple[str, ...]
    rows: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        columns, examples = ", ".join(self.columns), ", ".join(self.examples)
        return f"{self.expectation} on {columns}: {self.rows} rows, such as {examples}"


@dataclass(frozen=True)
class GateReport:
    """What the gate found in a package."""

    load_id: LoadId
    rows: int
    failures: tuple[Failure, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        if self.passed:
            return f"load {self.load_id}: {self.rows} facts passed the gate"
        found = "; ".join(str(failure) for failure in self.failures)
        return f"load {self.load_id}: {self.rows} facts did not pass the gate: {found}"


def check(package: LoadPackage) -> GateReport:
    """Checks the facts of the package."""
    facts = package.table(fact_order.name) if fact_order.name in package.tables else None
    if facts is None or facts.num_rows == 0:
        return GateReport(package.load_id, 0, ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Great Expectations and its imports concern its authors
        gate = _gate()
        batch = gate.frames.get_batch(batch_parameters={"dataframe": _frame(facts)})
        results = batch.validate(gate.suite, result_format="BASIC").results
    failures = [_failure(package.load_id, result) for result in results if not result.success]
    return GateReport(package.load_id, facts.num_rows, tuple(failures))


class _Gate(NamedTuple):
    frames: "BatchDefinition[None]"
    suite: "ExpectationSuite"


@cache
def _gate() -> _Gate:
    import great_expectations  # slow, and needed by nobody who only loads or inspects
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = great_expectations.get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("load_packages").add_dataframe_asset("fact_order")
    suite = great_expectations.ExpectationSuite(name="fact_order", expectations=_expectations())
    return _Gate(asset.add_batch_definition_whole_dataframe("package"), suite)


def _expectations() -> "list[Expectation]":
    # By their own modules: the package that gathers them does not declare them to type checkers.
    from great_expectations.expectations.core.expect_column_values_to_be_between import (
        ExpectColumnValuesToBeBetween,
    )
    from great_expectations.expectations.core.expect_column_values_to_not_be_null import (
        ExpectColumnValuesToNotBeNull,
    )
    from great_expectations.expectations.core.expect_compound_columns_to_be_unique import (
        ExpectCompoundColumnsToBeUnique,
    )

    return [
        *(ExpectColumnValuesToNotBeNull(column=column) for column in (*BUSINESS_KEY, *POSITIVE)),
        *(ExpectColumnValuesToBeBetween(column=column, min_value=0, strict_min=True) for column in POSITIVE),
        ExpectCompoundColumnsToBeUnique(column_list=list(BUSINESS_KEY)),
    ]


def _frame(facts: pa.Table) -> pd.DataFrame:
    """The checked columns; one that is missing stays missing, for the expectation on it to say so."""
    columns = {}
    for name in (*BUSINESS_KEY, *POSITIVE):
        if name in facts.column_names:
            column = facts.column(name)
            # As Python objects, decimals would make the check several times slower.
            columns[name] = column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column
    frame: pd.DataFrame = pa.table(columns).to_pandas()
    return frame


def _failure(load_id: LoadId, result: "ExpectationValidationResult") -> Failure:
    settings = result.expectation_config
    assert settings is not None
    columns = tuple(settings.kwargs.get("column_list", [settings.kwargs.get("column")]))
    error = _error_of(result)
    if error is not None:
        raise GateFailure(
            f"load {load_id}: {settings.type} on {', '.join(columns)} could not be checked, which says "
            f"nothing about the data: {error}; mend the expectation or the table that the pipeline wrote"
        )
    return Failure(
        expectation=settings.type,
        columns=columns,
        rows=int(result.result["unexpected_count"]),
        examples=tuple(str(value) for value in result.result["partial_unexpected_list"][:EXAMPLES]),
    )


def _error_of(result: "ExpectationValidationResult") -> str | None:
    """The exception behind a result: its report stands at the top, or below the name of each metric."""
    information = result.exception_info or {}
    reports = [information] if "raised_exception" in information else list(information.values())
    messages = [str(report["exception_message"]) for report in reports if report["raised_exception"]]
    return "; ".join(messages) or None
