"""Words of the command line, and facts as words."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from graflow_ckpt.cli import words
from graflow_ckpt.core.policy import Either, EveryN, EverySeconds, Policy
from graflow_ckpt.links.addresses import parse

CONTEXT = click.Context(click.Command("test"))
PARAMETER = click.Option(["--test"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=1", 1), ("k=1.5", 1.5), ("k=true", True), ("k=null", None), ('k={"a": [1]}', {"a": [1]}),
        ("k=text", "text"), ("k=", ""), ("k=a=b", "a=b"), ('k="1"', "1"), ("k=[1", "[1"),
    ],
)  # fmt: skip
def test_an_input_is_json_if_it_parses_and_text_if_not(text: str, value: object) -> None:
    assert words.parse_inputs(CONTEXT, PARAMETER, [text]) == {"k": value}


@pytest.mark.parametrize("given", [["k"], ["=1"], ["k=1", "k=2"]])
def test_an_input_without_a_name_or_given_twice_is_refused(given: list[str]) -> None:
    with pytest.raises(click.BadParameter):
        words.parse_inputs(CONTEXT, PARAMETER, given)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ([], None),
        (["10"], EveryN(10)),
        (["30s"], EverySeconds(30)),
        (["1.5m"], EverySeconds(90)),
        (["2h"], EverySeconds(7200)),
        (["250ms"], EverySeconds(0.25)),
        (["10", "30s"], Either((EveryN(10), EverySeconds(30)))),
    ],
)
def test_every_is_parsed_into_policies_that_combine(given: list[str], policy: Policy | None) -> None:
    assert words.parse_every(CONTEXT, PARAMETER, given) == policy


@pytest.mark.parametrize("item", ["0", "0s", "-1", "1.5", "10x", "s", ""])
def test_every_refuses_what_is_neither_steps_nor_time(item: str) -> None:
    with pytest.raises(click.BadParameter):
        words.parse_every(CONTEXT, PARAMETER, [item])


@pytest.mark.parametrize("given", ["7", " 7 ", "7.5", "soon", "", "7 d", "-7d"])
def test_after_what_time_something_is_deleted_needs_a_unit(given: str) -> None:
    with pytest.raises(click.BadParameter, match=r"expected a number and a unit, such as 90s or 7d"):
        words.parse_age(CONTEXT, PARAMETER, given)


def test_an_age_with_a_unit_is_one() -> None:
    given = ("7d", " 1.5h", "0s", None)
    assert [words.parse_age(CONTEXT, PARAMETER, text) for text in given] == [604_800.0, 5400.0, 0.0, None]


@pytest.mark.parametrize("given", [["10"], ["30s"], ["1.5m", "7"], ["1", "2", "3s"]])
def test_a_policy_can_be_typed_again(given: list[str]) -> None:
    policy = words.parse_every(CONTEXT, PARAMETER, given)
    assert policy is not None

    again = words.policy_of(words.policy_text(policy))

    assert again is not None
    assert words.policy_text(again) == words.policy_text(policy)
    assert again.period == policy.period


def test_answers_name_a_task_and_what_to_do_with_it() -> None:
    assert words.parse_answers(CONTEXT, PARAMETER, ["pay=skip", "a=b=rerun"]) == (
        ("pay", "skip"),
        ("a=b", "rerun"),
    )


@pytest.mark.parametrize("item", ["pay", "pay=maybe", "=skip"])
def test_an_answer_that_is_none_is_refused(item: str) -> None:
    with pytest.raises(click.BadParameter):
        words.parse_answers(CONTEXT, PARAMETER, [item])


def test_the_command_that_resumes_can_be_pasted_into_a_shell() -> None:
    assert words.resume_command("s", "checkpoints") == "graflow-ckpt resume s"
    assert words.resume_command("s", "my store", "--max-steps", "4") == (
        "graflow-ckpt resume s --store 'my store' --max-steps 4"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (200000, "2 d"),
    ],
)
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert words.age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "?"), (0, "0 B"), (999, "999 B"), (5700, "5.7 kB"), (1_200_000_000, "1.2 GB")]
)
def test_sizes_are_short(count: int | None, text: str) -> None:
    assert words.size(count) == text


def test_the_time_since_a_checkpoint_is_never_negative_and_survives_nonsense() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

    assert words.seconds_since("2026-01-01T00:00:00+00:00", now) == 60
    assert words.seconds_since("2026-01-01T00:00:00", now) == 60
    assert words.seconds_since("2027-01-01T00:00:00+00:00", now) == 0
    assert words.seconds_since("yesterday", now) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0), ("7d", 604800.0)]
)
def test_a_period_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert words.parse_period(CONTEXT, PARAMETER, text) == seconds


def test_what_is_no_period_is_refused() -> None:
    assert words.parse_period(CONTEXT, PARAMETER, None) is None
    with pytest.raises(click.BadParameter, match="'soon' is no time"):
        words.parse_period(CONTEXT, PARAMETER, "soon")


def test_the_address_of_a_store_loses_its_password_and_is_opened_with_it() -> None:
    store = words.parse_store(CONTEXT, PARAMETER, "rediss://:geheim@store.test:6390/1?ssl_ca_certs=/ca.pem")

    assert store == "rediss://store.test:6390/1?ssl_ca_certs=%2Fca.pem"
    assert parse(store).with_credentials({}).secrets == {"password": "geheim"}


@pytest.mark.parametrize("store", [None, "checkpoints", "file:///srv/checkpoints"])
def test_a_folder_stays_as_it_is(store: str | None) -> None:
    assert words.parse_store(CONTEXT, PARAMETER, store) == store


def test_several_crashes_are_spelt_so() -> None:
    assert [words.counted(n, "crash") for n in (1, 2)] == ["1 crash", "2 crashes"]
