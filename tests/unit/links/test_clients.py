"""How connections are made: once per command, in bytes, with an end to every silence."""

from __future__ import annotations

import socket

import redis

from graflow_ckpt.links.addresses import parse
from graflow_ckpt.links.redis import client_to, open_link
from tests.servers import Server


def test_every_client_is_made_without_retries_and_with_timeouts() -> None:
    for where in (
        "redis://h",
        "rediss://h",
        "unix:///s",
        "redis+sentinel://h/main",
        "rediss+sentinel://h/main",
    ):
        client = client_to(parse(where), 3.0)

        settings = client.connection_pool.connection_kwargs
        assert settings["retry"].get_retries() == 0, where
        assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (3.0, 3.0), where
        assert (settings["decode_responses"], settings["protocol"]) == (False, 2), where
        assert settings["health_check_interval"] == 0, where


def test_a_client_that_retries_gives_a_link_that_does_not(redis_server: Server, redis_url: str) -> None:
    link = open_link(redis_server.client())

    assert link.client.connection_pool.connection_kwargs["retry"].get_retries() == 0
    link.close()


def test_a_vanished_machine_is_noticed_on_a_connection_that_only_waits(redis_url: str) -> None:
    link = open_link(redis_url)
    connection = link.client.connection_pool.get_connection()
    opened = connection._sock

    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if "TCP_KEEPIDLE" in vars(socket):
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    link.client.connection_pool.release(connection)
    link.close()


def test_tls_is_spoken_where_the_address_says_so() -> None:
    for where in ("rediss://h", "rediss://h?ssl_cert_reqs=none"):
        pool = client_to(parse(where), 3.0).connection_pool

        assert issubclass(pool.connection_class, redis.SSLConnection)
    assert pool.connection_kwargs["ssl_cert_reqs"] == "none"
    assert pool.connection_class(**pool.connection_kwargs).host == "h"


def test_an_address_of_version_six_is_connected_to_without_its_brackets() -> None:
    assert client_to(parse("redis://[::1]:7"), 3.0).connection_pool.connection_kwargs["host"] == "::1"
