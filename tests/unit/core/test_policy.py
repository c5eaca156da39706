"""Policies: when the engine cuts by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.policy import (
    Budget,
    EveryN,
    EverySeconds,
    EveryTask,
    OnRequest,
    Policy,
    Since,
    WhenIdle,
)

sinces = st.builds(Since, st.integers(0, 5), st.floats(0, 100), st.booleans())
policies = st.one_of(
    st.just(OnRequest()),
    st.builds(EveryN, st.integers(1, 5)),
    st.builds(EverySeconds, st.floats(0.1, 100)),
    st.just(WhenIdle()),
    st.builds(Budget, st.floats(0.01, 1), st.floats(0, 5)),
)


@given(policies, sinces)
def test_nothing_new_is_never_cut_again(policy: Policy, since: Since) -> None:
    assert not policy.due(since._replace(steps=0))


def test_on_request_never_cuts_by_itself() -> None:
    assert not OnRequest().due(Since(100, 1e9, True))
    assert not OnRequest().watches


def test_every_n_counts_steps() -> None:
    assert [EveryN(2).due(Since(n, 0.0, False)) for n in range(4)] == [False, False, True, True]
    assert EveryTask() == EveryN(1)
    assert EveryN(2).watches


def test_every_seconds_looks_at_the_age_of_the_last_cut() -> None:
    policy = EverySeconds(30)

    assert not policy.due(Since(5, 29.9, True))
    assert policy.due(Since(1, 30.0, False))
    assert policy.period == 30


def test_when_idle_waits_for_the_end_of_a_wave() -> None:
    assert not WhenIdle().due(Since(5, 0.0, False))
    assert WhenIdle().due(Since(5, 0.0, True))
    assert WhenIdle().period is None


@given(st.lists(policies, min_size=2, max_size=4), sinces)
def test_combined_policies_are_due_when_any_of_them_is(members: list[Policy], since: Since) -> None:
    combined = members[0]
    for member in members[1:]:
        combined = combined | member

    assert combined.due(since) == any(member.due(since) for member in members)
    assert combined.watches == any(member.watches for member in members)
    periods = [member.period for member in members if member.period is not None]
    assert combined.period == (min(periods) if periods else None)


def test_a_policy_of_ones_own_has_to_say_when_it_is_due() -> None:
    with pytest.raises(NotImplementedError):
        Policy().due(Since(1, 1.0, True))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EveryN(0), "at least one step"),
        (lambda: EverySeconds(0), "not a positive number"),
    ],
)
def test_policies_that_mean_nothing_are_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(GraphError, match=words):
        make()


def test_a_budget_is_a_share_of_the_time_and_a_credit_for_what_was_never_saved() -> None:
    budget = Budget(0.05, credit=2)
    again = Since(1, 1.0, False, elapsed=100.0, spent=4.0, cost=2.0, first=False)

    assert not budget.due(again)
    assert budget.left(again) == pytest.approx(20)
    assert budget.due(again._replace(elapsed=120.0))
    assert budget.due(again._replace(first=True))
    assert not budget.due(again._replace(first=True, exposed=False))
    assert budget.left(again._replace(exposed=False)) is None


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 2)), max_size=50))
def test_saving_takes_no_more_than_the_budget(rounds: list[tuple[float, float]]) -> None:
    """Each round works for a while, and what a save then takes is known from the one before at most."""
    budget, elapsed, spent, cost, dearest = Budget(0.05, credit=2), 0.0, 0.0, 0.0, 0.0
    for work, takes in rounds:
        elapsed += work
        if budget.due(Since(1, 1.0, False, elapsed, spent, cost)):
            spent, cost, elapsed, dearest = spent + takes, takes, elapsed + takes, max(dearest, takes)

    assert spent <= 0.05 * elapsed + 2 + dearest


@pytest.mark.parametrize("wrong", [(0,), (-1,), (1.5,), (0.05, -1), (float("nan"),), (0.05, float("nan"))])
def test_a_budget_that_cannot_be_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(GraphError, match="Budget"):
        Budget(*wrong)
