"""Facts: session ids and the frozen values between body, decision and state."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import BadSessionId
from graflow_ckpt.core.facts import NO_EFFECTS, Done, Effects, TaskSpec, check_session_id


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
