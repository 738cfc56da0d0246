"""What the tests of the transforms share: the customers of two source systems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from etl.storage.memory_relation import create_memory_relation
from etl.storage.relation import Relation

STREAM = pa.schema([("source", pa.string()), ("nr", pa.int64()), ("amount", pa.int64())])
CUSTOMER = pa.schema([("system", pa.string()), ("number", pa.int64()), ("customer_key", pa.int64())])
ON = [("source", "system"), ("nr", "number")]

NaturalKey = tuple[str | None, int | None]


JOINS = ("auto", "hash-partitioned", "meshjoin")


def customers(others: int = 0) -> Relation:
    """Nobody, or so many customers of another system, in segments of one or two."""
    columns = [["elsewhere"] * others, list(range(others)), list(range(1, others + 1))]
    known = pa.record_batch(columns, schema=CUSTOMER)
    return create_memory_relation(
        "customer", CUSTOMER, ("system", "number"), [known], theta=1, highest="customer_key" if others else 0
    )


def load_of(keys: Sequence[NaturalKey], cuts: Sequence[int] = ()) -> pa.Table:
    """A load of these keys, its amounts counted up, in batches cut at these rows."""
    sources, numbers = [key[0] for key in keys], [key[1] for key in keys]
    table = pa.table([sources, numbers, list(range(len(keys)))], schema=STREAM)
    edges = [0, *sorted(cut % (len(keys) + 1) for cut in cuts), len(keys)]
    pieces = [table.slice(start, end - start) for start, end in pairwise(edges)]
    return pa.concat_tables(pieces)
