"""Links to Redis and Valkey: one server, sentinels, a cluster.

    link = open_link("redis://:secret@host:6379/0")
    step = link.script(LUA)              # EVALSHA through the pool; loaded where it is not known
    wire = link.connection(key)          # one bare connection for a hot loop: wire.call(step, keys, args)
    link.client                          # everything else, as redis-py has it, in bytes

Promise: a command is executed once or an error says that it may have been; what fails is a
`core.errors.ServerError`. A link may be used by several threads and by forked children (each
process has its own connections); a wire may not.
Not here: how a server is set up (examination.py), and what its keys mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graflow_ckpt.core.errors import BadAddress, ServerTooOld
from graflow_ckpt.links.addresses import Address, parse
from graflow_ckpt.links.complaints import Key, translated
from graflow_ckpt.links.library import RedisCluster, SentinelConnectionPool, redis, theirs
from graflow_ckpt.links.routes import Cluster, Route, cluster_of, route_of, route_to
from graflow_ckpt.links.scripts import Script
from graflow_ckpt.links.wire import Wire

_IDLE = 4  # connections that are kept for the next who asks
OLDEST = (5, 0)  # what RQ needs, and what scripts need that read the clock before they write


class RedisLink:
    """An open link. `address` is without user and password: it may be stored and shown."""

    def __init__(self, route: Route, address: str) -> None:
        self.address = address
        self.route = route
        self._scripts: dict[tuple[str, tuple[str, ...]], Script] = {}
        self._idle: list[Wire] = []
        self._heirloom: Wire | None = None
        self._bequeaths = not isinstance(route, Cluster)

    @property
    def client(self) -> redis.Redis:
        """Of redis-py: bytes, RESP2, no retries. For a cluster its cluster client."""
        client: redis.Redis = self.route.client
        return client

    def script(self, source: str, types: Sequence[str] = ()) -> Script:
        known = (source, tuple(types))
        if known not in self._scripts:
            self._scripts[known] = Script(self.route, self.address, source, types)
        return self._scripts[known]

    def connection(self, key: Key | None = None) -> Wire:
        """A connection of its own to the server that has `key`."""
        if (heirloom := self._heirloom) is not None and heirloom.inherit():
            self._heirloom = None
            return heirloom
        while self._idle:
            wire = self._idle.pop()
            if wire.is_fresh():
                return wire
            wire.close()
        return Wire(self.route, self.address, key)

    def done_with(self, wire: Wire) -> None:
        """The next who asks may have it: to open one costs as much as a hundred calls."""
        if wire.rests and len(self._idle) < _IDLE and not isinstance(self.route, Cluster):
            self._idle.append(wire)
        else:
            wire.close()  # in a cluster the next key may be another node's

    def provide(self) -> None:
        """Have a connection open for the next child: to open one takes it longer than all the rest."""
        if self._heirloom is not None and not self._heirloom.is_fresh():
            self._heirloom.close()
            self._heirloom = None
        if self._heirloom is None and self._bequeaths:
            wire = Wire(self.route, self.address)
            if wire.heritable:
                self._heirloom = wire
            else:
                self._bequeaths = False  # nor are those that would be opened later
                self.done_with(wire)

    def provided(self) -> None:
        """The child has been forked; what was opened for it is its own."""
        if self._heirloom is not None:
            self._heirloom.leave_to_child()
            self._heirloom = None

    def close(self) -> None:
        self.provided()
        while self._idle:
            self._idle.pop().close()
        self.route.close()

    def __repr__(self) -> str:
        return f"RedisLink({self.address})"


def open_link(where: str | redis.Redis | RedisCluster | RedisLink, *, timeout: float = 5.0) -> RedisLink:
    """Connect, and look whom we have before us. A link is returned as it is."""
    if isinstance(where, RedisLink):
        return where
    route, address = _route(where, timeout)
    try:
        with translated(str(address)):
            about = _about(route)
            mode = about.get("redis_mode", about.get("server_mode"))
            if mode == "cluster" and not isinstance(route, Cluster):
                route.close()
                route = cluster_of(address, timeout)
        _old_enough(about, str(address))
    except BaseException:
        route.close()
        raise
    address.remember()
    return RedisLink(route, str(address))


def _route(where: str | redis.Redis | RedisCluster, timeout: float) -> tuple[Route, Address]:
    if isinstance(where, str):
        address = parse(where).with_credentials()
        try:
            with translated(str(address)):
                return route_to(address, timeout), address
        except TypeError as error:  # an option that no connection takes; its value is not in the text
            raise BadAddress(f"An option of the address {address} is not known: {error}") from None
    address = _address_of(where).with_credentials()
    if isinstance(where, RedisCluster):
        return cluster_of(address, timeout), address
    return route_of(where, timeout), address


def _address_of(client: redis.Redis | RedisCluster) -> Address:
    """Where a live client leads to."""
    if isinstance(client, RedisCluster):
        settings: dict[str, Any] = client.nodes_manager.connection_kwargs
        hosts = tuple((str(node.host), int(node.port)) for node in client.get_primaries())
        return Address("redis+cluster", hosts, secrets=_secrets(settings))
    pool = client.connection_pool
    settings = pool.connection_kwargs
    db = int(settings.get("db") or 0)
    if "path" in settings:
        return Address("unix", path=settings["path"], db=db, secrets=_secrets(settings))
    if isinstance(pool, SentinelConnectionPool):
        found = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = tuple((kwargs["host"], int(kwargs["port"])) for kwargs in found)
        return Address("redis+sentinel", hosts, service=pool.service_name, db=db, secrets=_secrets(settings))
    tls = issubclass(pool.connection_class, redis.SSLConnection)
    host = (settings.get("host", "localhost"), int(settings.get("port", 6379)))
    return Address("rediss" if tls else "redis", (host,), db=db, secrets=_secrets(settings))


def _secrets(settings: dict[str, Any]) -> dict[str, str]:
    return {name: settings[name] for name in ("username", "password") if settings.get(name)}


def _about(route: Route) -> dict[str, Any]:
    """Which server this is; nothing where it does not say."""
    client = route.client_for(None)
    try:
        return dict(client.info("server"))
    except (theirs.NoPermissionError, theirs.ResponseError):
        client.ping()
        return {}


def _old_enough(about: dict[str, Any], address: str) -> None:
    version = str(about.get("redis_version", ""))
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if parts and parts < OLDEST:
        raise ServerTooOld(
            f"{address} is Redis {version}; {'.'.join(map(str, OLDEST))} or newer is needed.",
            hint="Use a newer Redis, or Valkey.",
            address=address,
            version=version,
        )
