"""What is said of how a server is set up."""

from __future__ import annotations

from collections.abc import Callable

import fakeredis
import pytest

from graflow_ckpt.links.examination import Finding, examine
from graflow_ckpt.links.redis import open_link
from tests.servers import Server


def findings(server: Server) -> list[Finding]:
    link = open_link(server.url)
    try:
        return examine(link)
    finally:
        link.close()


def said(server: Server, level: str) -> str:
    return " ".join(f"{found.what} {found.hint}" for found in findings(server) if found.level == level)


def test_a_server_that_keeps_everything_has_nothing_to_be_told(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always", "requirepass": "hunter2"})

    found = findings(server)

    assert {finding.level for finding in found} == {"ok"}
    assert "valkey" in found[0].what
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("config", "level", "what"),
    [
        ({}, "warning", "appendonly no"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warning", "appendfsync no"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "within a second"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "error", "allkeys-lru"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "warning", "volatile-ttl"),
        ({"maxmemory-policy": "allkeys-lru"}, "warning", "allkeys-lru"),
        ({"maxmemory": "1mb"}, "warning", "maxmemory"),
        ({"maxmemory": "100mb"}, "ok", "noeviction"),
    ],
)
def test_each_weakness_is_told(
    own_redis: Callable[..., Server], config: dict[str, str], level: str, what: str
) -> None:
    assert what in said(own_redis(config), level)


def test_a_replica_names_its_master(own_redis: Callable[..., Server]) -> None:
    master = own_redis()

    assert f"replica of 127.0.0.1:{master.port}" in said(own_redis(replica_of=master), "error")


def test_what_may_not_be_looked_at_is_a_warning(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes"})
    server.ask("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "+@all", "-config")
    link = open_link(server.url.replace("redis://", "redis://worker:hunter2@"))
    assert all(found.level == "ok" for found in examine(link))

    server.ask("ACL", "SETUSER", "worker", "-info")
    assert [found.level for found in examine(link)] == ["warning"]
    link.close()
    assert [found.level for found in examine(open_link(fakeredis.FakeRedis()))] == ["warning"]
