import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import Engine, func, select

from tests.warehouse.packages import facts, publish, tables, with_column
from warehouse.engine import connect
from warehouse.errors import PackageMismatch, WarehouseUnusable
from warehouse.load_package import LoadPackage
from warehouse.loader import load
from warehouse.schema import dim_product, fact_order, load_ledger, metadata

EMPTY = {"dim_customer": 1, "dim_product": 1, "dim_payment_method": 1}  # the unknown members


def test_a_package_is_loaded_whole(engine: Engine, tmp_path: Path) -> None:
    package = publish(tmp_path, 0, tables(0))
    started = datetime.now(UTC).replace(tzinfo=None)
    assert load(engine, package)
    assert _census(engine) == {
        "dim_customer": 11,
        "dim_product": 6,
        "dim_payment_method": 3,
        "fact_order": 10,
        "quarantine": 1,
        "load_ledger": 1,
    }
    with engine.connect() as connection:
        ledger = connection.execute(select(load_ledger)).one()
        fact = connection.execute(select(fact_order).where(fact_order.c.order_no == "0000006")).one()
        created_by = connection.scalars(select(dim_product.c.created_by).distinct()).all()
    assert (ledger.pipeline, ledger.batch_id, ledger.load_id) == ("demo", 0, "demo/00000000")
    assert (ledger.fact_rows, ledger.customer_rows, ledger.product_rows) == (10, 10, 5)
    assert (ledger.quarantine_rows, ledger.counts) == (1, {"matched": 10})
    assert ledger.package_checksum == package.checksum
    assert started <= ledger.loaded_at <= datetime.now(UTC).replace(tzinfo=None)
    assert (fact.customer_key, fact.amount, fact.load_id) == (7, Decimal("1.75"), "demo/00000000")
    assert fact.ordered_at == datetime(2026, 3, 1)  # noqa: DTZ001
    assert set(created_by) == {"schema", "demo/00000000"}


def test_loading_again_does_nothing(engine: Engine, url: str, tmp_path: Path) -> None:
    package = publish(tmp_path, 0, tables(0))
    assert load(engine, package)
    before = _census(engine)
    assert not load(engine, package)
    assert not load(connect(url), package)
    assert _census(engine) == before


def test_every_package_may_bring_the_payment_methods(engine: Engine, tmp_path: Path) -> None:
    for batch_id in range(3):
        assert load(engine, publish(tmp_path, batch_id, tables(batch_id)))
    assert _census(engine)["dim_payment_method"] == 3
    assert _census(engine)["fact_order"] == 30


def test_a_package_without_rows_is_still_in_the_ledger(engine: Engine, tmp_path: Path) -> None:
    assert load(engine, publish(tmp_path, 0, {}))
    assert load(engine, publish(tmp_path, 1, {"fact_order": facts(1, 10).slice(0, 0)}))
    assert _census(engine) == {**EMPTY, "load_ledger": 2}


def test_zoned_timestamps_are_loaded_as_utc(engine: Engine, tmp_path: Path) -> None:
    orders = facts(0, 1)
    paid_at = pa.array([datetime(2026, 3, 1, 9, 30, tzinfo=UTC)], pa.timestamp("ms", tz="Europe/Berlin"))
    position = orders.schema.get_field_index("paid_at")
    assert load(engine, publish(tmp_path, 0, {"fact_order": orders.set_column(position, "paid_at", paid_at)}))
    with engine.connect() as connection:
        assert connection.scalar(select(fact_order.c.paid_at)) == datetime(2026, 3, 1, 9, 30)  # noqa: DTZ001


def _key_given_twice(contents: dict[str, pa.Table]) -> None:
    contents["dim_customer"] = with_column(contents["dim_customer"], "customer_key", list(range(1, 11)))


def _customer_with_two_keys(contents: dict[str, pa.Table]) -> None:
    contents["dim_customer"] = with_column(
        contents["dim_customer"], "customer_no", [f"C{key:05d}" for key in range(1, 11)]
    )


def _method_key_for_another_code(contents: dict[str, pa.Table]) -> None:
    contents["dim_payment_method"] = with_column(contents["dim_payment_method"], "code", ["BT", "CC"])


@pytest.mark.parametrize(
    ("spoil", "culprit"),
    [
        (_key_given_twice, "dim_customer"),
        (_customer_with_two_keys, "dim_customer"),
        (_method_key_for_another_code, "dim_payment_method"),
    ],
)
def test_a_package_refused_in_the_middle_leaves_nothing(
    engine: Engine, tmp_path: Path, spoil: Callable[[dict[str, pa.Table]], None], culprit: str
) -> None:
    load(engine, publish(tmp_path, 0, tables(0)))
    before = _census(engine)
    contents = tables(1)
    spoil(contents)
    with pytest.raises(PackageMismatch, match=rf"demo/00000001.*{culprit}"):
        load(engine, publish(tmp_path, 1, contents))
    assert _census(engine) == before
    assert load(engine, publish(tmp_path, 2, tables(2)))


def test_a_process_that_dies_before_the_ledger_leaves_nothing(engine: Engine, url: str, tmp_path: Path) -> None:
    package = publish(tmp_path, 0, tables(0, rows=1_000))
    dying = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from sqlalchemy import event
        from etl.storage.durable import DurableFolder
        from warehouse.engine import connect
        from warehouse.load_package import LoadPackages
        from warehouse.loader import load

        engine = connect(sys.argv[1])

        @event.listens_for(engine, "before_cursor_execute")
        def die(connection, cursor, statement, parameters, context, executemany):
            if statement.startswith("INSERT INTO load_ledger"):
                cursor.execute("SELECT count(*) FROM fact_order")
                print(cursor.fetchone()[0], flush=True)
                os._exit(42)

        load(engine, LoadPackages(DurableFolder(Path(sys.argv[2])), "demo").latest())
        """
    )
    died = subprocess.run([sys.executable, "-c", dying, url, tmp_path], capture_output=True, text=True, check=False)
    assert (died.returncode, died.stdout) == (42, "1000\n"), died.stderr  # the facts were in, uncommitted
    assert _census(engine) == EMPTY
    assert load(engine, package)
    assert _census(engine)["fact_order"] == 1_000


def test_what_is_raised_before_the_commit_undoes_the_load(engine: Engine, tmp_path: Path) -> None:
    package = publish(tmp_path, 0, tables(0))

    def refuse() -> None:
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        load(engine, package, before_commit=refuse)
    assert _census(engine) == EMPTY
    assert load(engine, package)


def test_another_package_under_a_loaded_id_is_refused(engine: Engine, tmp_path: Path) -> None:
    load(engine, publish(tmp_path / "one", 0, tables(0)))
    with pytest.raises(PackageMismatch, match=r"has loaded another package as demo/00000000 .*start both over"):
        load(engine, publish(tmp_path / "other", 0, tables(0, rows=3)))


def test_a_warehouse_without_schema_is_named(url: str, tmp_path: Path) -> None:
    with pytest.raises(WarehouseUnusable, match=r"no readable load ledger .*create the schema"):
        load(connect(url), publish(tmp_path, 0, tables(0)))


def test_an_unknown_table_is_refused_and_a_private_one_is_kept_out(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(PackageMismatch, match=r"table 'fact_orders', which the warehouse does not know"):
        load(engine, publish(tmp_path, 0, {"fact_orders": facts(0, 1)}))
    assert _census(engine) == EMPTY
    assert load(engine, publish(tmp_path, 1, {"_waiting_rows": facts(0, 1)}))
    assert _census(engine) == {**EMPTY, "load_ledger": 1}


def test_other_columns_are_refused_by_name(engine: Engine, tmp_path: Path) -> None:
    orders = facts(0, 2).drop_columns(["quantity"]).append_column("qty", pa.array([1, 1]))
    with pytest.raises(PackageMismatch, match=r"fact_order .*missing \['quantity'\], too many \['qty'\]"):
        load(engine, publish(tmp_path, 0, {"fact_order": orders}))


def test_values_that_do_not_fit_are_refused_with_the_expected_types(engine: Engine, tmp_path: Path) -> None:
    orders = with_column(facts(0, 2), "customer_key", ["one", "two"])
    with pytest.raises(PackageMismatch, match=r"does not fit the warehouse: .*customer_key int64"):
        load(engine, publish(tmp_path, 0, {"fact_order": orders}))


def test_a_null_is_refused_with_its_column(engine: Engine, tmp_path: Path) -> None:
    orders = with_column(facts(0, 2), "customer_key", [None, 2])
    with pytest.raises(PackageMismatch, match=r"fact_order of load package demo/00000000 .*'customer_key' with null"):
        load(engine, publish(tmp_path, 0, {"fact_order": orders}))


def test_a_reader_in_another_process_sees_whole_loads_only(engine: Engine, url: str, tmp_path: Path) -> None:
    loads, rows = 8, 500
    reading = textwrap.dedent(
        """
        import sys, time
        from warehouse.engine import connect
        from warehouse.inspect import run_query

        engine = connect(sys.argv[1], read_only=True)
        wanted, seen, deadline = int(sys.argv[2]), set(), time.monotonic() + 30
        print("reading", flush=True)
        while wanted not in seen and time.monotonic() < deadline:
            seen.add(run_query(engine, "SELECT count(*) AS facts FROM fact_order")["facts"][0].as_py())
        print(*sorted(seen), flush=True)
        """
    )
    packages: list[LoadPackage] = [publish(tmp_path, number, tables(number, rows)) for number in range(loads)]
    command = [sys.executable, "-c", reading, url, str(loads * rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        assert all(load(engine, package) for package in packages)
        seen = [int(count) for count in reader.stdout.read().split()]
    assert reader.returncode == 0
    assert seen[-1] == loads * rows
    assert all(count % rows == 0 for count in seen)


def _census(engine: Engine) -> dict[str, int]:
    """How many rows each table has; those without any are left out."""
    with engine.connect() as connection:
        counts = {
            table.name: connection.scalars(select(func.count()).select_from(table)).one()
            for table in metadata.sorted_tables
        }
    return {name: count for name, count in counts.items() if count}
