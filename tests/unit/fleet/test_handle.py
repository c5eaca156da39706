"""What a handle says of a session and does to it, on a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graflow_ckpt.core.errors import InDoubt, NoSession, SessionError
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle, doubts
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.unit.fleet.played import Player, bag


def test_what_was_purged_is_gone_and_a_late_commit_does_not_bring_any_of_it_back(client: Client) -> None:
    handle = bag(client, "s")
    player = Player(client, "s")
    claim = player.claim()

    handle.purge()

    with pytest.raises(NoSession):
        player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    redis: Any = client.link.client
    assert list(redis.scan_iter(match=f"{keys_of('s')}*")) == []
    assert client.sessions() == []


def test_a_session_that_was_paused_while_its_last_task_ran_is_completed_when_it_goes_on(
    client: Client,
) -> None:
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s")
    claim = player.claim()
    handle.pause()
    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    assert handle.status().status == "paused"

    handle.resume()

    assert handle.status().status == "completed"


def test_a_session_that_goes_on_at_its_limit_stops_there(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    player = Player(client, "s")
    first = player.claim()
    (second,) = player.session.commit(
        [("end", first.spec.key, first.number, "completed", b"\x01"), ("claim", 1)]
    )
    player.session.commit(
        [("end", second.spec.key, second.number, "failed", "x"), ("status", "failing", "x"), ("claim", 0)]
    )
    player.close()
    assert handle.status().status == "failed"

    handle.resume(max_steps=1)
    assert (handle.status().status, handle.status().reason) == ("stopped", "max_steps=1 reached")
    handle.resume(max_steps=3)

    assert (handle.status().status, handle.status().tokens) == ("running", 1)


def test_the_sessions_of_lately_are_those_that_are_looked_at_and_the_newest(client: Client) -> None:
    for name in ("one", "two", "three"):
        bag(client, name)
    redis: Any = client.link.client
    redis.zadd("graflow:sessions", {"one": 1, "two": 2, "three": 3})
    redis.zrem("graflow:active", "two", "three")

    assert client.sessions() == ["three", "two", "one"]
    assert client.lately(1) == ["one", "three"]


def test_a_failure_s_command_is_told_apart_from_what_the_task_has_said(client: Client) -> None:
    handle = bag(client, "s")
    status = replace(handle.status(), status="failed")

    assert str(handle.error(status)).endswith(" (see: graflow-ckpt failed list --session s)")


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
