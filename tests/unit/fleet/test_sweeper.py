"""What a sweeper finds and repairs, one fault at a time, what it leaves alone, and what the dead held."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from rq import SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from graflow_ckpt.core.errors import Fenced, KeyTaken, ServerGone, ServerReadOnly, SessionBusy
from graflow_ckpt.engine import reaping
from graflow_ckpt.fleet import steward as sweeping
from graflow_ckpt.fleet.board import RunningSlice
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.deaths import FALLS, Death, Hands, take
from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS, host_key, place
from graflow_ckpt.fleet.steward import FleetRepair
from graflow_ckpt.fleet.tokens import Carrier, job_id
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.keys import keys_of, source
from graflow_ckpt.sessions.redis.tables import frozen
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.testing.drivers import at_once
from tests.servers import Server
from tests.stretch import until
from tests.unit.fleet.played import Player, at_work, bag, dead, set_status, task_of, tokens


@pytest.fixture
def sweeper(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetRepair]:
    monkeypatch.setattr(reaping, "GRACE", 0.0)
    made = FleetRepair(client, place())
    yield made
    assert made.failed == []


def look(client: Client, sweeper: FleetRepair, *sessions: str) -> float:
    """A round in which these are due, and no others."""
    redis: Any = client.link.client
    for name in redis.zrange(ACTIVE, 0, -1):
        redis.zadd(ACTIVE, {name: 0 if name.decode() in sessions else 10**15})
    return sweeper.round()


def next_look(client: Client, sweeper: FleetRepair, session: str) -> float:
    """Seconds until it is looked at again, once that has been noted."""
    redis: Any = client.link.client
    sweeper._rota([ACTIVE], ["", 0, 0, *sweeper._noted])
    return redis.zscore(ACTIVE, session) / 1000 - time.time()


def list_as_running(client: Client, session: str, player: Player) -> None:
    client.link.client.hset(host_key(place()), f"{session} {player.token}", player.owner)


def posted(client: Client) -> set[str]:
    return client.carrier.ids("default")


# --- leases ----------------------------------------------------------------------------


def test_a_lease_that_ran_out_is_taken_and_somebody_else_is_asked(
    client: Client, sweeper: FleetRepair
) -> None:
    handle, player = at_work(client, lease=-1)

    until(lambda: look(client, sweeper, "s") >= 0 and player.token not in tokens(handle))

    assert handle.status().ready == 1
    assert len(posted(client)) == 1


def test_a_lease_is_looked_at_when_it_ends_and_not_later(client: Client, sweeper: FleetRepair) -> None:
    at_work(client, lease=0.4)

    look(client, sweeper, "s")

    assert 0 < next_look(client, sweeper, "s") <= 0.41


def test_a_worker_that_is_well_is_left_alone(client: Client, sweeper: FleetRepair) -> None:
    handle, _ = at_work(client, tasks=3)
    before = posted(client), tokens(handle)

    look(client, sweeper, "s")

    assert (posted(client), tokens(handle)) == before


@pytest.mark.parametrize("steward", ["the same", "one that has just been started"])
def test_after_the_server_was_away_or_full_a_worker_renews_its_lease_before_it_is_taken(
    client: Client, sweeper: FleetRepair, steward: str
) -> None:
    handle, player = at_work(client, lease=-1)
    look(client, sweeper, "s")
    within = next_look(client, sweeper, "s")

    player.session.renew(-1)  # and the server goes away again
    look(client, sweeper if steward == "the same" else FleetRepair(client, place()), "s")

    assert player.token in tokens(handle)
    assert within <= 1.0


def test_a_server_that_took_no_writes_for_longer_than_a_lease_takes_nothing_from_the_living(
    own_redis: Callable[..., Server], keyring: Keyring
) -> None:
    server = own_redis()
    client = Client(open_link(server.url), keyring=keyring)
    handle, player = at_work(client, lease=-1)
    sweeper = FleetRepair(client, place())
    server.ask("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(ServerReadOnly):
        player.session.renew(15)
    with pytest.raises(ServerReadOnly):
        take(client, "s", player.token, "its lease ran out")

    server.ask("REPLICAOF", "NO", "ONE")
    look(client, sweeper, "s")  # the steward is quicker
    renewed = player.session.renew(15)
    look(client, sweeper, "s")

    assert renewed == "running"
    assert player.token in tokens(handle)
    client.close()


def test_memory_that_is_full_now_and_then_takes_nothing_from_the_living(
    own_redis: Callable[..., Server], keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "GRACE", 0.0)
    server = own_redis()
    client = Client(open_link(server.url), keyring=keyring)
    handle, player = at_work(client, lease=-1)
    assert not take(client, "s", player.token, "its lease ran out")  # not yet: it was found over

    server.ask("CONFIG", "SET", "maxmemory", "1")
    renewed = player.session.renew(15)
    taken = take(client, "s", player.token, "its lease ran out")

    assert (renewed, taken) == ("running", False)
    assert player.token in tokens(handle)
    client.close()


# --- this place ------------------------------------------------------------------------


def test_a_slice_whose_process_is_gone_is_taken_at_once(client: Client, sweeper: FleetRepair) -> None:
    handle, player = at_work(client, owner=dead())
    list_as_running(client, "s", player)

    sweeper.here()

    assert player.token not in tokens(handle)
    assert handle.status().ready == 1
    assert client.link.client.hgetall(host_key(place())) == {}


def test_a_slice_whose_process_lives_is_not(client: Client, sweeper: FleetRepair) -> None:
    handle, player = at_work(client)
    list_as_running(client, "s", player)

    sweeper.here()

    assert player.token in tokens(handle)


def test_a_slice_that_somebody_watches_is_left_to_him_for_one_pass(client: Client) -> None:
    handle, player = at_work(client, owner=dead())
    list_as_running(client, "s", player)
    sweeper = FleetRepair(client, place(), lambda: [RunningSlice("s", player.token)])

    sweeper.here()
    first = player.token in tokens(handle)
    sweeper.here()

    assert first
    assert player.token not in tokens(handle)


# --- tokens on their way ---------------------------------------------------------------


def make_overdue(client: Client, session: str) -> str:
    redis: Any = client.link.client
    token = redis.zrange(f"{keys_of(session)}tok", 0, 0)[0].decode()
    redis.zadd(f"{keys_of(session)}tok", {token: 1})
    return str(token)


def test_a_token_that_was_lost_on_its_way_is_posted_again(client: Client, sweeper: FleetRepair) -> None:
    bag(client, "s", tasks=1)
    token = make_overdue(client, "s")
    client.carrier.withdraw("s", token)

    look(client, sweeper, "s")

    assert posted(client) == {job_id("s", token)}
    assert 4 < tokens(client.session("s"))[token] / 1000 - time.time() < 6


def test_a_token_that_waits_keeps_its_place(client: Client, sweeper: FleetRepair) -> None:
    for session in ("first", "second", "third"):
        bag(client, session, tasks=1)
    before = client.carrier.queue("default").job_ids
    make_overdue(client, "first")

    look(client, sweeper, "first")

    assert client.carrier.queue("default").job_ids == before
    assert min(tokens(client.session("first")).values()) > time.time() * 1000


def test_a_token_that_a_worker_begins_on_meanwhile_is_not_posted(
    client: Client, sweeper: FleetRepair
) -> None:
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s", lease=100)

    sweeper._post("s", player.token, "default")  # as it was seen a moment before

    assert tokens(handle)[player.token] > (time.time() + 90) * 1000
    assert posted(client) == set()


def test_a_server_that_goes_away_in_mid_repair_is_said_to_be_away(own_redis: Callable[..., Server]) -> None:
    server = own_redis()
    with closing(open_link(server.url)) as link, closing(open_link(own_redis().url)) as rqs:
        sweeper = FleetRepair(Hands(link, Carrier(rqs)), place())
        server.kill()
        with pytest.raises(ServerGone):
            sweeper._post("s", "e1t1", "default")


# --- work that nobody was asked for ----------------------------------------------------


def test_a_delayed_spec_that_is_due_finds_a_worker(client: Client, sweeper: FleetRepair) -> None:
    handle = client.submit_calls(task_of("late"), None, Terms("s", delay=0.2))
    look(client, sweeper, "s")
    waits = next_look(client, sweeper, "s")
    assert 0 < waits <= 0.21
    assert posted(client) == set()

    time.sleep(waits + 0.01)  # the server's clock decides
    look(client, sweeper, "s")

    assert handle.status().ready == 1
    assert len(posted(client)) == 1


def test_work_without_any_token_finds_a_worker(client: Client, sweeper: FleetRepair) -> None:
    bag(client, "s", tasks=1)
    client.link.client.delete(
        f"{keys_of('s')}tok", f"{keys_of('s')}qt"
    )  # a server that lost its latest writes
    client.carrier.queue("default").empty()

    look(client, sweeper, "s")

    assert len(posted(client)) == 1


def test_a_session_that_is_paused_is_not_woken(client: Client, sweeper: FleetRepair) -> None:
    handle = bag(client, "s", tasks=1)
    handle.pause()
    client.link.client.delete(f"{keys_of('s')}tok", f"{keys_of('s')}qt")
    client.carrier.queue("default").empty()

    look(client, sweeper, "s")

    assert posted(client) == set()
    assert next_look(client, sweeper, "s") > 2


# --- sessions that are stuck -----------------------------------------------------------


def freeze(client: Client, maker: str, seconds: float) -> None:
    script = client.link.script(source("freeze"))
    assert script([f"{keys_of('s')}c"], [maker, seconds, ""]) == [b"frozen"]


def test_a_session_frozen_by_the_dead_is_thawed(client: Client, sweeper: FleetRepair) -> None:
    handle = bag(client, "s", tasks=1)
    freeze(client, f"x {json.dumps(asdict(dead()))}", 600)

    look(client, sweeper, "s")
    handle._commit([("put", "name", b"\xc0", -1)])  # it would wait for ten minutes

    assert handle.value("name", 1) is None


def test_a_session_frozen_by_the_living_is_left_alone(client: Client, sweeper: FleetRepair) -> None:
    bag(client, "s", tasks=1)
    freeze(client, f"x {json.dumps(asdict(myself()))}", 600)

    look(client, sweeper, "s")

    assert sweeper._looks(["s"])[0][2] == b"f"


def test_a_submission_that_was_cut_short_is_cleared_away_after_its_hour(
    client: Client, sweeper: FleetRepair, redis: Any
) -> None:
    bag(client, "s", tasks=1)
    set_status(client, "s", "init")

    look(client, sweeper, "s")
    young = redis.exists(f"{keys_of('s')}c")
    redis.hset(f"{keys_of('s')}h", "created", repr(time.time() - 3601))
    look(client, sweeper, "s")

    assert young
    assert [key for key in redis.keys("graflow:{s}:*") if b":x:" not in key] == []  # replies expire


def test_a_submission_whose_maker_has_died_here_is_cleared_away_at_once(
    client: Client, sweeper: FleetRepair, redis: Any
) -> None:
    bag(client, "s", tasks=1)
    set_status(client, "s", "init")
    redis.hset(f"{keys_of('s')}h", "maker", json.dumps(asdict(dead())))

    look(client, sweeper, "s")

    assert not redis.exists(f"{keys_of('s')}c")
    sweeper.tidy()
    assert client.sessions() == []


def test_a_submission_that_is_completed_before_it_is_cleared_away_stays_in_the_rota(
    client: Client, sweeper: FleetRepair
) -> None:
    bag(client, "s", tasks=1)
    now = int(time.time() * 1000)

    following = sweeper._init("s", 0.0, now)  # as it was when it was looked at: of an hour ago, not completed

    assert following == now + 1
    assert client.session("s").status().status == "running"


# --- lists -----------------------------------------------------------------------------


def test_a_session_that_has_ended_leaves_the_rota_and_stays_listed(
    client: Client, sweeper: FleetRepair
) -> None:
    handle = bag(client, "s", tasks=1)
    handle.cancel()

    look(client, sweeper, "s")
    sweeper.round()

    assert client.link.client.zscore(ACTIVE, "s") is None
    assert client.sessions() == ["s"]


def test_a_session_that_goes_on_while_it_is_looked_at_stays_in_the_rota(
    client: Client, sweeper: FleetRepair
) -> None:
    handle = bag(client, "s", tasks=1)
    handle.cancel()
    look(client, sweeper, "s")

    client.watch("s")  # before its end was noted
    sweeper.round()

    assert client.link.client.zscore(ACTIVE, "s") is not None


def test_a_session_that_is_gone_leaves_all_lists(client: Client, sweeper: FleetRepair, redis: Any) -> None:
    bag(client, "s", tasks=1)
    redis.delete(*redis.keys("graflow:{s}:*"))

    look(client, sweeper, "s")
    sweeper.round()
    sweeper.tidy()

    assert redis.zscore(ACTIVE, "s") is None
    assert redis.zscore(SESSIONS, "s") is None


def test_a_session_that_the_rota_has_forgotten_comes_back(client: Client, sweeper: FleetRepair) -> None:
    bag(client, "s", tasks=1)
    client.link.client.delete(ACTIVE)

    sweeper.tidy()

    assert client.link.client.zscore(ACTIVE, "s") is not None


def test_two_sweepers_share_the_rota(client: Client, sweeper: FleetRepair) -> None:
    names = {f"s{n}".encode() for n in range(250)}
    client.link.client.zadd(ACTIVE, dict.fromkeys(names, 0))
    taken: list[list[bytes]] = []
    other = FleetRepair(client, place())
    for one in (sweeper, other, sweeper, other):
        taken.append(one._rota([ACTIVE], ["", sweeping.BATCH, 10_000])[2:])

    assert [len(batch) for batch in taken] == [100, 100, 50, 0]
    assert {name for batch in taken for name in batch} == names


def test_one_session_that_is_broken_does_not_hold_up_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "GRACE", 0.0)
    for session in ("a", "b"):
        bag(client, session, tasks=1)
    players = [Player(client, session, lease=-1) for session in ("a", "b")]
    client.link.client.delete(f"{keys_of('a')}tok")
    client.link.client.set(f"{keys_of('a')}tok", "something else")
    sweeper = FleetRepair(client, place())

    until(
        lambda: look(client, sweeper, "a", "b") >= 0 and players[1].token not in tokens(client.session("b"))
    )

    assert len({str(error) for error in sweeper.failed}) == 1
    assert "graflow:{a}" in str(sweeper.failed[0]) or "WRONGTYPE" in str(sweeper.failed[0])


# --- RQ --------------------------------------------------------------------------------


def test_rq_forgets_a_job_whose_token_has_been_void_for_two_looks(
    client: Client, sweeper: FleetRepair
) -> None:
    """When it was taken, RQ's server was away; RQ itself would call it failed, some minutes later."""
    bag(client, "s", tasks=1)
    queue = client.carrier.queue("default")
    job = queue.fetch_job(queue.job_ids[0])
    assert job is not None
    queue.remove(job)
    rq = SimpleWorker([queue], connection=client.carrier.connection, serializer=JSONSerializer)
    rq.prepare_execution(job)
    sweeper.tidy_rq()
    sweeper.tidy_rq()
    assert job.id in queue.started_job_registry.get_job_ids(cleanup=False)  # its token counts

    client.link.client.zrem(f"{keys_of('s')}tok", job.id.rpartition("-")[2])
    sweeper.tidy_rq()
    assert job.id in queue.started_job_registry.get_job_ids(cleanup=False)  # its slice may be about to end
    sweeper.tidy_rq()

    assert queue.started_job_registry.get_job_ids(cleanup=False) == []
    assert not Job.exists(job.id, client.carrier.connection)


def test_a_key_that_something_else_uses_holds_up_the_forgetting_of_no_other_session(
    client: Client, sweeper: FleetRepair, redis: Any
) -> None:
    bag(client, "s")  # RQ knows the queue by that
    registry = client.carrier.queue("default").started_job_registry
    redis.zadd(registry.key, {"a-e1t1:1": 9e12, "s-e1t1:1": 9e12})
    redis.zadd("rq:executions:s-e1t1", {"1": 9e12})
    redis.set(f"{keys_of('a')}tok", "theirs")
    redis.set("rq:workers", "theirs")

    for _ in range(2):
        with pytest.raises(KeyTaken, match="rq:workers"):
            sweeper.tidy_rq()

    assert [f"{keys_of('a')}tok is a string" in str(error) for error in sweeper.failed] == [True, True]
    sweeper.failed.clear()
    assert registry.get_job_ids(cleanup=False) == ["a-e1t1"]


# --- what a dead worker held ----------------------------------------------------------


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
    _, player = at_work(client, tasks=3)
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


def falls(redis: Any) -> int:
    return int(redis.hget(f"{keys_of('s')}h", FALLS) or 0)


def test_a_death_before_any_task_is_counted_once_however_often_it_is_tried_and_by_how_many(
    client: Client, redis: Any
) -> None:
    handle = bag(client, "s", tasks=1)
    for round_ in range(1, 3):
        player = Player(client, "s")
        reap = partial(take, client, "s", player.token, "it was killed", forced=True)
        with frozen(client.link, "s"):
            for _ in range(3):  # its parent does so four times a second
                with pytest.raises(SessionBusy):
                    reap()

        at_once([reap] * 2)

        assert falls(redis) == round_
    assert handle.status().status == "running"
    last = Player(client, "s")
    assert take(client, "s", last.token, "it was killed", forced=True)
    assert handle.status().status == "paused"
    assert "3 times before any task; at last it was killed" in handle.status().reason
    assert posted(client) == set()  # no worker loads its program again


@pytest.mark.parametrize("crashed", [True, False], ids=["killed", "stopped, which is no crash"])
def test_a_task_that_is_not_to_run_again_is_left_in_doubt(client: Client, crashed: bool) -> None:
    bag(client, "s", tasks=1, on_interrupted="fail")
    player = Player(client, "s")
    player.claim()

    take(client, "s", player.token, "it has ended", forced=True, crashed=crashed)

    spec = Player(client, "s").claim().spec
    assert (spec.execution_strategy, spec.crashes) == ("doubt", int(crashed))


def test_a_token_that_nobody_has_begun_on_is_replaced(client: Client) -> None:
    handle = bag(client, "s", tasks=1)
    token = next(iter(tokens(handle)))

    assert take(client, "s", token, "it was killed", forced=True)

    assert len(tokens(handle)) == 1
    assert token not in tokens(handle)


def test_a_frozen_session_is_not_waited_for(client: Client) -> None:
    _, player = at_work(client)
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
