"""Coded-value translation: several code sets in one relation, keyed by (code set, code).

A code that the relation does not know gives nulls: the caller decides whether its row is quarantined, goes to the
unknown member or ends the load.
"""

from __future__ import annotations

import pyarrow as pa

from etl.storage.ports import RelationView
from etl.transforms.new_rows import LookedUp, look_up

CODE_SET = "code_set"
CODE = "code"


def translate(rows: pa.Table, column: str, code_set: str, codes: RelationView) -> LookedUp:
    """What the relation holds for each row's code in this code set."""
    asked = pa.table({CODE_SET: pa.repeat(pa.scalar(code_set, pa.string()), rows.num_rows), CODE: rows.column(column)})
    return look_up(asked, codes, [(CODE_SET, CODE_SET), (CODE, CODE)])
