"""Loads of the order pipeline whose rows are made up instead of correlated: the whole commit order, no Java.

As a program (`python -m tests.jobs.without_spark <folder> <name> <shared relations> <loads> <seed>`) it runs loads one
after the other; it prints a line before it begins and waits for one.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from etl.spark.correlate import EMPTY_STATE, Correlated
from etl.storage.run_lock import Run
from jobs import order_load
from jobs.demo_feeds import PAYMENT_METHODS
from jobs.order_feeds import side_schemas
from jobs.order_pipeline import OrderPipeline
from tests.jobs.order_run import pipeline_in
from warehouse.load_package import LoadPackage

ROWS = 60
SHARED_ROWS = 6


def run_made_up_load(pipeline: OrderPipeline, run: Run, batch_id: int, seed: int = 0) -> LoadPackage:
    """The load with this number; the same again whenever it is repeated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_load, "correlate", lambda *_: made_up(batch_id, seed))
        return order_load.run_load(pipeline, run, pa.table({}), batch_id)


def made_up(batch_id: int, seed: int) -> Correlated:
    """New orders, each paid at once, of customers and products that loads of all seeds have in common."""
    chance = np.random.default_rng([seed, batch_id])
    # The seed is in the order's number: pipelines with other seeds load other orders, and some that all have.
    number = np.arange(ROWS) + batch_id * ROWS
    number[SHARED_ROWS:] += 1_000_000 * seed
    at = [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=int(minute)) for minute in number % 10_000]
    amount = [Decimal(int(cents)) / 100 for cents in 100 + number % 900]
    columns = {
        "source_system": ["web"] * ROWS,
        "order_no": [f"{value:09d}" for value in number],
        "customer_no": [f"C{value:05d}" for value in chance.zipf(1.3, ROWS) % 2_000],
        "product_no": [f"P{value:04d}" for value in chance.integers(0, 200, ROWS)],
        "quantity": [1] * ROWS,
        "amount": amount,
        "ordered_at": at,
        "source_system_1": ["web"] * ROWS,
        "payment_no": [f"{value:09d}" for value in number],
        "order_no_1": [f"{value:09d}" for value in number],
        "method": chance.choice(list(PAYMENT_METHODS), ROWS).tolist(),
        "paid_amount": amount,
        "paid_at": at,
    }
    types = {field.name: field.type for schema in side_schemas() for field in schema}
    results = pa.table({name: pa.array(values, types[name.removesuffix("_1")]) for name, values in columns.items()})
    return Correlated(results, {}, pa.table({}), {0: ROWS, 1: ROWS}, EMPTY_STATE)


def main(folder: Path, name: str, shared_relations: Path, loads: int, seed: int) -> None:
    pipeline = pipeline_in(folder, name=name, shared_relations=shared_relations)
    with pipeline.running() as run:
        print("ready", flush=True)
        sys.stdin.readline()
        for batch_id in range(loads):
            run_made_up_load(pipeline, run, batch_id, seed)
            print(f"load {batch_id}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
