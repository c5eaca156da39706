"""What a session is run with: refused if it makes no sense, kept in a checkpoint, compared with before."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt import EveryN, EverySeconds, KeepLast, KeepWithin
from graflow_ckpt.core.errors import CheckpointError, GraphError
from graflow_ckpt.core.policy import Policy
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
        ({"durability": "sometimes"}, "durability='sometimes' is none of"),
        ({"resume": 1}, "resume=1 is none of"),
        ({"workflow": 7}, "workflow"),
        ({"observers": (7,)}, "observers"),
        ({"max_parallel": 0}, "max_parallel"),
        ({"max_checkpoint_size_mb": 0}, "max_checkpoint_size_mb"),
        ({"grace": -1}, "grace"),
        ({"rng": "yes"}, "rng"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_the_door(given: dict[str, Any], said: str) -> None:
    with pytest.raises((GraphError, TypeError, ValueError), match=said):
        Settings(**given)


def test_a_limit_is_for_threads_and_coroutines_together() -> None:
    few, many = Settings(max_parallel=2).slots, Settings().slots

    assert (few.threads, few.coroutines, few.together) == (2, 2, 2)
    assert many.coroutines > many.threads
    assert Settings(max_checkpoint_size_mb=1.5).size_limit == 1_500_000
