from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import Engine, text

from tests.warehouse.packages import facts, publish, tables
from warehouse.engine import connect
from warehouse.errors import BadQuery
from warehouse.inspect import named_queries, run_query
from warehouse.loader import load

NAMES = [query.name for query in named_queries()]


@pytest.fixture
def loaded(engine: Engine, tmp_path: Path) -> Engine:
    """Two loads of ten facts each."""
    for batch_id in range(2):
        load(engine, publish(tmp_path, batch_id, tables(batch_id)))
    return engine


def test_the_promised_queries_are_there_and_described() -> None:
    promised = {
        "sales_by_method",
        "top_customers",
        "loads",
        "quarantine_by_reason",
        "freshness",
        "duplicates",
        "orphan_facts",
    }
    assert promised <= set(NAMES)
    assert all(query.description for query in named_queries())


@pytest.mark.parametrize("name", NAMES)
def test_every_query_runs_on_an_empty_warehouse(engine: Engine, name: str) -> None:
    assert run_query(engine, name).num_rows == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_query_runs_through_a_read_only_engine(loaded: Engine, url: str, name: str) -> None:
    from_reader = run_query(connect(url, read_only=True), name)
    assert from_reader.num_columns > 1
    assert from_reader.num_rows == run_query(loaded, name).num_rows


def test_sales_and_customers(loaded: Engine) -> None:
    sales = run_query(loaded, "sales_by_method").to_pylist()
    assert [(row["code"], row["orders"], row["paid"]) for row in sales] == [
        ("BT", 10, Decimal("27.50")),
        ("CC", 10, Decimal("25.00")),
    ]
    best = run_query(loaded, "top_customers").to_pylist()[0]
    assert (best["source_system"], best["customer_no"], best["paid"]) == ("web", "C00020", Decimal("5.00"))


def test_loads_quarantine_and_freshness(loaded: Engine) -> None:
    loads = run_query(loaded, "loads").to_pylist()
    assert [(row["load_id"], row["new_products"]) for row in loads] == [
        ("demo/00000001", 0),
        ("demo/00000000", 5),
    ]
    (reason,) = run_query(loaded, "quarantine_by_reason").to_pylist()
    assert (reason["feed"], reason["reason"], reason["kept_out"]) == ("orders", "malformed", 2)
    (fresh,) = run_query(loaded, "freshness").to_pylist()
    assert (fresh["pipeline"], fresh["last_batch_id"]) == ("demo", 1)
    assert 0 <= fresh["seconds_ago"] < 60
    assert fresh["newest_payment"].isoformat() == "2026-03-01T01:30:00"


def test_orphans_are_found(loaded: Engine, tmp_path: Path) -> None:
    assert run_query(loaded, "orphan_facts").num_rows == 0
    load(loaded, publish(tmp_path, 7, {"fact_order": facts(7, 4)}))  # without its customers
    assert run_query(loaded, "orphan_facts").to_pylist() == [
        {"load_id": "demo/00000007", "without_customer": 4, "without_product": 0, "without_payment_method": 0}
    ]


def test_duplicates_would_be_found(url: str) -> None:
    engine = connect(url)
    with engine.begin() as connection:  # without the constraint that keeps them out
        connection.execute(text("CREATE TABLE fact_order (source_system TEXT, order_no TEXT, payment_no TEXT)"))
        connection.execute(text("INSERT INTO fact_order VALUES ('web','1','1'), ('web','1','1'), ('store','1','1')"))
    assert run_query(engine, "duplicates").to_pylist() == [
        {"source_system": "web", "order_no": "1", "payment_no": "1", "copies": 2}
    ]


def test_a_statement_of_ones_own(loaded: Engine) -> None:
    result = run_query(loaded, "WITH f AS (SELECT * FROM fact_order) SELECT count(*) AS facts FROM f;")
    assert result.equals(pa.table({"facts": [20]}))
    assert run_query(loaded, "DESCRIBE fact_order").num_rows == 12
    assert "fact_order" in run_query(loaded, "EXPLAIN SELECT * FROM fact_order")["explain_value"][0].as_py()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM fact_order",
        "INSERT INTO quarantine SELECT * FROM quarantine RETURNING load_id",
        "SELECT 1; DELETE FROM fact_order",
        "COMMIT; DELETE FROM fact_order",
        "DROP TABLE fact_order",
        "CREATE TABLE other AS SELECT 1",
        "COPY fact_order TO 'facts.csv'",
        "ATTACH 'other.duckdb'",
        "SET threads = 1",
        "EXPLAIN ANALYZE DELETE FROM fact_order",
        "-- nothing at all",
    ],
)
def test_whatever_could_write_is_refused(
    loaded: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadQuery):
        run_query(loaded, statement)
    assert sorted(tmp_path.iterdir()) == before
    assert run_query(loaded, "SELECT count(*) AS facts FROM fact_order")["facts"][0].as_py() == 20


def test_mistakes_are_explained(loaded: Engine) -> None:
    with pytest.raises(BadQuery, match=r"no query is named 'sale': use one of .*sales_by_method.*or write a SELECT"):
        run_query(loaded, "sale")
    with pytest.raises(BadQuery, match=r"one statement that only reads, such as a SELECT; this has SELECT, DROP"):
        run_query(loaded, "SELECT 1; DROP TABLE fact_order")
    with pytest.raises(BadQuery, match=r"the query failed: .*nonsense"):
        run_query(loaded, "SELECT * FROM nonsense")
    with pytest.raises(BadQuery, match=r"the query failed: .*syntax error"):
        run_query(loaded, "give me all")
