"""Settings: checked where they are made."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from graflow_ckpt.checkpoint.retention import DEFAULT
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.policy import OnRequest
from graflow_ckpt.engine.settings import Settings


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


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_task_has_to_run(count: int) -> None:
    with pytest.raises(GraphError, match="is not a whole number from 1 on"):
        Settings(max_parallel=count)


def test_slots_are_what_was_asked_for_or_follow_the_machine() -> None:
    assert Settings(max_parallel=1).slots == 1
    assert Settings(max_parallel=100).slots == 100
    assert Settings().slots == min(32, (os.cpu_count() or 1) + 4)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().rng = False  # type: ignore[misc]
