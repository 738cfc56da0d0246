import pyarrow as pa
import pytest
from sqlalchemy import Engine, Table, func, select, text

from warehouse import sql_files
from warehouse.schema import (
    UNKNOWN_KEY,
    arrow_schema,
    create_schema,
    dim_customer,
    dim_payment_method,
    dim_product,
    fact_order,
    metadata,
    render,
)

TABLES = metadata.sorted_tables
DUCKDB_TYPES = {
    "BIGINT": "BIGINT",
    "INTEGER": "INTEGER",
    "VARCHAR": "VARCHAR",
    "JSON": "JSON",
    "DATETIME": "TIMESTAMP",
    "NUMERIC(12, 2)": "DECIMAL(12,2)",
}


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_the_sql_file_is_what_the_table_renders(table: Table) -> None:
    assert sql_files.read("schema", table.name) == render(table), "run `python -m warehouse.schema`"


def test_every_sql_file_belongs_to_a_table() -> None:
    unknown_members = {"unknown_customer", "unknown_product", "unknown_payment_method"}
    assert set(sql_files.names("schema")) == {table.name for table in TABLES} | unknown_members


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_the_database_has_the_columns_of_the_table(engine: Engine, table: Table) -> None:
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
                "WHERE table_name = :name ORDER BY ordinal_position"
            ),
            {"name": table.name},
        ).all()
    expected = [(column.name, DUCKDB_TYPES[str(column.type)], "NO") for column in table.columns]
    assert [tuple(row) for row in found] == expected


def test_creating_again_changes_nothing(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            dim_customer.insert().values(
                customer_key=1, source_system="web", customer_no="C1", created_by="demo/00000000"
            )
        )
    create_schema(engine)
    with engine.connect() as connection:
        keys = connection.scalars(select(dim_customer.c.customer_key).order_by("customer_key")).all()
    assert keys == [UNKNOWN_KEY, 1]


@pytest.mark.parametrize("dimension", [dim_customer, dim_product, dim_payment_method], ids=str)
def test_each_dimension_has_its_unknown_member(engine: Engine, dimension: Table) -> None:
    key = next(iter(dimension.primary_key.columns))
    with engine.connect() as connection:
        assert connection.scalars(select(key)).all() == [UNKNOWN_KEY]
        assert connection.scalar(select(func.count()).where(dimension.c.created_by == "schema")) == 1


def test_the_arrow_schema_leaves_out_what_the_loader_fills_in() -> None:
    schema = arrow_schema(fact_order)
    assert "load_id" not in schema.names
    assert schema.field("amount").type == pa.decimal128(12, 2)
    assert schema.field("quantity").type == pa.int32()
    assert schema.field("paid_at").type == pa.timestamp("us")
    assert arrow_schema(dim_customer).names == ["customer_key", "source_system", "customer_no"]
