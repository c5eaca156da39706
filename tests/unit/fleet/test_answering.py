"""What becomes of tasks that ran when their worker died, once somebody has said so; on a real server."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import InDoubt, SessionError
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.following import doubts
from graflow_ckpt.fleet.handle import Handle
from tests.unit.fleet.played import Player, bag


def paused(client: Client, *in_doubt: str) -> Handle:
    """A session of three of which these are set aside, in doubt."""
    handle = bag(client, "s", on_interrupted="ask")
    player = Player(client, "s")
    for _ in range(3):
        claim = player.claim()
        if claim.spec.task_id in in_doubt:
            player.session.commit([("doubt", claim.spec.key, 1)])
            claim = player.claim()
            player.session.commit([("quarantine", claim.spec.key, "InDoubt: its worker died")])
            if handle.status().status == "paused":
                handle._commit([("status", "running", ""), ("claim", 0)])
        else:
            player.session.commit([("release", claim.spec.key, 0)])
    player.close()
    handle.pause()
    return handle


def strategies(handle: Handle) -> dict[str, str]:
    return {spec["task_id"]: spec["execution_strategy"] for spec in handle.pending()}


def test_who_goes_on_without_an_answer_is_told_what_lacks_one(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(InDoubt) as caught:
        handle.resume()

    assert caught.value.tasks == ["t0"]
    assert list(doubts(client.link, "s")) == ["t0"]
    assert handle.status().status == "paused"


@pytest.mark.parametrize(("answer", "how"), [("rerun", "direct"), ("skip", "left"), ("fail", "failed")])
def test_an_answer_schedules_the_task_and_the_session_goes_on(client: Client, answer: str, how: str) -> None:
    handle = paused(client, "t0")

    handle.resume(answers={"t0": answer})

    status = handle.status()
    assert (status.status, status.failed) == ("running", 0)
    assert strategies(handle)["t0"] == how


def test_a_task_that_is_not_in_doubt_takes_no_answer(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(SessionError, match="'t1' of session s does not wait for an answer") as caught:
        handle.resume(answers={"t0": "skip", "t1": "skip"})

    assert caught.value.hint == "Those do: t0."
    assert strategies(handle)["t0"] == "doubt"
