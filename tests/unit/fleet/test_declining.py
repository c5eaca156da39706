"""Workers that do not have a session's program, played by hand on a real server."""

from __future__ import annotations

import logging
import platform
from typing import Any

import pytest

from graflow_ckpt.checkpoint.program.plan import PlanRow
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.declining import Declining, declined, forget
from graflow_ckpt.fleet.programs import ProgramDiffers, ProgramMissing
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.unit.fleet.played import Player, bag

HOST = platform.node()
MISSING = ProgramMissing("This worker has no module 'flows', which workflow 's' uses.")


class Wrong:
    """A worker that lacks the program."""

    def __init__(self, client: Client, name: str, patience: float = 60.0) -> None:
        self._client = client
        self._declining = Declining(client.link, patience)
        self._declining._who = name

    def takes(self, error: Exception = MISSING) -> None:
        """The token that is posted, or that a steward would post."""
        token = "" if posted(self._client) else resting(self._client)[0]
        player = Player(self._client, "s", token=token)
        self._declining.decline(player.session, error)
        assert player.session.retired
        player.close()


def posted(client: Client) -> int:
    """How many tokens wait in RQ's queue."""
    return len(client.carrier.queue("default"))


def resting(client: Client) -> tuple[str, float]:
    """The token that waits for a steward, and for how many milliseconds."""
    redis: Any = client.link.client
    (found,) = redis.zrange(f"{keys_of('s')}tok", 0, -1, withscores=True)
    seconds, micros = redis.time()
    return found[0].decode(), found[1] - seconds * 1000 - micros / 1000


def noted_at(client: Client, seconds_ago: float) -> None:
    redis: Any = client.link.client
    redis.hset(f"{keys_of('s')}h", "declined", int((redis.time()[0] - seconds_ago) * 1000))


def cold(client: Client) -> set[str]:
    redis: Any = client.link.client
    return {name.decode() for name in redis.hkeys(f"{keys_of('s')}h") if name.startswith(b"decl")}


def test_the_next_who_waits_is_asked_at_once_and_when_all_were_asked_the_token_rests(client: Client) -> None:
    bag(client, "s")
    one, two = Wrong(client, "one"), Wrong(client, "two")

    one.takes()
    assert posted(client) == 1
    two.takes()
    assert posted(client) == 1
    redis: Any = client.link.client
    redis.zadd("graflow:active", {"s": 1e15})
    one.takes()

    assert posted(client) == 0
    assert 0 < resting(client)[1] <= 50
    assert redis.zscore("graflow:active", "s") <= redis.time()[0] * 1000 + 1100  # a steward looks then


def test_what_is_lacking_may_have_a_name_that_is_no_text(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "graflow_ckpt.fleet")  # reports of tests cannot hold it
    bag(client, "s")

    Wrong(client, "one").takes(ProgramMissing("There is no file 'caf\udce9'."))

    assert list(declined(client.link, "s").values()) == ["There is no file 'caf\\udce9'."]


def test_a_token_rests_for_longer_each_time_and_at_most_for_a_second(client: Client) -> None:
    bag(client, "s")
    one = Wrong(client, "one")
    one.takes()

    rests = []
    one.takes()
    for _ in range(7):
        rests.append(resting(client)[1])
        one.takes()  # asked, for the first time in this round
        one.takes()

    assert rests[0] <= 50 < rests[1] <= 100 < rests[2] <= 200
    assert max(rests) <= 1000


def test_nothing_of_the_session_is_used_up(client: Client) -> None:
    handle = bag(client, "s", max_retries=2)
    before = handle.pending()

    for _ in range(5):
        Wrong(client, "one").takes()
        Wrong(client, "two").takes()

    assert handle.pending() == before
    assert (handle.status().status, handle.status().failed, handle.failures()) == ("running", 0, {})


def test_who_lacks_what_is_known_until_somebody_has_it(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()

    assert handle.declined() == {HOST: MISSING.message}
    assert cold(client) == {"declined", "decliners", f"declined:{HOST}"}

    forget(client.link, "s")
    assert handle.declined() == {}
    assert cold(client) == set()


def test_after_its_patience_the_session_pauses_and_says_who_lacks_what(client: Client) -> None:
    handle = bag(client, "s")
    redis: Any = client.link.client
    redis.hset(f"{keys_of('s')}h", "declined:elsewhere", "no module 'other'")
    Wrong(client, "one").takes()
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "paused"
    first, second = handle.reason().splitlines()
    assert first.startswith("no worker has had its program for 6")
    assert first.endswith(f"s; {HOST}: {MISSING.message}")
    assert second == "elsewhere: no module 'other'"
    assert posted(client) == 0
    assert handle.declined()[HOST] == MISSING.message  # to be looked at, while it waits for somebody


def test_the_plan_has_the_state_of_each_task(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    player = Player(client, "s")
    first = player.claim()
    end = ("end", first.spec.key, first.number, "completed", b"\x01")
    player.session.commit([end, ("claim", 0)], mode="q")
    player.close()
    differs = ProgramDiffers(
        "Another version.", table=[PlanRow(n, "changed", "") for n in ("t0", "t1", "later")]
    )
    Wrong(client, "one").takes(differs)
    noted_at(client, 61)

    Wrong(client, "two").takes(differs)

    assert [line.split() for line in handle.reason().splitlines()[1:]] == [
        ["task", "verdict", "state", "note"],
        ["t0", "changed", "completed"],
        ["t1", "changed", "pending"],
        ["later", "changed", "unreached"],
    ]


def test_who_goes_on_after_a_pause_is_not_paused_again_at_once(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()
    noted_at(client, 61)
    Wrong(client, "one").takes()
    assert handle.status().status == "paused"

    handle._commit([("status", "running", ""), ("claim", 0)])  # as a process does that takes part
    Wrong(client, "one").takes()

    assert handle.status().status == "running"


def test_no_session_is_paused_that_somebody_works_on(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    Wrong(client, "one").takes()
    player = Player(client, "s")
    player.claim()
    player.session.commit([("claim", 0)], mode="s")  # its keeper asks for another worker
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "running"
    assert handle.declined() == {}  # nobody is waited for
    player.close()


def test_who_has_just_begun_may_be_about_to_decline_too(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    Wrong(client, "one").takes()
    began = Player(client, "s")  # and has committed nothing
    redis: Any = client.link.client
    redis.hdel(f"{keys_of('s')}qt", "default")
    client.session("s")._commit([("claim", 0)])  # another token
    noted_at(client, 61)

    Wrong(client, "two").takes()

    assert handle.status().status == "paused"
    began.close()


def test_of_a_session_that_is_over_nothing_is_lacking(client: Client) -> None:
    handle = bag(client, "s")
    Wrong(client, "one").takes()

    handle.cancel()

    assert handle.declined() == {}
    assert declined(client.link, "none") == {}


def test_it_is_said_once_in_a_while(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    bag(client, "s")
    one = Wrong(client, "one")

    for _ in range(3):
        one.takes()

    assert [r.message for r in caplog.records] == [f"session s is left to other workers: {MISSING.message}"]
