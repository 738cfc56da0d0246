"""Codes of several sets live in one relation and are not confused."""

from __future__ import annotations

import pyarrow as pa

from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.code_translation import CODE, CODE_SET, translate

CODES = pa.schema([(CODE_SET, pa.string()), (CODE, pa.string()), ("code_key", pa.int64()), ("label", pa.string())])


def codes() -> Relation:
    rows = pa.record_batch(
        [["country", "country", "currency"], ["se", "no", "se"], [1, 2, 3], ["Sweden", "Norway", "Swedish crown"]],
        schema=CODES,
    )
    return create_memory_relation("codes", CODES, (CODE_SET, CODE), segments=2, batches=[rows])


def test_a_code_means_what_its_set_says() -> None:
    rows = pa.table({"land": ["no", "se", "se"]})
    assert translate(rows, "land", "country", codes()).found.column("label").to_pylist() == [
        "Norway",
        "Sweden",
        "Sweden",
    ]
    in_currencies = translate(rows, "land", "currency", codes())
    assert in_currencies.found.to_pylist() == [
        {"code_key": None, "label": None},
        {"code_key": 3, "label": "Swedish crown"},
        {"code_key": 3, "label": "Swedish crown"},
    ]
    assert in_currencies.known.to_pylist() == [False, True, True]


def test_an_unknown_code_a_null_and_an_unknown_set_give_nulls() -> None:
    rows = pa.table({"land": pa.array(["dk", None, "SE", ""], pa.string())})
    for code_set in ("country", "planet"):
        answer = translate(rows, "land", code_set, codes())
        assert answer.known.to_pylist() == [False] * 4
        assert answer.found.column("code_key").to_pylist() == [None] * 4


def test_rows_in_several_batches_and_no_rows_at_all() -> None:
    rows = pa.concat_tables([pa.table({"land": ["se"]}), pa.table({"land": ["no", "se"]})])
    assert translate(rows, "land", "country", codes()).found.column("code_key").to_pylist() == [1, 2, 1]
    assert translate(rows.slice(0, 0), "land", "country", codes()).found.num_rows == 0
