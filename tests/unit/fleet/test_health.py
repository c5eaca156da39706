"""Signs of life, and what a probe makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from graflow_ckpt.core.errors import ServerRefuses
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.fleet.board import Board
from graflow_ckpt.fleet.health import (
    PoolFacts,
    WorkerFacts,
    health,
    hears,
    pools,
    sign,
    sign_off,
    try_queue,
    try_session,
    worker_facts,
)
from graflow_ckpt.fleet.lists import POOLS, pool_key
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.processes import describe, myself
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state, write_state
from tests.servers import Server, free_port
from tests.unit.fleet.played import dead
from tests.unit.sessions.pair import SESSION, Plain


def worker(owner: Owner, session: str = "") -> WorkerFacts:
    token = "e1t1" if session else ""
    return WorkerFacts("worker-1", owner, "busy" if session else "idle", session, token, 0.5, 3)


def pool(name: str = "p", owner: Owner | None = None, *workers: WorkerFacts, **changed: Any) -> PoolFacts:
    facts = PoolFacts(
        name, owner or myself(), myself(), ("default",), time.time(), "1", "3.11",
        False, 0, workers or (worker(myself()),), {"taken": 0},
    )  # fmt: skip
    return replace(facts, **changed)


def test_what_a_pool_says_of_itself_others_read(link: RedisLink) -> None:
    said = pool("p", None, worker(myself(), "s"))

    sign(link, said)

    (found,) = pools(link)
    assert replace(found, age=0.0) == said
    assert 0 <= found.age < 5


def test_a_pool_that_has_ended_is_not_there(link: RedisLink) -> None:
    sign(link, pool())
    sign_off(link, "p")

    assert pools(link) == []


def test_a_line_of_the_board_becomes_facts() -> None:
    line = Board(1).lines[0]
    line.begin(os.getpid())
    line.note("s", "e1t1")

    facts = worker_facts("worker-1", line)

    assert (facts.session, facts.token, facts.state, facts.slices) == ("s", "e1t1", "busy", 1)
    assert facts.owner.started == describe(os.getpid()).started


def test_a_pool_that_is_well_is_well(redis_url: str, link: RedisLink) -> None:
    sign(link, pool("p", None, worker(myself()), worker(myself(), "s")))

    well, text = health(redis_url)

    assert well
    assert "2 workers, 1 busy, on default" in text


def test_without_a_pool_nothing_is_well(redis_url: str) -> None:
    well, text = health(redis_url)

    assert not well
    assert "No pool" in text


def test_pools_elsewhere_do_not_count(redis_url: str, link: RedisLink) -> None:
    sign(link, pool(owner=replace(myself(), boot="another machine")))
    sign(link, pool("q", replace(myself(), pid_ns="another container")))

    assert not health(redis_url)[0]


def test_a_worker_that_is_gone_is_named(redis_url: str, link: RedisLink) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = describe(process.pid)
    sign(link, pool("p", None, worker(owner)))
    before = health(redis_url)[0]
    process.kill()
    process.wait()

    well, text = health(redis_url)

    assert before
    assert not well
    assert str(owner.pid) in text


def test_a_parent_that_is_gone_is_named(redis_url: str, link: RedisLink) -> None:
    sign(link, pool(owner=dead()))

    well, text = health(redis_url)

    assert not well
    assert "parent" in text


def test_a_pool_that_gives_no_sign_is_not_well(redis_url: str, link: RedisLink) -> None:
    sign(link, pool())
    client: Any = link.client
    client.zincrby(POOLS, -20_000, "p")

    well, text = health(redis_url)

    assert not well
    assert "no sign of life for 20 s" in text


def test_a_sign_does_not_outlive_its_time(link: RedisLink) -> None:
    sign(link, pool())

    assert 0 < link.client.pttl(pool_key("p")) <= 10_000  # type: ignore[operator]


def test_of_several_pools_those_of_the_queues_are_asked(redis_url: str, link: RedisLink) -> None:
    sign(link, pool("well"))
    sign(link, pool("ill", dead(), queues=("gpu",)))

    assert health(redis_url, ["default"])[0]
    assert not health(redis_url, ["gpu"])[0]
    assert not health(redis_url)[0]


def test_a_server_that_is_away_is_said_without_a_password() -> None:
    well, text = health(f"redis://:hidden-word@127.0.0.1:{free_port()}/0")

    assert not well
    assert "127.0.0.1" in text
    assert "hidden-word" not in text


# --- the trial --------------------------------------------------------------------------


NEEDED = ["-@all", "+@read", "+@write", "+@connection", "+@scripting", "+@transaction", "+info", "+time"]
KEYS = ("~graflow:*", "~rq:*")


def server_of(own_redis: Callable[..., Server], *rights: str) -> tuple[Server, str]:
    server = own_redis()
    server.ask("ACL", "SETUSER", "worker", "reset", "on", ">hunter2", *KEYS, "resetchannels", *rights)
    return server, server.url.replace("redis://", "redis://worker:hunter2@")


@pytest.mark.parametrize("channels", [True, False])
def test_a_user_of_the_documented_rights_works_and_leaves_nothing(
    own_redis: Callable[..., Server], channels: bool
) -> None:
    server, url = server_of(own_redis, *NEEDED, *(["+@pubsub", "&graflow:*"] if channels else []))
    link = open_link(url)

    try_session(link)
    try_queue(Carrier(link.client))

    assert hears(link) is channels
    assert server.client().keys() == []
    link.close()


@pytest.mark.parametrize("lacks", ["expire", "zpopmin", "hincrby", "rpush", "lrange", "rename", "set"])
def test_a_right_that_is_lacking_is_named(own_redis: Callable[..., Server], lacks: str) -> None:
    _, url = server_of(own_redis, *NEEDED, f"-{lacks}")
    link = open_link(url)

    with pytest.raises(ServerRefuses, match=f"'{lacks}'"):
        try_session(link)

    link.close()


def test_an_end_whose_expiry_is_refused_is_an_end(own_redis: Callable[..., Server]) -> None:
    """What stands behind the writes of a commit may be refused without it."""
    _, url = server_of(own_redis, *NEEDED, "-expire")
    link = open_link(url)
    write_state(link, SessionState(SESSION), Plain(), {"ttl": "60", "kept": "60"}, verb="create", flags="f")
    outside = RedisSession(link, SESSION, Plain())

    outside.commit([("claim", 0)])

    assert read_state(link, SESSION, Plain()).status == "completed"
    outside.close()
    link.close()
