"""The server dies, hangs, forgets and comes back while a pool works: nothing is lost, nobody gives up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt.fleet.client import Terms, client_at
from graflow_ckpt.fleet.lists import ACTIVE
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.crash import fleet_tasks as tasks
from tests.crash.fleet import begun, go, lines, noted, pool, ready_pool
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.stretch import stretched, until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]

Servers = Callable[..., Server]


@pytest.fixture
def kept(own_redis: Servers) -> Server:
    """A server that keeps what it was told."""
    return own_redis({"appendonly": "yes", "appendfsync": "always"})


def test_a_server_that_is_killed_in_mid_run_is_waited_for(kept: Server, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(400)]
    with ready_pool(kept.url, tmp_path, n=2) as fleet:
        calls = [(str(tmp_path), name, 0.005) for name in names]
        handle = tasks.naps.submit_many(calls, url=kept.url)
        for round_ in range(1, 4):
            until(lambda mark=round_ * 60: len(lines(tmp_path)) > mark)
            kept.restart()

        assert handle.results(30) == names
        fleet.ready()
        assert handle.status().steps == len(names)
    ran = [word for word, _, _ in lines(tmp_path)]
    assert set(ran) == set(names)
    assert len(ran) - len(names) <= 3 * 2  # what ran when the server died, at most


def test_a_server_that_is_away_for_longer_than_a_lease_takes_nothing_from_the_living(
    kept: Server, tmp_path: Path
) -> None:
    with ready_pool(kept.url, tmp_path, n=2, lease=0.5) as fleet:
        handle = begun(tasks.held, kept.url, tmp_path, "a")
        kept.kill()
        outage = threading.Event()
        outage.wait(1.5)  # three leases
        kept.start()
        until(lambda: fleet.facts() is not None)
        go(tmp_path)

        assert handle.result(10) == "a"
    assert [word for word, _, _ in lines(tmp_path)] == ["a", "a-over"]


def test_a_pool_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    server = Server()
    server.port = free_port()
    with pool(server.url, tmp_path, n=1) as fleet:
        until(lambda: "worker-1: waiting" in fleet.said())
        with server:
            handle = tasks.call(tasks.quick, server.url, tmp_path, "a")

            assert handle.result(20) == "a"
            fleet.signal(signal.SIGTERM)
            assert fleet.wait(10) == 0


def test_a_token_that_was_lost_between_session_and_queue_is_posted_again(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path, n=1):
        client = client_at(redis_url)
        client.carrier.post = lambda *token: None  # type: ignore[method-assign]  # dies between the two

        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a")

        assert handle.status().tokens == 1
        assert handle.result(15) == "a"


def test_all_that_rq_knew_may_be_lost(redis_url: str, own_redis: Servers, tmp_path: Path) -> None:
    rq = own_redis()
    with ready_pool(redis_url, tmp_path, rq_url=rq.url, n=1):
        client = client_at(redis_url, rq.url)
        handles = [
            client.submit_calls(tasks.held, None, Terms(), ((str(tmp_path), name), {})) for name in ("a", "b")
        ]
        noted(tmp_path, "a")

        rq.ask("FLUSHALL")
        go(tmp_path)

        assert [handle.result(20) for handle in handles] == ["a", "b"]


def test_a_machine_that_is_cut_off_loses_its_session_and_may_not_commit(
    redis_server: Server, redis_url: str, tmp_path: Path
) -> None:
    with Proxy(redis_server) as proxy, pool(proxy.url, tmp_path / "far", n=1, lease=1.0) as far:
        far.ready()
        handle = tasks.call(tasks.held, redis_url, tmp_path, "a")
        _, zombie, _ = noted(tmp_path, "a")[0]
        with ready_pool(redis_url, tmp_path / "near", n=1, lease=1.0) as near:
            since = until(lambda: near.facts().age < 0.1 and time.monotonic())  # type: ignore[union-attr]
            proxy.stall()  # it goes on running, and hears nothing

            _, other, began = noted(tmp_path, "a", 2)[1]
            assert other != zombie
            assert began - since < stretched(1.0 + 1.0)  # lease + 1 s
            go(tmp_path)
            assert handle.result(10) == "a"
            proxy.resume()

            noted(tmp_path, "a-over", 2)
            until(lambda: (facts := far.facts()) is not None and facts.workers[0].state == "idle")
            assert handle.status().steps == 1


def test_a_list_that_the_server_forgot_is_written_anew(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1):
        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a", delay=1.0)
        redis = client_at(redis_url).link.client
        redis.delete(ACTIVE)  # as if it had come back from an older log

        assert handle.result(20) == "a"
        assert redis.exists(f"{keys_of(handle.session)}c")
