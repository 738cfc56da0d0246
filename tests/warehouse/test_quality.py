import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.warehouse.packages import facts, publish, with_column
from warehouse.errors import GateFailure
from warehouse.load_package import LoadId
from warehouse.quality import check


def test_good_facts_pass_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = check(publish(tmp_path, 4, {"fact_order": facts(4, 50)}))
    assert report.passed
    assert (report.load_id, report.rows) == (LoadId("demo", 4), 50)
    assert str(report) == "load demo/00000004: 50 facts passed the gate"
    assert capfd.readouterr() == ("", "")  # no progress bars


@pytest.mark.parametrize("contents", [{}, {"fact_order": facts(0, 1).slice(0, 0)}])
def test_no_facts_pass(tmp_path: Path, contents: dict[str, pa.Table]) -> None:
    report = check(publish(tmp_path, 0, contents))
    assert (report.passed, report.rows) == (True, 0)


@pytest.mark.parametrize(
    ("column", "bad", "expectation", "example"),
    [
        ("customer_key", 0, "expect_column_values_to_be_between", "0"),
        ("product_key", -3, "expect_column_values_to_be_between", "-3"),
        ("payment_method_key", 0, "expect_column_values_to_be_between", "0"),
        ("quantity", 0, "expect_column_values_to_be_between", "0"),
        ("amount", Decimal("-0.01"), "expect_column_values_to_be_between", "-0.01"),
        ("paid_amount", Decimal("0.00"), "expect_column_values_to_be_between", "0.0"),
        ("order_no", None, "expect_column_values_to_not_be_null", "None"),
        ("customer_key", None, "expect_column_values_to_not_be_null", "nan"),
    ],
)
def test_a_bad_value_is_reported_with_its_column(
    tmp_path: Path, column: str, bad: object, expectation: str, example: str
) -> None:
    orders = facts(0, 6)
    values = orders[column].to_pylist()
    values[2] = bad
    report = check(publish(tmp_path, 0, {"fact_order": with_column(orders, column, values)}))
    assert not report.passed
    (failure,) = report.failures
    assert (failure.expectation, failure.columns, failure.rows) == (expectation, (column,), 1)
    assert failure.examples == (example,)
    assert f"{expectation} on {column}: 1 rows, such as {example}" in str(report)


def test_duplicates_in_the_package_are_reported(tmp_path: Path) -> None:
    orders = facts(0, 6)
    report = check(publish(tmp_path, 0, {"fact_order": pa.concat_tables([orders, orders.slice(3, 1)])}))
    (failure,) = report.failures
    assert failure.expectation == "expect_compound_columns_to_be_unique"
    assert failure.columns == ("source_system", "order_no", "payment_no")
    assert failure.rows == 2
    assert "0000003" in failure.examples[0]


@pytest.mark.parametrize("column", ["amount", "customer_key", "order_no"])
def test_an_expectation_that_fails_to_run_is_no_bad_data(tmp_path: Path, column: str) -> None:
    package = publish(tmp_path, 0, {"fact_order": facts(0, 6).drop_columns([column])})
    with pytest.raises(GateFailure, match=rf"load demo/00000000: expect_.* on .*{column}.* could not be checked"):
        check(package)


def test_values_of_another_kind_are_no_bad_data(tmp_path: Path) -> None:
    orders = with_column(facts(0, 2), "quantity", ["one", "two"])
    with pytest.raises(GateFailure, match=r"on quantity could not be checked"):
        check(publish(tmp_path, 0, {"fact_order": orders}))


def test_great_expectations_is_imported_on_the_first_check_only() -> None:
    program = (
        "import sys, warehouse.quality, warehouse.loader, warehouse.inspect; "
        "sys.exit('great_expectations' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
