"""Loads of tagged rows through the correlate host on a given master: `python -m tests.spark.cluster_job`.

Prints a line after each load, and at the end a JSON document with all results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from etl.spark.correlate import EMPTY_STATE, correlate
from etl.spark.session import local_session
from tests.oracle import rows_of
from tests.spark.tagged_rows import batch_of, plan, some_rows


def run(master: str, folder: Path, loads: int) -> None:
    host = {"spark__driver__host": "127.0.0.1", "spark__driver__bindAddress": "127.0.0.1"}
    spark = local_session(
        "cluster-job",
        folder / "driver.log",
        master,
        **host,
        spark__local__dir=str(folder / "scratch"),
        spark__executor__memory="512m",
        spark__executor__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    correlation = plan(folder / "state", groups=8, slots=4)
    state, results = EMPTY_STATE, []
    try:
        for load in range(loads):
            correlated = correlate(batch_of(spark, some_rows(load)), correlation, f"test/{load:08d}", state, {})
            state = correlated.state
            results += rows_of(correlated.results.to_batches())
            print(f"load {load}", flush=True)
    finally:
        spark.stop()
    print(json.dumps(sorted(results, key=repr), default=str))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
