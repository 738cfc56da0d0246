"""Every operator of the catalogue through every suite of the harness."""

from __future__ import annotations

import pytest

from tests.harness.subjects import Check, Subject, prove, subjects
from tests.harness.suites import SUITES

CHECKS = [pytest.param(check, id=f"{suite}-{check.__name__}") for suite, checks in SUITES.items() for check in checks]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_operator(subject: Subject, check: Check) -> None:
    prove(check, subject)
