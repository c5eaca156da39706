"""Facts: session ids and the frozen values between body, decision and state."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from graflow_ckpt.core.errors import BadSessionId
from graflow_ckpt.core.events import Event
from graflow_ckpt.core.facts import NO_EFFECTS, Done, Effects, Live, TaskSpec, check_session_id


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
