"""Links for the tests of sessions: to a fake that runs Lua in this process, and to a real server."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest
from hypothesis import settings

from graflow_ckpt.links.redis import RedisLink, open_link
from tests.servers import Server


@pytest.fixture(scope="session")
def _fake_link() -> Iterator[RedisLink]:
    link = open_link(fakeredis.FakeRedis())
    yield link
    link.close()


@pytest.fixture(scope="session")
def server_link(redis_server: Server) -> Iterator[RedisLink]:
    """To the server of these tests; each empties it."""
    link = open_link(redis_server.url)
    yield link
    link.close()


@pytest.fixture(params=["fake", "server"])
def link(request: pytest.FixtureRequest, _fake_link: RedisLink, server_link: RedisLink) -> RedisLink:
    """An empty fake, and an empty server."""
    found = _fake_link if request.param == "fake" else server_link
    found.client.flushall()
    return found


@pytest.fixture
def histories(link: RedisLink, _fake_link: RedisLink) -> range:
    """Seeds: as many as the profile has examples, and half of them on the fake, which is slow."""
    most = settings().max_examples
    return range(most // 2 if link is _fake_link else most)
