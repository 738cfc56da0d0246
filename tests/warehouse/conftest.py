from pathlib import Path

import pytest
from sqlalchemy import Engine

from warehouse.engine import connect
from warehouse.schema import create_schema


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"duckdb:///{tmp_path / 'warehouse.duckdb'}"


@pytest.fixture
def engine(url: str) -> Engine:
    """A warehouse with its schema and nothing loaded."""
    engine = connect(url)
    create_schema(engine)
    return engine
