"""What becomes of what a dead worker held, and who is told."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from graflow_ckpt.core.errors import Fenced, ServerGone, SessionBusy
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.reaping import Death, take
from graflow_ckpt.fleet.tokens import job_id
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.testing.drivers import at_once
from tests.servers import Server
from tests.unit.fleet.played import Player, bag, tokens


def test_a_claim_of_the_dead_runs_again_before_all_others_and_its_crash_is_counted(client: Client) -> None:
    handle = bag(client, "s")
    player = Player(client, "s")
    claim = player.claim()

    assert take(client, "s", player.token, "it was killed", forced=True)

    again = Player(client, "s").claim()
    assert again.spec == claim.spec._replace(crashes=1)
    assert player.token not in tokens(handle)
    with pytest.raises(Fenced):
        player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\xc0")])


def test_whoever_goes_on_is_asked_through_rq_and_the_dead_token_leaves_rq(client: Client) -> None:
    bag(client, "s")
    player = Player(client, "s")
    player.claim()
    client.carrier.post("s", player.token, "default")  # as it stands in RQ while it runs

    take(client, "s", player.token, "it was killed", forced=True)

    waiting = client.carrier.ids("default")
    assert waiting
    assert job_id("s", player.token) not in waiting


def test_a_worker_that_is_alive_keeps_its_token(client: Client) -> None:
    handle = bag(client, "s")
    player = Player(client, "s")
    claim = player.claim()

    assert not take(client, "s", player.token, "its lease ran out")

    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\xc0")])
    assert handle.status().completed == 1


def test_a_lease_that_is_over_needs_no_force(client: Client) -> None:
    bag(client, "s")
    player = Player(client, "s", lease=-1)
    player.claim()

    assert take(client, "s", player.token, "its lease ran out")


def test_of_two_reapers_at_once_one_wins(client: Client) -> None:
    handle = bag(client, "s", tasks=1)
    for round_ in range(20):
        player = Player(client, "s")
        player.claim()
        won: list[bool] = []
        gate = threading.Barrier(2)

        def reap(token: str = player.token, won: list[bool] = won, gate: threading.Barrier = gate) -> None:
            gate.wait()
            won.append(take(client, "s", token, "it was killed", forced=True, crashed=False))

        at_once([reap] * 2)
        assert sorted(won) == [False, True], round_
        assert handle.status().ready == 1


def test_a_task_that_takes_its_worker_down_three_times_is_set_aside_and_the_session_pauses(
    client: Client,
) -> None:
    handle = bag(client, "s", tasks=2)
    death = Death(int(signal.SIGKILL), memory=57)
    for _ in range(3):
        player = Player(client, "s")
        assert player.claim().spec.task_id == "t0"
        take(client, "s", player.token, str(death), forced=True)

    status = handle.status()

    assert status.status == "paused"
    assert status.failed == 1
    for fact in ("'t0'", "3 times", "SIGKILL", "57 MB"):
        assert fact in status.reason, status.reason
    assert client.carrier.ids("default") == set()


def test_a_task_that_is_not_to_run_again_is_left_in_doubt(client: Client) -> None:
    bag(client, "s", tasks=1, on_interrupted="fail")
    player = Player(client, "s")
    player.claim()

    take(client, "s", player.token, "it was killed", forced=True)

    spec = Player(client, "s").claim().spec
    assert (spec.execution_strategy, spec.crashes) == ("doubt", 1)


def test_a_worker_that_was_stopped_is_no_crash_but_leaves_the_same_doubt(client: Client) -> None:
    bag(client, "s", tasks=1, on_interrupted="fail")
    player = Player(client, "s")
    player.claim()

    take(client, "s", player.token, "it was stopped", forced=True, crashed=False)

    spec = Player(client, "s").claim().spec
    assert (spec.execution_strategy, spec.crashes) == ("doubt", 0)


def test_a_token_that_nobody_has_begun_on_is_replaced(client: Client) -> None:
    handle = bag(client, "s", tasks=1)
    token = next(iter(tokens(handle)))

    assert take(client, "s", token, "it was killed", forced=True)

    assert len(tokens(handle)) == 1
    assert token not in tokens(handle)


def test_a_frozen_session_is_not_waited_for(client: Client) -> None:
    bag(client, "s", tasks=1)
    player = Player(client, "s")
    player.claim()
    redis = client.link.client
    line = redis.hget(f"{keys_of('s')}c", "c").decode().split("|")
    line[8] += "z"
    redis.hset(f"{keys_of('s')}c", "c", "|".join(line))
    redis.hset(f"{keys_of('s')}h", "frozen", time.time() + 60)

    with pytest.raises(SessionBusy):
        take(client, "s", player.token, "it was killed", forced=True)


def test_a_server_that_is_away_is_not_waited_for(keyring: object, own_redis: object) -> None:
    with Server() as server:
        client = Client(open_link(server.url))
        bag(client, "s", tasks=1)
        server.kill()
        began = time.monotonic()

        with pytest.raises(ServerGone):
            take(client, "s", "e1t1", "it was killed", forced=True)

        assert time.monotonic() - began < 5
        client.close()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was killed by SIGSEGV"),
        ("import os; os._exit(3)", "it ended with status 3"),
    ],
)
def test_a_death_is_put_into_words(end: str, words: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", end], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been waited for

    text = str(Death.of(status, usage))

    assert text.startswith(words)
    assert "peak memory" in text
    # the kernel counts what the child had of its parent before it became another program
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    assert 2 <= Death.of(status, usage).memory <= here + 500
