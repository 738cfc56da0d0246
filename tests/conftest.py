"""What tests in several rooms share: one local Spark session, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from etl.spark.session import local_session

    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        "headrace-tests", folder / "spark.log", master="local[2]", spark__local__dir=str(folder / "scratch")
    )
    yield session
    session.stop()
