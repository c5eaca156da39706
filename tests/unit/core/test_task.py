"""Tasks, groups and their options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.task import All, AtLeast, Backoff, BestEffort, Group, Options, Task


@given(
    st.floats(0, 1e6),
    st.floats(1, 4),
    st.floats(0, 1e4),
    st.floats(0, 1),
    st.integers(0, 50),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_stays_within_its_jitter_of_a_limited_power(
    base: float, factor: float, limit: float, jitter: float, retries: int, spread: float
) -> None:
    delay = Backoff(base, factor, limit, jitter).delay(retries, spread)

    plain = min(limit, base * factor**retries)
    assert plain * (1 - jitter) - 1e-6 <= delay <= plain * (1 + jitter) * (1 + 1e-12)
    assert delay >= 0


def test_a_delay_doubles_with_each_retry_up_to_the_limit() -> None:
    backoff = Backoff(1.0, limit=5.0, jitter=0.0)

    assert [backoff.delay(n, 0.5) for n in range(4)] == [1, 2, 4, 5]


def test_a_task_may_retry_for_ever_without_an_overflow() -> None:
    assert Backoff(1.0, jitter=0.0).delay(5000, 0.5) == 300.0
    assert Backoff(0.0).delay(5000, 0.5) == 0.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_interrupted": "rerum"}, "on_interrupted='rerum' is none of rerun, skip, fail, ask"),
        ({"isolation": "fiber"}, "isolation='fiber' is neither thread nor process"),
        ({"max_retries": -1}, "max_retries: -1 is not a whole number from 0 on"),
        ({"timeout": 0}, "timeout: 0 is not a finite number above 0"),
        ({"max_cycles": 0}, "max_cycles: 0 is not a whole number from 1 on"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        Options(**options)


def test_options_at_their_limits_are_taken() -> None:
    options = Options(max_retries=0, timeout=0.001, max_cycles=1, on_interrupted="ask", isolation="process")

    assert options.max_cycles == 1


def test_a_renamed_task_keeps_its_body_and_adds_its_arguments() -> None:
    first = Task("a", len, arguments={"x": 1, "y": 1})

    second = first.renamed("b", {"y": 2})

    assert (second.name, second.task_id, second.func) == ("b", "b", len)
    assert second.arguments == {"x": 1, "y": 2}
    assert first.arguments == {"x": 1, "y": 1}


def test_two_tasks_are_the_same_only_if_they_are_one() -> None:
    assert Task("a", len) != Task("a", len)


def test_policies_say_what_a_gate_needs() -> None:
    assert (All().need(3), BestEffort().need(3), AtLeast(2).need(3)) == (0, -1, 2)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_nothing_is_refused(count: int) -> None:
    with pytest.raises(GraphError, match="asks for nothing; use BestEffort"):
        AtLeast(count)


def test_a_policy_that_can_never_be_met_is_refused() -> None:
    with pytest.raises(GraphError, match=r"AtLeast\(3\) in a group of 2 can never be met"):
        AtLeast(3).need(2)


def test_a_group_is_called_by_its_name() -> None:
    assert Group("g", All(), ("a",), frozenset({"a"})).task_id == "g"


@pytest.mark.parametrize(
    "wrong", [{"base": -1}, {"factor": 0.5}, {"limit": -1}, {"jitter": 1.5}, {"jitter": -0.1}]
)
def test_a_backoff_that_makes_no_delays_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(GraphError, match="makes no delays"):
        Backoff(**wrong)
