"""Clients of redis-py for one server, or for the master that sentinels name at each new connection.

Every client that is made here executes a command once (the library's own retries run a script twice
when a reply is lost), gets bytes, and gives up after `timeout` seconds of silence.
Not here: what is sent, and in whose words it fails.
"""

from __future__ import annotations

import socket
import weakref
from typing import Any
from urllib.parse import urlencode

from graflow_ckpt.core.errors import BadAddress
from graflow_ckpt.links.addresses import Address, options_of
from graflow_ckpt.links.library import (
    SILENT,
    Connection,
    ConnectionPool,
    NoBackoff,
    Retry,
    Sentinel,
    SentinelConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
    redis,
)

Settings = dict[str, Any]

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# What a pool of redis-py tells its connections about itself, and what would change what we get.
_NOT_OURS = ("maint", "orig_", "himport_", "event_dispatcher", "oss_cluster", "retry", "cache")


def client_to(address: Address, timeout: float) -> redis.Redis:
    """Return a client of the server at an address."""
    settings = _settings(address, timeout)
    if address.kind == "sentinel":
        return _tidy(redis.Redis(connection_pool=_watched(address, settings, timeout)))
    if address.scheme == "unix":
        return _client(UnixDomainSocketConnection, {**settings, "path": address.path})
    host, port = _bare(address.hosts[0])
    kind = SSLConnection if address.tls else Connection
    return _client(kind, {**settings, "host": host, "port": port})


def client_of(client: redis.Redis, timeout: float) -> redis.Redis:
    """Return another one for the same server with the same credentials; the given client is left alone."""
    pool = client.connection_pool
    settings = {
        name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_NOT_OURS)
    }
    settings |= _manners(timeout)
    if isinstance(pool, SentinelConnectionPool):
        sentinels = Sentinel([])
        sentinels.sentinels = pool.sentinel_manager.sentinels
        settings.pop("connection_pool", None)
        return _tidy(sentinels.master_for(pool.service_name, redis.Redis, **settings))
    return _client(pool.connection_class, settings)


def _client(kind: type[Any], settings: Settings) -> redis.Redis:
    kind(**settings)  # connects to nothing: an option that is not known shows here, and not in mid-run
    return _tidy(redis.Redis(connection_pool=ConnectionPool(connection_class=kind, **settings)))


def _tidy(client: redis.Redis) -> redis.Redis:
    """Its idle connections are closed with it, also when nobody closes it and it ends as garbage."""
    weakref.finalize(client, client.connection_pool.disconnect, False).atexit = False
    return client


def _watched(address: Address, settings: Settings, timeout: float) -> SentinelConnectionPool:
    own = {
        name.removeprefix("sentinel_"): value
        for name, value in address.secrets.items()
        if name.startswith("sentinel_")
    }
    sentinels = Sentinel(
        [_bare(host) for host in address.hosts], sentinel_kwargs={**_manners(timeout), **_keepalive(), **own}
    )
    return SentinelConnectionPool(address.service, sentinels, ssl=address.tls, **settings)


def _settings(address: Address, timeout: float) -> Settings:
    try:
        given = parse_url(f"redis://?{urlencode(address.options)}")
    except ValueError as error:
        raise BadAddress(f"An option of the address {address} cannot be read: {error}") from None
    settings = {"db": address.db, **options_of(address.secrets), **_manners(timeout)}
    if address.scheme != "unix":
        settings |= _keepalive()
    ours = ("decode_responses", "protocol", "retry", "retry_on_timeout", "health_check_interval")
    return settings | {name: value for name, value in given.items() if name not in ours}


def _manners(timeout: float) -> Settings:
    return {
        "decode_responses": False,
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        **SILENT,
    }


def _keepalive() -> Settings:
    """A machine that vanished is noticed, also on a connection that only waits."""
    options = {
        getattr(socket, name): value
        for name, value in _KEEPALIVE.items()
        if name in vars(socket) and not (name == "TCP_KEEPALIVE" and "TCP_KEEPIDLE" in vars(socket))
    }
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def _bare(host: tuple[str, int]) -> tuple[str, int]:
    return host[0].strip("[]"), host[1]
