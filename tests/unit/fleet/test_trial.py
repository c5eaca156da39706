"""The trial: with all rights it leaves nothing, with one too few it says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import ServerRefuses
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.fleet.health import hears, try_queue, try_session
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis import RedisSession
from graflow_ckpt.sessions.tables import read_state, write_state
from tests.servers import Server
from tests.unit.sessions.pair import SESSION, Plain

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
