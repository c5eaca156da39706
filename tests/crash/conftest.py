"""A key for those who seal, in the environment that processes of the tests inherit; stores with a way to
them on which their users and servers can be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graflow_ckpt.fleet import client
from graflow_ckpt.stores.around.keys import new_key
from tests.crash import doomed as doomed_module
from tests.crash import ways
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.checkpoint import trios

if TYPE_CHECKING:
    from tests.postgres_servers import PostgresServer


@pytest.fixture
def fleet_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key for this test. Clients of others have another one, and know of programs that are gone by now."""
    key = new_key()
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", key)
    mine: dict[tuple[str, str], client.Client] = {}
    monkeypatch.setattr(client, "_clients", mine)
    yield key
    for one in mine.values():
        one.close()


@pytest.fixture(scope="module")
def doomed() -> Iterator[doomed_module.Doomed]:
    """Who forks those that are to die."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        process = doomed_module.Doomed()
    yield process
    process.close()


@pytest.fixture
def way_to(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    doomed: doomed_module.Doomed,
) -> Iterator[Callable[[str], ways.Way]]:
    """Makes an empty store of a kind, with a way to it."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    doomed_module.small_chunks(monkeypatch)
    with ExitStack() as stack:

        def made(kind: str) -> ways.Way:
            if kind not in ways.FAR:
                return ways.near(kind, tmp_path, doomed)
            server, url = _served(kind, request, stack)
            return ways.far(kind, server, url, stack.enter_context(Proxy(server)), doomed)

        yield made


def _served(kind: str, request: pytest.FixtureRequest, stack: ExitStack) -> tuple[Any, str]:
    if kind == "redis":  # one that keeps a journal has to sync it
        redis = stack.enter_context(Server({"appendonly": "yes", "appendfsync": "always"}))
        return redis, redis.url
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        return postgres, request.getfixturevalue("postgres_url")
    objects: ObjectServer = request.getfixturevalue("object_server")
    return objects, request.getfixturevalue("objects_url")


@pytest.fixture(params=ways.KINDS)
def way(request: pytest.FixtureRequest, way_to: Callable[[str], ways.Way]) -> ways.Way:
    """To each kind of store in turn."""
    return way_to(request.param)
