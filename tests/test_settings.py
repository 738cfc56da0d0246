"""Settings are frozen dataclasses; a wrong name is answered with the right one."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from etl.errors import BadInput
from etl.settings import make_settings, settings_to_json, suggestion


@dataclass(frozen=True)
class Fanning:
    fan_in: int = 8
    policy: str = "adaptive"
    limits: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Nothing:
    pass


def test_given_settings_replace_defaults() -> None:
    assert make_settings(Fanning, {"fan_in": 4}, owner="pmj") == Fanning(fan_in=4, policy="adaptive")
    assert make_settings(Nothing, {}, owner="pmj") == Nothing()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fan_out", "pmj has no setting 'fan_out': did you mean 'fan_in'?"),
        ("colour", "pmj has no setting 'colour': it takes 'fan_in', 'policy', 'limits'"),
    ],
)
def test_an_unknown_setting_is_named_with_a_remedy(name: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        make_settings(Fanning, {"fan_in": 4, name: 1}, owner="pmj")
    assert str(refusal.value) == message


def test_an_owner_without_settings_says_so() -> None:
    with pytest.raises(BadInput, match="symmetric-hash has no setting 'fan_in': it takes none"):
        make_settings(Nothing, {"fan_in": 4}, owner="symmetric-hash")


def test_settings_survive_json() -> None:
    stored = json.loads(json.dumps(settings_to_json(Fanning(fan_in=3))))
    assert stored == {"fan_in": 3, "policy": "adaptive", "limits": [1, 2]}


def test_a_suggestion_is_the_nearest_name_or_all() -> None:
    assert suggestion("hash-partition", ["hash-partitioned", "symmetric-hash"]) == ": did you mean 'hash-partitioned'?"
    assert suggestion("zzz", ["one", "two"]) == ": it takes 'one', 'two'"
    assert suggestion("zzz", []) == ": it takes none"
