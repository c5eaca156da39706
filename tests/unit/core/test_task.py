"""Values of the core: tasks, groups and their options, facts, policies, errors and what they hide."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.core import errors
from graflow_ckpt.core.errors import (
    BadSessionId,
    CheckpointError,
    CheckpointNotFound,
    GraflowError,
    GraphError,
    Interrupted,
    NotStorable,
    SessionBusy,
    TaskTimeout,
    UnknownTask,
)
from graflow_ckpt.core.events import Event
from graflow_ckpt.core.facts import NO_EFFECTS, Done, Effects, Live, TaskSpec, check_session_id
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
from graflow_ckpt.core.redaction import HIDDEN, redacted, redacted_argv
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


# --- facts ----------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["a", "nightly-2", "A_z-0", "x" * 64])
def test_a_session_id_is_given_back(session: str) -> None:
    assert check_session_id(session) == session


@pytest.mark.parametrize("session", ["", "..", "a/b", "../x", "a.b", "a b", "ä", "a\n", "x" * 65, "a\0"])
def test_what_could_leave_the_folder_is_no_session_id(session: str) -> None:
    with pytest.raises(BadSessionId, match=r"is not a session id\. Use 1 to 64 letters") as caught:
        check_session_id(session)

    assert caught.value.session == session


def test_a_spec_is_a_frozen_value() -> None:
    spec = TaskSpec("a")

    with pytest.raises(AttributeError):
        spec.task_id = "b"  # type: ignore[misc]
    assert spec == TaskSpec("a", None, "pending")


def test_a_body_that_asks_for_nothing_has_no_effects() -> None:
    assert Done(b"\xc0").effects is NO_EFFECTS
    assert Effects() == NO_EFFECTS


# --- cells ------------------------------------------------------------------------------


def test_a_box_shows_the_kind_of_its_value_and_never_the_value() -> None:
    assert repr(Live({"password": "secret"})) == "Live(dict)"


def test_two_boxes_are_two_even_around_one_object() -> None:
    shared = object()

    assert Live(shared) != Live(shared)
    assert Live(b"\x01") != b"\x01"


# --- events -----------------------------------------------------------------------------


def test_an_event_cannot_be_changed() -> None:
    event = Event("task_ended", "s", 1.0, 3, "a", {"outcome": "done"})

    with pytest.raises(FrozenInstanceError):
        event.step = 4  # type: ignore[misc]


def test_two_events_do_not_share_their_facts() -> None:
    first, second = Event("session_started", "s", 0.0, 0), Event("session_started", "s", 0.0, 0)

    first.facts["pending"] = 1

    assert second.facts == {}


# --- policies -------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("policy", "since", "due"),
    [
        (OnRequest(), Since(100, 1e9, True), False),
        (EveryN(2), Since(1, 0.0, False), False),
        (EveryN(2), Since(2, 0.0, False), True),
        (EveryN(2), Since(3, 0.0, False), True),
        (EverySeconds(30), Since(5, 29.9, True), False),  # the age of the last cut
        (EverySeconds(30), Since(1, 30.0, False), True),
        (WhenIdle(), Since(5, 0.0, False), False),  # the end of a wave
        (WhenIdle(), Since(5, 0.0, True), True),
    ],
)
def test_a_policy_is_due_or_not(policy: Policy, since: Since, due: bool) -> None:
    assert policy.due(since) is due


def test_a_policy_says_how_it_is_to_be_asked() -> None:
    asked = [
        (policy.watches, policy.period) for policy in (OnRequest(), EveryN(2), EverySeconds(30), WhenIdle())
    ]

    assert asked == [(False, None), (True, None), (True, 30), (True, None)]
    assert EveryTask() == EveryN(1)


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


def test_policies_that_mean_nothing_are_refused() -> None:
    with pytest.raises(GraphError, match="at least one step"):
        EveryN(0)
    with pytest.raises(GraphError, match="not a positive number"):
        EverySeconds(0)


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


# --- errors, and what they hide -------------------------------------------------------


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GraflowError)]


def test_the_text_is_what_happened_and_then_what_to_do() -> None:
    error = GraflowError("The disk is full.", hint="Make room.", path="x")

    assert str(error) == "The disk is full. Make room."
    assert str(GraflowError("The disk is full.")) == "The disk is full."


def test_what_a_terminal_would_obey_is_not_in_the_text() -> None:
    error = CheckpointError(
        "key \x1b[2J\r of\u202e a\nb\tc é 👩\u200d💻", hint="on \x9b0m\x7f", host="\x1b[2J"
    )

    assert str(error) == "key ?[2J? of? a\nb\tc é 👩\u200d💻 on ?0m?"
    assert error.host == "\x1b[2J"
    assert error.args == (error.message,)


def test_ids_are_attributes() -> None:
    error = SessionBusy("busy", session="s", owner=7)

    assert (error.session, error.owner) == ("s", 7)


def test_an_id_that_was_not_given_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'SessionBusy' has no attribute 'task'"):
        _ = SessionBusy("busy", session="s").task


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_crosses_a_process_boundary_whole(kind: type[GraflowError]) -> None:
    error = kind("It broke.", hint="Mend it.", task="a", numbers=[1, 2])

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is kind
    assert str(back) == str(error) == "It broke. Mend it."
    assert (back.task, back.numbers, back.hint) == ("a", [1, 2], "Mend it.")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (CheckpointError, ValueError),
        (CheckpointNotFound, FileNotFoundError),
        (NotStorable, TypeError),
        (GraphError, ValueError),
        (UnknownTask, KeyError),
        (TaskTimeout, TimeoutError),
        (errors.BadSessionId, ValueError),
    ],
)
def test_kinds_are_also_what_python_calls_them(kind: type[GraflowError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("It broke.")


def test_an_interrupted_session_asks_its_restarter_to_try_again() -> None:
    error = Interrupted("stopped at step 3", "s")

    assert (error.code, error.session, str(error)) == (75, "s", "stopped at step 3")
    assert not isinstance(error, Exception)  # nobody swallows it by accident


# --- secrets ----------------------------------------------------------------------------


NAMES = """password db_password PASSWD secret client-secret token access_token accessToken api_key apiKey
X.Api-Key tokens token_id tokenIds Authorization credentials session_cookie pass private-key"""


@pytest.mark.parametrize("name", NAMES.split())
def test_values_of_keys_that_name_secrets_are_hidden(name: str) -> None:
    assert redacted({name: "hunter2"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["epoch", "loss", "passed", "compass", "author", "spinner", "keyboard", "path", "tokenizer"],
)
def test_other_values_are_shown(name: str) -> None:
    assert redacted({name: "visible"}) == {name: "visible"}


def test_secrets_deep_inside_and_in_urls_are_hidden() -> None:
    found = redacted({"db": [{"password": ["a", "b"]}, "postgres://me:hunter2@host/x"], "n": 1})

    assert found == {"db": [{"password": HIDDEN}, f"postgres://me:{HIDDEN}@host/x"], "n": 1}


def test_an_empty_secret_is_seen_to_be_empty() -> None:
    assert redacted({"token": None, "password": ""}) == {"token": None, "password": ""}


def test_arguments_after_the_name_of_a_secret_are_hidden() -> None:
    argv = "train.py --password hunter2 --token=abc --epochs 3 --api-key --verbose x"

    assert redacted_argv(argv.split()) == [
        "train.py", "--password", HIDDEN, f"--token={HIDDEN}", "--epochs", "3", "--api-key", "--verbose", "x",
    ]  # fmt: skip


def test_a_number_of_tokens_is_no_secret() -> None:
    counts = {"tokens": 7, "token_ids": 7.5, "token": 7}

    assert redacted(counts) == counts
    assert redacted({"pin": 1234}) == {"pin": HIDDEN}
