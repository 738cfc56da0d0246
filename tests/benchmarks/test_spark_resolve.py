"""The benchmark of the resolve host: its stream is as it says, and a wrong key would be noticed."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.key_streams import KEY, RELATION_SCHEMA, KeyStream, relation_batches
from benchmarks.runner import WrongAnswer
from benchmarks.spark_resolve import QUICK, ResolveCase
from benchmarks.spark_resolve_peers import FORMS, SparkJoin
from benchmarks.spark_resolve_pipeline import ResolvePipeline
from benchmarks.spark_resolve_process import OURS, Job, _judged
from benchmarks.spark_resolve_stream import FILES_PER_BATCH, OrderStream
from etl.storage.lookup_store import create_relation, open_relation

ROWS = 2_000


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> OrderStream:
    stream = OrderStream(tmp_path_factory.mktemp("orders") / "files", KeyStream("uniform", ROWS), 300, 3)
    stream.write()
    return stream


def batch_files(orders: OrderStream, number: int) -> list[str]:
    files = sorted(map(str, orders.folder.glob("*.parquet")))
    return files[number * FILES_PER_BATCH : (number + 1) * FILES_PER_BATCH]


def test_the_files_hold_the_stream_in_order(orders: OrderStream) -> None:
    read = [pq.read_table(path) for number in range(3) for path in batch_files(orders, number)]
    assert [row for table in read for row in table.column("row").to_pylist()] == list(range(900))
    times = [Path(path).stat().st_mtime for number in range(3) for path in batch_files(orders, number)]
    assert times == sorted(times)
    assert len(set(times)) == 3 * FILES_PER_BATCH


def test_our_loads_are_right_and_a_wrong_key_would_be_noticed(
    spark: SparkSession, orders: OrderStream, tmp_path: Path
) -> None:
    relation = tmp_path / "customers"
    create_relation(relation, "customers", RELATION_SCHEMA, KEY, relation_batches(ROWS), theta=256, highest="surrogate")
    pipeline = ResolvePipeline(relation, tmp_path / "pipeline", 1 << 22)
    for number in range(3):
        pipeline.take(spark.read.parquet(*batch_files(orders, number)), number)
    job = Job(OURS, str(relation), ROWS, str(orders.folder), str(tmp_path), "", 1 << 22, "1g", 0)
    assert _judged(pipeline, job) == orders.expected()
    assert open_relation(relation).version == 1, "the relation that was built once stays as it is"

    with duckdb.connect(str(tmp_path / "pipeline" / "warehouse.duckdb")) as warehouse:
        warehouse.execute("update fact_order set customer_key = 7 where order_no = '000000000005'")
    assert _judged(pipeline, job) != orders.expected()
    with duckdb.connect(str(tmp_path / "pipeline" / "warehouse.duckdb")) as warehouse:
        warehouse.execute(f"update fact_order set customer_key = {ROWS + 1} where customer_key > {ROWS}")
    with pytest.raises(WrongAnswer, match="a fact has the key of another new customer"):
        _judged(pipeline, job)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_peers_joins(spark: SparkSession, orders: OrderStream, tmp_path: Path, form: str) -> None:
    for number, batch in enumerate(relation_batches(ROWS, 500)):
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"{number}.parquet")
    peer = SparkJoin(spark, tmp_path, form)
    peer.take(peer.on_stream(spark.read.parquet(*batch_files(orders, 0))), 0)
    answers = peer.answers().sort_by("row")
    asked = pq.read_table(orders.folder, columns=["row", "key"]).sort_by("row").slice(0, 300)
    numbers = [int(key.removeprefix("customer-")) for key in asked.column("key").to_pylist()]
    expected = [number // 2 + 1 if number % 2 == 0 else None for number in numbers]
    assert answers.column("surrogate").to_pylist() == expected
    assert None in expected


@pytest.mark.slow
def test_the_quick_case_runs() -> None:
    lines = ResolveCase(QUICK, QUICK.relation_rows[0], QUICK.batch_rows[0]).measure(rounds=1)
    assert {line.metric for line in lines} >= {"time_median", "throughput", "memory", "resolve"}
