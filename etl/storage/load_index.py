"""Which load made which version, for all loads there ever were, at a bounded cost for each.

Idea: the loads since the last checkpoint stand in the log entries. At a checkpoint they become a small run, sorted by
the hash of the load's id; runs of similar size are merged, as the digits of a binary counter carry. So there are
few runs however many loads, and a load is written about as often as the counter has digits.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from etl.kernels.columns import view
from etl.kernels.hashing import hash_columns
from etl.storage.ports import RunName, RunStore

_SCHEMA = pa.schema(
    [
        pa.field("_hash", pa.uint64(), nullable=False),
        pa.field("load_id", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
    ]
)


class LoadIndex:
    """Finds loads in runs and makes new ones; keeps the runs it has read, which never change."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._blocks: dict[str, pa.RecordBatch] = {}

    def find(self, load_runs: Sequence[RunName], load_id: str) -> int | None:
        """The version that the load made; None when the runs do not hold it."""
        wanted = hash_columns([view(pa.array([load_id]))]).hashes[0]
        self._blocks = {run.name: self._block(run) for run in load_runs}
        for block in reversed(self._blocks.values()):
            hashes = block.column(0).to_numpy()
            for row in range(np.searchsorted(hashes, wanted), np.searchsorted(hashes, wanted, "right")):
                if block.column(1)[row].as_py() == load_id:
                    version: int = block.column(2)[row].as_py()
                    return version
        return None

    def extended(self, load_runs: tuple[RunName, ...], loads: Mapping[str, int], label: str) -> tuple[RunName, ...]:
        """The runs with these loads added; those that were merged are no longer among them."""
        if not loads:
            return load_runs
        ids = pa.array(list(loads), pa.string())
        hashes = pa.array(hash_columns([view(ids)]).hashes)
        batches = [pa.record_batch([hashes, ids, pa.array(list(loads.values()), pa.int64())], schema=_SCHEMA)]
        kept, rows = list(load_runs), len(loads)
        while kept and kept[-1].rows <= 2 * rows:
            merged = kept.pop()
            rows += merged.rows
            batches.append(self._block(merged))
        together = pa.concat_batches(batches)
        order = np.argsort(together.column(0).to_numpy(), kind="stable")
        writer = self._runs.writer(label, _SCHEMA)
        try:
            writer.append(together.take(pa.array(order)))
            return (*kept, writer.seal())
        finally:
            writer.abandon()

    def _block(self, run: RunName) -> pa.RecordBatch:
        if run.name in self._blocks:
            return self._blocks[run.name]
        # The content is compared with its checksum: a wrong answer here would insert a load twice.
        reader = self._runs.open(run)
        try:
            return reader.mapped(0)
        finally:
            reader.close()
