"""The stream of the resolve benchmark as files: orders whose customers a relation of `key_streams` holds, or not.

A micro-batch is a few Parquet files of equal size, so that Spark reads it with all its cores. A file's name sorts by
its place in the stream, and its time of change follows the name, because Spark takes files in the order of their times.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.key_streams import Digest, KeyStream

FILES_PER_BATCH = 2
_FIRST_MICROSECOND = 1_767_225_600_000_000
MONEY = pa.decimal128(12, 2)


class OrderStream(NamedTuple):
    """Micro-batches of orders in a folder."""

    folder: Path
    keys: KeyStream
    batch_rows: int
    batches: int

    def write(self) -> None:
        """All files, unless they are there."""
        done = self.folder / "_done"
        if done.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, batch in enumerate(self.keys.batches(self.batch_rows, self.batches)):
            orders = _orders(batch.rows)
            step = self.batch_rows // FILES_PER_BATCH
            for part in range(FILES_PER_BATCH):
                path = self.folder / f"batch-{number:04d}-{part}.parquet"
                rows = orders.slice(part * step, step if part < FILES_PER_BATCH - 1 else None)
                pq.write_table(rows, path, compression="snappy")
                instant = 1_000_000_000 + FILES_PER_BATCH * number + part
                os.utime(path, (instant, instant))
        done.touch()

    def expected(self) -> Digest:
        """What all rows together should be answered, 0 standing for a miss."""
        right = Digest()
        for batch in self.keys.batches(self.batch_rows, self.batches):
            right = right.plus(batch.expected)
        return right


def _orders(asked: pa.RecordBatch) -> pa.Table:
    row = asked.column("row")
    number = row.to_numpy()
    instant = pa.array(number * 1_000 + _FIRST_MICROSECOND).cast(pa.timestamp("us", "UTC"))
    amount = pa.array(number % 90_000 + 1_000, pa.int64()).cast(pa.decimal128(19, 0))
    amount = pc.divide(amount, pa.scalar(100, pa.decimal128(3, 0))).cast(MONEY, safe=False)
    return pa.table(
        {
            "source": asked.column("source"),
            "key": asked.column("key"),
            "row": row,
            "source_system": pc.binary_join_element_wise("s", asked.column("source").cast(pa.string()), ""),
            "order_no": pc.utf8_lpad(row.cast(pa.string()), 12, "0"),
            "payment_no": pc.utf8_lpad(row.cast(pa.string()), 13, "P"),
            "quantity": pa.array((number % 9 + 1).astype(np.int32)),
            "amount": amount,
            "paid_amount": amount,
            "ordered_at": instant,
            "paid_at": instant,
        }
    )
