"""Two processes that look after one relation: neither stumbles over what the other has just dropped."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from etl.errors import CommitRace
from etl.storage.lookup_store import create_relation, open_relation

SCHEMA = pa.schema([("number", pa.int64())])


def test_versions_are_listed_and_dropped_while_another_process_drops_them(tmp_path: Path) -> None:
    folder = tmp_path / "numbers"
    create_relation(folder, "numbers", SCHEMA, ("number",))
    context = get_context("spawn")
    keepers = [context.Process(target=_append_and_drop, args=(folder, name)) for name in ("one", "two")]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join(60)
    assert [keeper.exitcode for keeper in keepers] == [0, 0]
    newest = open_relation(folder)
    newest.verify()
    assert newest.rows == 2 * _LOADS


_LOADS = 40


def _append_and_drop(folder: Path, name: str) -> None:
    relation = open_relation(folder)
    for load in range(_LOADS):
        number = 2 * load + (name == "two")
        while True:
            relation = relation.at()
            try:
                relation = relation.append(pa.table({"number": [number]}, schema=SCHEMA), f"{name} {load}", 0)
            except CommitRace:
                continue
            break
        relation = relation.compact()
        relation.describe()
        relation.drop_versions(keep=8)
