"""Failovers and restores at random, and that the judge of failovers.py sees what would be wrong."""

from __future__ import annotations

import pytest
from hypothesis import settings

from graflow_ckpt.sessions import redis as sessions
from tests.crash.failovers import run

pytestmark = pytest.mark.crash

BROKEN = {  # what is broken, how, and the first seed: of the first one one history in hundreds knows
    "a request follows anything": (
        "if not before or find(before, prev, 1, true) ~= 1 then",
        "if not before then",
        205,
    ),
    "what was read may be gone": ("if (version or '0') ~= sub(base, 2) then", "if false then", 1),
    "a request from outside follows anything": ("if (last or '') ~= prev then return {'lost'} end", "", 1),
}


def test_however_servers_go_back_a_session_is_of_one_history() -> None:
    found = run(range(1, 1 + max(10, settings().max_examples // 5)))

    assert found.wrong == []
    assert found.counts["failover replica"] > 0
    assert found.counts["failover snapshot"] > 0
    assert found.counts["lost"] > 0


@pytest.mark.parametrize("name", BROKEN)
def test_two_histories_in_one_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, first = BROKEN[name]
    assert sessions.STEP.count(old) == 1, "it is to be broken in one place"
    monkeypatch.setattr(sessions, "STEP", sessions.STEP.replace(old, new))

    found = run(range(first, first + 200), until=lambda found: bool(found.wrong))

    assert found.wrong
