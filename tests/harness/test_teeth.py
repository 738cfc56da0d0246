"""The harness has teeth: a sound operator passes every suite, and each broken one is caught by its suite."""

from __future__ import annotations

import pytest

from tests.harness.broken import BROKEN
from tests.harness.flush_all import FlushAll, entered
from tests.harness.subjects import Check, Subject, prove
from tests.harness.suites import SUITES


@pytest.mark.parametrize("suite", SUITES)
def test_a_sound_operator_that_spills_passes(suite: str) -> None:
    with entered(FlushAll) as name:
        for check in SUITES[suite]:
            prove(check, Subject(name), examples=40)


@pytest.mark.parametrize(
    ("suite", "broken"), [(suite, operator) for suite, operators in BROKEN.items() for operator in operators]
)
def test_a_broken_operator_is_caught(suite: str, broken: type[FlushAll]) -> None:
    with entered(broken) as name:
        caught = any(_fails(check, name) for check in SUITES[suite])
    assert caught, f"{suite} let {broken.__name__} pass"


def _fails(check: Check, name: str) -> bool:
    try:
        prove(check, Subject(name), examples=150, shrink=False)
    except Exception:  # any failure of the suite counts, an assertion or an error on the way
        return True
    return False
