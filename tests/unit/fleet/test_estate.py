"""What a dead child left is settled at once, or when the server is back, and never waited for."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from graflow_ckpt.fleet import pool as estates
from graflow_ckpt.fleet.board import Run
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.pool import Estate
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.tables import frozen
from graflow_ckpt.stores.keys import Keyring
from tests.servers import Server
from tests.unit.fleet.played import Player, bag, tokens


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estates, "AGAIN", 0.0)


def estate_at(url: str) -> Estate:
    return Estate(url, url, ["default"])


def test_a_debt_is_settled_at_once(client: Client, redis_url: str) -> None:
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s")
    player.claim()
    estate = estate_at(redis_url)

    estate.owes(Run("s", player.token), "it was killed", crashed=True)
    estate.settle()

    assert handle.status().ready == 1
    assert handle.pending()[0]["crashes"] == 1
    assert estate.patience > 1


def test_a_server_that_is_away_is_asked_again_later(
    keyring: Keyring, own_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    client = Client(open_link(server.url), keyring=keyring)
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s")
    player.claim()
    estate = estate_at(server.url)
    server.kill()
    estate.owes(Run("s", player.token), "it was killed", crashed=True)
    began = time.monotonic()

    for _ in range(3):
        estate.settle()
    away = time.monotonic() - began
    server.start()
    estate.settle()

    assert away < 2
    assert caplog.text.count("waits") == 1
    assert handle.status().ready == 1
    client.close()


def test_a_session_that_is_frozen_does_not_hold_up_the_others(client: Client, redis_url: str) -> None:
    handles = [bag(client, name, tasks=1) for name in ("a", "b")]
    players = [Player(client, name) for name in ("a", "b")]
    estate = estate_at(redis_url)
    for player in players:
        player.claim()
        estate.owes(Run(player.session.id, player.token), "it was killed", crashed=True)

    with frozen(client.link, "a"):
        for _ in range(2):
            estate.settle()
        during = [handle.status().ready for handle in handles]
    estate.settle()

    assert during == [0, 1]
    assert [handle.status().ready for handle in handles] == [1, 1]


def test_a_session_that_is_gone_owes_nothing(client: Client, redis_url: str) -> None:
    estate = estate_at(redis_url)

    estate.owes(Run("nobody", "e1t1"), "it was killed", crashed=True)
    estate.settle()

    assert estate.patience > 1


def test_a_dead_worker_is_struck_from_rq_s_list(client: Client, redis_url: str) -> None:
    connection: Any = client.carrier.connection
    worker = SimpleWorker(["graflow-default"], "ghost", connection=connection, serializer=JSONSerializer)
    worker.register_birth()
    estate = estate_at(redis_url)

    estate.leaves("ghost", listed=True)
    estate.leaves("never-seen", listed=True)
    estate.settle()

    assert connection.smembers("rq:workers") == set()


def test_what_the_dead_had_taken_from_rq_is_posted_again(client: Client, redis_url: str) -> None:
    handle = bag(client, "s", tasks=1)
    queue = client.carrier.queue("default")
    (name,) = queue.job_ids
    client.carrier.connection.lmove(queue.key, queue.intermediate_queue_key)
    estate = estate_at(redis_url)

    estate.leaves("ghost", listed=False)
    estate.settle()

    assert queue.job_ids == [name]
    assert client.carrier.taken_by_nobody("default") == []
    assert len(tokens(handle)) == 1


def test_what_somebody_has_begun_on_is_not(client: Client, redis_url: str) -> None:
    bag(client, "s", tasks=1)
    queue = client.carrier.queue("default")
    (name,) = queue.job_ids
    Player(client, "s")
    client.carrier.connection.lpush(queue.intermediate_queue_key, name)
    estate = estate_at(redis_url)

    estate.leaves("ghost", listed=False)
    estate.settle()

    assert queue.job_ids == []
