"""Events: facts for observers, which nobody can change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from graflow_ckpt.core.events import Event


def test_an_event_cannot_be_changed() -> None:
    event = Event("task_ended", "s", 1.0, 3, "a", {"outcome": "done"})

    with pytest.raises(FrozenInstanceError):
        event.step = 4  # type: ignore[misc]


def test_two_events_do_not_share_their_facts() -> None:
    first, second = Event("session_started", "s", 0.0, 0), Event("session_started", "s", 0.0, 0)

    first.facts["pending"] = 1

    assert second.facts == {}
