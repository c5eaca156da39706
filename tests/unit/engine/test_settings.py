"""What a session is run with: refused if it makes no sense, kept in a checkpoint, compared with before."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from graflow_ckpt import EveryN, EverySeconds, KeepLast, KeepWithin
from graflow_ckpt.checkpoint.retention import DEFAULT
from graflow_ckpt.core.errors import CheckpointError, GraphError
from graflow_ckpt.core.policy import OnRequest, Policy
from graflow_ckpt.engine.settings import Settings


class OfTheUser(Policy):
    """A policy that no checkpoint knows."""


def watch(event: object) -> None:
    """An observer, and a middleware."""


KEPT = Settings(
    policy=EveryN(3) | EverySeconds(30),
    keep=KeepLast(2) | KeepWithin(60),
    durability="journal",
    max_parallel=4,
)


def test_what_a_checkpoint_keeps_is_what_was_set() -> None:
    assert Settings().with_stored(KEPT.document()) == KEPT
    assert "lost" not in KEPT.document()
    assert Settings(grace=3.0).with_stored(None) == Settings(grace=3.0)


def test_what_no_checkpoint_can_keep_is_named() -> None:
    given: dict[str, Any] = {"observers": (watch,), "middleware": (watch,)}
    document = Settings(policy=OfTheUser(), **given).document()

    assert document["lost"] == ["observer watch", "middleware watch", "policy OfTheUser"]
    assert "policy" not in document


def test_other_settings_than_before_are_said_in_the_words_of_a_program() -> None:
    before = Settings(policy=EveryN(3), keep=KeepLast(2), durability="checkpoint").document()

    assert KEPT.differences(before) == [
        "durability was 'checkpoint' and is 'journal'",
        "policy was EveryN(steps=3) and is Either(members=EveryN(steps=3) and EverySeconds(seconds=30))",
        "keep was KeepLast(count=2, per='session') and is Either(members=KeepLast(count=2, per='session') "
        "and KeepWithin(gb=60, mb=0, kb=0, per='store'))",
        "max_parallel was None and is 4",
    ]
    assert KEPT.differences(KEPT.document()) == KEPT.differences(None) == []


def test_a_policy_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"run with 'policy\.Lunar', which this version"):
        Settings().with_stored({"policy": {"is": "policy.Lunar", "phase": 1}})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workflow": 7}, "workflow"),
        ({"observers": (7,)}, "observers"),
        ({"max_parallel": 0}, "max_parallel: 0 is not a whole number from 1 on"),
        ({"max_parallel": -1}, "max_parallel: -1 is not a whole number from 1 on"),
        ({"max_checkpoint_size_mb": 0}, "max_checkpoint_size_mb"),
        ({"grace": -1}, "grace"),
        ({"rng": "yes"}, "rng"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_the_door(given: dict[str, Any], said: str) -> None:
    with pytest.raises((GraphError, TypeError, ValueError), match=said):
        Settings(**given)


def test_defaults_are_those_of_the_documents() -> None:
    settings = Settings()

    assert (settings.durability, settings.resume, settings.on_failure) == ("auto", "auto", "pause")
    assert (settings.policy, settings.keep, settings.on_save_failure) == (OnRequest(), DEFAULT, "event")
    assert (settings.changed, settings.rng, settings.grace) == (None, True, 30.0)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("durability", "disk", "'auto', 'checkpoint', 'journal', 'none'"),
        ("resume", "yes", "'auto', 'never', 'must'"),
        ("on_failure", "stop", "'pause', 'continue', 'rollback'"),
        ("on_save_failure", "ignore", "'event', 'fail'"),
        ("changed", "maybe", "'reuse', 'rerun'"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(
    name: str, value: Any, choices: str
) -> None:
    with pytest.raises(GraphError, match=f"{name}='{value}' is none of {choices}") as caught:
        Settings(**{name: value})

    assert caught.value.setting == name


def test_slots_are_what_was_asked_for_or_follow_the_machine() -> None:
    assert [Settings(max_parallel=count).slots for count in (1, 2)] == [(1, 1, 1), (2, 2, 2)]
    assert Settings(max_parallel=100).slots == (100, 100, 100)
    threads = min(32, (os.cpu_count() or 1) + 4)
    assert Settings().slots == (threads, 1000, threads + 1000)
    assert Settings(max_checkpoint_size_mb=1.5).size_limit == 1_500_000


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().rng = False  # type: ignore[misc]
