"""Codes of several sets live in one relation and are not confused; what is not known goes where the caller says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from etl.errors import BadInput
from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation
from etl.transforms.code_translation import (
    CODE,
    CODE_KEY,
    CODE_SET,
    CodeColumn,
    Translated,
    UnknownCode,
    UnknownCodesFound,
    translate,
)
from etl.transforms.lookups import Lookups
from tests.transforms.relations import JOINS

CODES = pa.schema([(CODE_SET, pa.string()), (CODE, pa.string()), (CODE_KEY, pa.int64()), ("label", pa.string())])
COUNTRY = CodeColumn("land", "country", gives=[(CODE_KEY, "country_key"), ("label", "country")])
CURRENCY = CodeColumn("money", "currency", gives=[(CODE_KEY, "currency_key")])


def codes() -> Relation:
    rows = pa.record_batch(
        [
            ["country", "country", "currency", "currency"],
            ["se", "no", "se", "eu"],
            [1, 2, 3, 4],
            ["Sweden", "Norway", "Swedish crown", None],
        ],
        schema=CODES,
    )
    return create_memory_relation("codes", CODES, (CODE_SET, CODE), theta=1, batches=[rows])


def rows_with(*lands: str | None) -> pa.Table:
    return pa.table({"land": pa.array(lands, pa.string()), "number": list(range(len(lands)))})


def translated(rows: pa.Table, unknown: UnknownCode, columns: Sequence[CodeColumn] = (COUNTRY,)) -> Translated:
    return translate(rows, columns, codes(), unknown)


def test_a_code_means_what_its_set_says() -> None:
    rows = pa.table({"land": ["no", "se"], "money": ["se", "eu"]})
    answer = translated(rows, UnknownCode.FAIL, [COUNTRY, CURRENCY])
    assert answer.rows.to_pylist() == [
        {"land": "no", "money": "se", "country_key": 2, "country": "Norway", "currency_key": 3},
        {"land": "se", "money": "eu", "country_key": 1, "country": "Sweden", "currency_key": 4},
    ]
    assert answer.quarantined.num_rows == 0


def test_one_column_may_be_translated_by_two_sets() -> None:
    both = [COUNTRY, CodeColumn("land", "currency", gives=[("label", "money")])]
    answer = translated(rows_with("se"), UnknownCode.FAIL, both)
    assert answer.rows.select(["country", "money"]).to_pylist() == [{"country": "Sweden", "money": "Swedish crown"}]


def test_rows_with_an_unknown_code_or_a_null_are_quarantined_as_they_came() -> None:
    rows = rows_with("dk", "se", None, "SE", "", "no")
    answer = translated(rows, UnknownCode.QUARANTINE)
    assert answer.rows.column("number").to_pylist() == [1, 5]
    assert answer.rows.column("country").to_pylist() == ["Sweden", "Norway"]
    assert answer.quarantined.to_pylist() == rows.take([0, 2, 3, 4]).to_pylist()


def test_a_row_needs_all_its_codes() -> None:
    rows = pa.table({"land": ["se", "se", "xx", "xx"], "money": ["se", "xx", "se", "xx"]})
    answer = translated(rows, UnknownCode.QUARANTINE, [COUNTRY, CURRENCY])
    assert answer.rows.select(["land", "money"]).to_pylist() == rows.slice(0, 1).to_pylist()
    assert answer.quarantined.to_pylist() == rows.slice(1).to_pylist()


def test_the_unknown_member_has_the_key_0_and_no_attributes() -> None:
    answer = translated(rows_with("dk", "se", None), UnknownCode.UNKNOWN_MEMBER)
    assert answer.rows.to_pylist() == [
        {"land": "dk", "number": 0, "country_key": 0, "country": None},
        {"land": "se", "number": 1, "country_key": 1, "country": "Sweden"},
        {"land": None, "number": 2, "country_key": 0, "country": None},
    ]
    assert answer.quarantined.num_rows == 0
    assert answer.quarantined.column_names == ["land", "number"]


def test_failing_names_the_column_the_set_and_the_codes() -> None:
    rows = rows_with("se", *(f"x{number}" for number in range(7)), "x0", None)
    with pytest.raises(
        UnknownCodesFound,
        match=r"column 'land': relation codes has no code 'x0', 'x1', 'x2', 'x3', 'x4' in code set 'country' "
        r"\(8 unknown in all\): add them to the relation, or choose another policy than 'fail'",
    ):
        translated(rows, UnknownCode.FAIL)


def test_an_unknown_set_knows_no_code() -> None:
    planets = CodeColumn("land", "planet", gives=[(CODE_KEY, "planet_key")])
    assert translated(rows_with("se", "no"), UnknownCode.QUARANTINE, [planets]).quarantined.num_rows == 2


@pytest.mark.parametrize("unknown", UnknownCode)
def test_rows_in_several_batches_and_no_rows_at_all(unknown: UnknownCode) -> None:
    rows = pa.concat_tables([rows_with("se"), rows_with("no", "se")])
    answer = translated(rows, unknown)
    assert answer.rows.column("country_key").to_pylist() == [1, 2, 1]
    nothing = translated(rows.slice(0, 0), unknown)
    assert (nothing.rows.num_rows, nothing.quarantined.num_rows) == (0, 0)
    assert nothing.rows.schema == answer.rows.schema
    assert translated(rows, unknown, []).rows.equals(rows), "nothing to translate"


@pytest.mark.parametrize("join", JOINS)
def test_every_join_translates_alike(join: str) -> None:
    rows = rows_with(*["se", "dk", "no"] * 500)
    answer = translate(rows, [COUNTRY], codes(), UnknownCode.UNKNOWN_MEMBER, lookups=Lookups(join, 1 << 16))
    assert answer.rows.column("country_key").to_pylist() == [1, 0, 2] * 500


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (CodeColumn("country", "country", [(CODE_KEY, "key")]), "the rows have no column 'country' with codes"),
        (
            CodeColumn("number", "country", [(CODE_KEY, "key")]),
            "'number' of the rows is int64, codes in relation",
        ),
        (CodeColumn("land", "country", [("name", "key")]), "relation codes has no column 'name' beside its key"),
        (CodeColumn("land", "country", [(CODE, "key")]), "relation codes has no column 'code' beside its key"),
        (CodeColumn("land", "country", [("label", "number")]), "would have two columns 'number': let 'land' give"),
    ],
)
def test_a_translation_that_cannot_be_made_is_refused(column: CodeColumn, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        translated(rows_with("se"), UnknownCode.FAIL, [column])
