"""Links to Redis and Valkey: one server, or sentinels that watch it.

    link = open_link("redis://:secret@host:6379/0")
    step = link.script(LUA)              # EVALSHA through the pool; loaded where it is not known
    wire = link.connection()             # one bare connection for a hot loop: wire.call(step, keys, args)
    link.client                          # everything else, as redis-py has it, in bytes

Promise: a command is executed once or an error says that it may have been; what fails is a
`core.errors.ServerError` (the library's own retries run a script twice when a reply is lost). A link may be
used by several threads and by forked children (each process has its own connections); a wire may not. Not
here: what its keys mean.
"""

from __future__ import annotations

import logging
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from graflow_ckpt.core.errors import BadAddress, ServerGone, ServerTooOld
from graflow_ckpt.links.addresses import Address, no_cluster, options_of, parse
from graflow_ckpt.links.complaints import SILENT, redis, theirs, translated
from graflow_ckpt.links.wire import Argument, Script, Step, Wire, Wires

log = logging.getLogger("graflow_ckpt.sessions")

T = TypeVar("T")

Settings = dict[str, Any]

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# What a pool of redis-py passes to its connections about itself, and what would change what we get.
_NOT_OURS = ("maint", "orig_", "himport_", "event_dispatcher", "oss_cluster", "retry", "cache")


def client_to(address: Address, timeout: float) -> redis.Redis:
    """Return a client of the server at an address."""
    settings = _settings(address, timeout)
    if address.service:
        return _tidy(redis.Redis(connection_pool=_watched(address, settings, timeout)))
    if address.scheme == "unix":
        return _new_client(redis.UnixDomainSocketConnection, {**settings, "path": address.path})
    host, port = _bare(address.hosts[0])
    kind = redis.SSLConnection if address.tls else redis.Connection
    return _new_client(kind, {**settings, "host": host, "port": port})


def client_of(client: redis.Redis, timeout: float) -> redis.Redis:
    """Return another one for the same server with the same credentials; the given client is left alone."""
    pool = client.connection_pool
    settings = {
        name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_NOT_OURS)
    }
    settings |= _manners(timeout)
    if isinstance(pool, redis.SentinelConnectionPool):
        sentinels = redis.Sentinel([])
        sentinels.sentinels = pool.sentinel_manager.sentinels
        settings.pop("connection_pool", None)
        return _tidy(sentinels.master_for(pool.service_name, redis.Redis, **settings))
    return _new_client(pool.connection_class, settings)


def _new_client(kind: type[Any], settings: Settings) -> redis.Redis:
    kind(**settings)  # connects to nothing: an option that is not known shows here, and not in mid-run
    return _tidy(redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **settings)))


def _tidy(client: redis.Redis) -> redis.Redis:
    """Close its idle connections with it, also when it ends as garbage."""
    weakref.finalize(client, client.connection_pool.disconnect, False).atexit = False
    return client


def _watched(address: Address, settings: Settings, timeout: float) -> redis.SentinelConnectionPool:
    own = {
        name.removeprefix("sentinel_"): value
        for name, value in address.secrets.items()
        if name.startswith("sentinel_")
    }
    sentinels = redis.Sentinel(
        [_bare(host) for host in address.hosts], sentinel_kwargs={**_manners(timeout), **_keepalive(), **own}
    )
    return redis.SentinelConnectionPool(address.service, sentinels, ssl=address.tls, **settings)


def _settings(address: Address, timeout: float) -> Settings:
    try:
        given = redis.connection.parse_url(f"redis://?{urlencode(address.options)}")
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
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "health_check_interval": 0,
        **SILENT,
    }


def _keepalive() -> Settings:
    """Return the options by which a vanished machine is noticed, also on a connection that only waits."""
    options = {
        getattr(socket, name): value
        for name, value in _KEEPALIVE.items()
        if name in vars(socket) and not (name == "TCP_KEEPALIVE" and "TCP_KEEPIDLE" in vars(socket))
    }
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def _bare(host: tuple[str, int]) -> tuple[str, int]:
    return host[0].strip("[]"), host[1]


OLDEST = (5, 0)  # what RQ needs, and what scripts need that read the clock before they write


class RedisLink:
    """An open link. `address` is without user and password: it may be stored and shown.

    `client` is of redis-py: bytes, RESP2, no retries.
    """

    def __init__(self, client: redis.Redis, address: str) -> None:
        self.address = address
        self.client: Any = client  # its types allow a coroutine for each reply
        self._scripts: dict[tuple[str, tuple[str, ...]], Script] = {}
        self._wires = Wires(client, address)

    def script(self, source: str, types: Sequence[str] = ()) -> Script:
        known = (source, tuple(types))
        if known not in self._scripts:
            self._scripts[known] = Script(self._wires, source, types)
        return self._scripts[known]

    def connection(self) -> Wire:
        """Return a connection of its own."""
        return self._wires.take()

    def done_with(self, wire: Wire) -> None:
        self._wires.put_back(wire)

    def ask(self, *words: Argument) -> Any:
        """Return the reply to one plain command."""
        return self._wires.lend(lambda wire: wire.ask(*words))

    def ask_text(self, most: int, *words: Argument) -> Any:
        """Do the same where a text of up to so many bytes comes, of which no copy is to be made."""
        return self._wires.lend(lambda wire: wire.ask_text(most, *words))

    def together(self, steps: Sequence[Step]) -> list[Any]:
        """Return the results of the steps, in one round trip.

        All of them are sent again if the server does not know a script, so each has to be one that may be run
        twice. An error of one step is in its place, in our words; the others are run.
        """
        return self._wires.together(steps)

    def now(self) -> float:
        """Return the server's time: the clocks of machines differ."""
        seconds, micros = self.ask("TIME")
        return float(seconds) + float(micros) / 1e6

    def leave_former(self, error: Exception) -> None:
        self._wires.leave_former(error)

    def patiently(self, ask: Callable[[], T], session: str, seconds: float) -> T:
        """Return the answer to something that changes nothing; ServerGone if none comes in so many seconds.

        A restart of the server is no failure of the task that happened to ask.
        """
        deadline, pause = None, 0.02
        while True:
            try:
                with translated(self.address):
                    return ask()
            except ServerGone as error:
                if deadline is None:
                    log.warning("session %s waits: %s", session, error, extra={"session": session})
                    deadline = monotonic() + seconds
                elif monotonic() > deadline:
                    raise
            sleep(pause)
            pause = min(pause * 2, 1.0)

    def close(self) -> None:
        self._wires.close()
        _close(self.client)

    def __repr__(self) -> str:
        return f"RedisLink({self.address})"


def open_link(where: str | redis.Redis | RedisLink, *, timeout: float = 5.0) -> RedisLink:
    """Connect, and look which server it is. A link is returned as it is."""
    if isinstance(where, RedisLink):
        return where
    client, address = _client(where, timeout)
    try:
        with translated(str(address)):
            about = _about(client)
        if about.get("redis_mode", about.get("server_mode")) == "cluster":
            raise no_cluster(str(address))
        _old_enough(about, str(address))
    except BaseException:
        _close(client)
        raise
    address.remember()
    return RedisLink(client, str(address))


def _close(client: redis.Redis) -> None:
    client.close()
    client.connection_pool.disconnect()


def _client(where: Any, timeout: float) -> tuple[redis.Redis, Address]:
    if isinstance(where, str):
        address = parse(where).with_credentials()
        try:
            with translated(str(address)):
                return client_to(address, timeout), address
        except TypeError as error:  # an option that no connection takes; its value is not in the text
            raise BadAddress(f"An option of the address {address} is not known: {error}") from None
    if not isinstance(where, redis.Redis):
        raise no_cluster(f"The given {type(where).__name__}")
    return client_of(where, timeout), _address_of(where).with_credentials()


def _address_of(client: redis.Redis) -> Address:
    """Return the address that a live client leads to."""
    pool = client.connection_pool
    settings: dict[str, Any] = pool.connection_kwargs
    db = int(settings.get("db") or 0)
    if "path" in settings:
        return Address("unix", path=settings["path"], db=db, secrets=_secrets(settings))
    if isinstance(pool, redis.SentinelConnectionPool):
        found = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = tuple((kwargs["host"], int(kwargs["port"])) for kwargs in found)
        return Address("redis+sentinel", hosts, service=pool.service_name, db=db, secrets=_secrets(settings))
    tls = issubclass(pool.connection_class, redis.SSLConnection)
    host = (settings.get("host", "localhost"), int(settings.get("port", 6379)))
    return Address("rediss" if tls else "redis", (host,), db=db, secrets=_secrets(settings))


def _secrets(settings: dict[str, Any]) -> dict[str, str]:
    return {name: settings[name] for name in ("username", "password") if settings.get(name)}


def _about(client: redis.Redis) -> dict[str, Any]:
    """Return which server this is; nothing where it does not say."""
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


# --- how a server is set up ------------------------------------------------------------

_NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `error`: what is kept there can be lost or cannot be changed."""

    level: Literal["ok", "warning", "error"]
    what: str
    hint: str = ""


def examine(link: RedisLink) -> list[Finding]:
    """Check version, role, memory and durability of the server. Each caller decides what follows from it."""
    with translated(link.address):
        try:
            info = dict(link.client.info())
        except redis.ResponseError as error:
            return [Finding("warning", f"{link.address} does not say how it is set up: {error}.")]
        config = _config(link.client)
    return [*_identity(link, info), *_memory(info), *_durability(info, config)]


def _config(client: redis.Redis) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in client.config_get("append*").items()}
    except redis.ResponseError:
        return {}  # hosted servers commonly do not allow it


def _identity(link: RedisLink, info: dict[str, Any]) -> Iterator[Finding]:
    name = info.get("server_name", "redis")
    version = info.get("valkey_version") or info.get("redis_version", "?")
    yield Finding("ok", f"{link.address} is {name} {version}")
    if info.get("role") in ("slave", "replica"):
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Finding(
            "error",
            f"It is a replica of {master} and takes no writes.",
            "Name the master, or the sentinels (redis+sentinel://host:26379/service).",
        )


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory") or 0)
    used = int(info.get("used_memory") or 0)
    if policy == "noeviction":
        yield Finding("ok", "It refuses writes when its memory is full, and drops nothing (noeviction).")
    else:
        yield Finding(
            "error" if limit and policy.startswith("allkeys") else "warning",
            f"When its memory is full it drops keys, of sessions too (maxmemory-policy {policy}).",
            "CONFIG SET maxmemory-policy noeviction, or use a server of its own for sessions.",
        )
    if limit and used > limit * _NEARLY_FULL:
        yield Finding(
            "warning",
            f"It uses {used / 2**20:.0f} of the {limit / 2**20:.0f} MB that it may use (maxmemory).",
            "Raise maxmemory, or remove what is not needed.",
        )


def _durability(info: dict[str, Any], config: dict[str, str]) -> Iterator[Finding]:
    if not int(info.get("aof_enabled") or 0):
        yield Finding(
            "warning",
            "It writes no log of its changes (appendonly no): when it ends, what is newer than its last "
            "snapshot is lost.",
            "CONFIG SET appendonly yes, and the same in its configuration file.",
        )
        return
    policy = config.get("appendfsync", "everysec")
    if policy == "always":
        yield Finding("ok", "Each change is on its disk before it is confirmed (appendfsync always).")
    elif policy == "no":
        yield Finding(
            "warning",
            "Its log is written to the disk whenever the system likes (appendfsync no).",
            "CONFIG SET appendfsync everysec, or always.",
        )
    else:
        yield Finding("ok", "Its log is on its disk within a second (appendfsync everysec).")
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding("error", "It could not write its log the last time.", "Look at its disk and its log.")
