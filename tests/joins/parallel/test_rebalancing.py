"""Suppliers, consumers and neutrals; which group moves; when slots come and go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import BadInput
from etl.joins.parallel.partition_groups import Placement
from etl.joins.parallel.rebalancing import GroupLoad, Move, Rebalancing, occupancies, reorganise

FIXED_TO_TWO = Rebalancing(fewest_slots=2, most_slots=2)


def loads(*works: float) -> list[GroupLoad]:
    return [GroupLoad(group, work) for group, work in enumerate(works)]


def test_slots_are_classified_by_their_groups_loads_together() -> None:
    placement = Placement(5, 3, (0, 0, 1, 2, 2))
    outcome = reorganise(placement, loads(0.3, 0.3, 0.4, 0.0, 0.005), Rebalancing())
    assert (outcome.suppliers, outcome.neutrals, outcome.consumers) == ((0,), (1,), (2,))


def test_a_supplier_yields_the_one_group_that_evens_the_two_slots_out() -> None:
    outcome = reorganise(Placement(4, 2, (0, 0, 0, 1)), loads(0.5, 0.3, 0.1, 0.0), FIXED_TO_TWO)
    assert outcome.moves == (Move(0, 0, 1),)  # 0.4 against 0.5 is closer than 0.6 against 0.3
    assert occupancies(outcome.placement, loads(0.5, 0.3, 0.1, 0.0)) == pytest.approx((0.4, 0.5))


def test_a_hot_group_ends_up_alone_and_rests() -> None:
    works = loads(2.0, 0.1, 0.1)
    outcome = reorganise(Placement(3, 2, (0, 0, 0)), works, FIXED_TO_TWO)
    assert outcome.placement.slot_of == (1, 0, 0)
    assert reorganise(outcome.placement, works, FIXED_TO_TWO).moves == ()


def test_a_group_that_would_only_carry_the_overload_elsewhere_stays() -> None:
    settings = Rebalancing(consume_threshold=0.3, fewest_slots=2, most_slots=2)
    outcome = reorganise(Placement(3, 2, (0, 0, 1)), loads(2.0, 0.1, 0.25), settings)
    assert [move.group for move in outcome.moves] == [1]  # 2.0 on top of 0.25 would be worse than now


def test_the_only_group_of_a_supplier_does_not_move() -> None:
    outcome = reorganise(Placement(2, 2, (0, 1)), loads(2.0, 0.0), FIXED_TO_TWO)
    assert outcome.moves == ()
    assert outcome.suppliers == (0,)


def test_the_most_loaded_supplier_yields_to_the_least_loaded_consumer() -> None:
    placement = Placement(8, 4, (0, 0, 1, 1, 2, 2, 3, 3))
    works = loads(0.4, 0.4, 0.6, 0.6, 0.0, 0.001, 0.0, 0.0)
    outcome = reorganise(placement, works, Rebalancing(most_slots=4))
    assert outcome.moves == (Move(2, 1, 3), Move(0, 0, 2))


def test_a_random_choice_is_fixed_by_the_epoch() -> None:
    placement, works = Placement(40, 2, (0,) * 39 + (1,)), loads(*[0.05] * 39, 0.0)
    settings = Rebalancing(fewest_slots=2, most_slots=2, choose="random")
    chosen = [reorganise(placement, works, settings, epoch).moves for epoch in range(20)]
    assert chosen == [reorganise(placement, works, settings, epoch).moves for epoch in range(20)]
    assert len(set(chosen)) > 5


def test_a_supplier_may_yield_several_groups_as_long_as_it_is_one() -> None:
    placement, works = Placement(20, 2, (0,) * 20), loads(*[0.05] * 20)
    settings = Rebalancing(fewest_slots=2, most_slots=2, yielded_groups=100)
    outcome = reorganise(placement, works, settings)
    assert len(outcome.moves) in (10, 11)  # down to the threshold of 0.5, and not beyond
    assert max(occupancies(outcome.placement, works)) == pytest.approx(0.5, abs=0.06)


def test_slots_grow_when_suppliers_outnumber_their_share_of_consumers() -> None:
    placement = Placement(6, 3, (0, 0, 1, 1, 2, 2))
    outcome = reorganise(placement, loads(0.3, 0.3, 0.2, 0.2, 0.0, 0.0), Rebalancing(growth_share=0.5))
    assert outcome.placement.slots == 4  # one supplier against half a consumer
    assert "grow to 4" in outcome.reason
    kept = reorganise(placement, loads(0.3, 0.3, 0.0, 0.0, 0.0, 0.0), Rebalancing(growth_share=0.5))
    assert kept.placement.slots == 3  # one supplier, two consumers: 1 > 0.5 x 2 does not hold
    assert len(kept.moves) == 1


def test_a_new_slot_takes_a_group_at_once() -> None:
    outcome = reorganise(Placement(4, 1, (0, 0, 0, 0)), loads(0.3, 0.3, 0.3, 0.3), Rebalancing())
    assert outcome.placement.slots == 2
    assert outcome.moves == (Move(0, 0, 1),)


def test_slots_shrink_when_there_is_no_supplier_and_their_groups_are_spread() -> None:
    placement = Placement(6, 3, (0, 1, 2, 2, 2, 0))
    outcome = reorganise(placement, loads(0.05, 0.2, 0.1, 0.05, 0.01, 0.05), Rebalancing())
    assert outcome.placement.slots == 2
    assert outcome.moves == (Move(2, 2, 0), Move(3, 2, 1), Move(4, 2, 0))
    assert "shrink to 2" in outcome.reason


def test_slots_do_not_shrink_into_an_overload() -> None:
    """Four slots at 0.4 are three at 0.53: they would come straight back."""
    outcome = reorganise(Placement.even(4, 4), loads(0.4, 0.4, 0.4, 0.4), Rebalancing())
    assert outcome.placement.slots == 4
    assert "would all be suppliers" in outcome.reason


@pytest.mark.parametrize(("fewest", "most", "slots"), [(4, 9, 4), (1, 2, 2), (3, 3, 3)])
def test_bounds_of_the_slots_hold_at_once(fewest: int, most: int, slots: int) -> None:
    outcome = reorganise(Placement.even(12, 3), loads(*[0.1] * 12), Rebalancing(fewest_slots=fewest, most_slots=most))
    assert outcome.placement.slots == slots


def test_a_skewed_load_settles() -> None:
    """Works as of a b-model of 0.7: after some epochs no slot is a supplier and nothing moves any more."""
    works = loads(*[0.7 ** (6 - ones) * 0.3**ones * 2.4 for ones in (bin(group).count("1") for group in range(64))])
    placement = Placement.even(64, 8)
    settings = Rebalancing(consume_threshold=0.32, fewest_slots=8, most_slots=8)
    before = max(occupancies(placement, works))
    for epoch in range(30):
        outcome = reorganise(placement, works, settings, epoch)
        placement = outcome.placement
    assert before > 0.5
    assert max(occupancies(placement, works)) <= 0.5
    assert outcome.moves == ()


WORKS = st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    works=WORKS,
    slots=st.integers(1, 10),
    step=st.integers(1, 3),
    epoch=st.integers(0, 5),
    choose=st.sampled_from(["fitting", "random"]),
)
def test_what_always_holds(works: Sequence[float], slots: int, step: int, epoch: int, choose: str) -> None:
    placement = Placement.even(len(works), slots)
    settings = Rebalancing(growth_step=step, most_slots=12, choose=choose)  # type: ignore[arg-type]
    outcome = reorganise(placement, loads(*works), settings, epoch)
    assert sorted([*outcome.suppliers, *outcome.consumers, *outcome.neutrals]) == list(range(slots))
    replayed = list(placement.slot_of)
    for move in outcome.moves:
        assert replayed[move.group] == move.source
        replayed[move.group] = move.target
    assert tuple(replayed) == outcome.placement.slot_of
    grown = outcome.placement.slots >= slots
    if grown:
        sources = [move.source for move in outcome.moves]
        assert len(sources) == len(set(sources)), "a supplier yields one group"
        assert set(sources) <= set(outcome.suppliers)
        if choose == "fitting":
            worst = max(occupancies(placement, loads(*works)))
            assert max(occupancies(outcome.placement, loads(*works))) <= worst + 1e-9
    assert outcome.placement.slots <= min(12, len(works))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"supply_threshold": 0.1, "consume_threshold": 0.2}, "consume_threshold 0.2 and supply_threshold 0.1"),
        ({"growth_share": 1.0}, "growth_share is 1.0"),
        ({"fewest_slots": 3, "most_slots": 2}, "fewest_slots 3, most_slots 2"),
        ({"growth_step": 0}, "growth_step is 0"),
        ({"choose": "best"}, "choose is 'best'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Rebalancing(**settings)  # type: ignore[arg-type]


def test_a_load_of_an_unknown_group_is_refused() -> None:
    with pytest.raises(BadInput, match="a load names group 9"):
        reorganise(Placement.even(2, 1), [GroupLoad(9, 0.1)], Rebalancing())


def test_reorganisation_is_due_at_the_end_of_its_epoch() -> None:
    assert [epoch for epoch in range(25) if Rebalancing().due(epoch)] == [9, 19]
