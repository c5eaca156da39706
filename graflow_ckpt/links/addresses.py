"""Addresses of Redis servers: read once at the door, shown without what is secret.

    redis://[user:password@]host[:port][/db][?option=value]     rediss:// is the same over TLS
    unix://[user:password@]/path/to/socket[?db=0]
    redis+sentinel://[user:password@]host:port[,host:port…]/service[/db]

Promise: `str()` and `repr()` of an address, and every message about one, leave out user, password
and options. What is stored is that text; so that it can be opened again, this process remembers the
credentials that it has used per server, and those of GRAFLOW_CKPT_REDIS_URL count for that server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, unquote

from graflow_ckpt.core.errors import BadAddress

URL_VARIABLE = "GRAFLOW_CKPT_REDIS_URL"
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")

_CLUSTERS = ("redis+cluster", "rediss+cluster")
_SECRETS = ("username", "password", "sentinel_username", "sentinel_password")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?\Z")
_known: dict[tuple[object, ...], Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a server. `options` are the query's; `secrets` are user and password."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""  # of a Unix socket
    service: str = ""  # that sentinels watch
    db: int = 0
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}?db={self.db}" if self.db else f"unix://{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{hosts}{service}/{self.db}"

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def server(self) -> tuple[object, ...]:
        """The server that the same credentials are for."""
        return (self.hosts, self.path, self.service)

    def with_credentials(self, environment: Mapping[str, str] = os.environ) -> Address:
        """Return the address with those credentials of this server that are known, unless it has its own."""
        if self.secrets:
            return self
        if found := _known.get(self.server):
            return replace(self, secrets=found)
        if text := environment.get(URL_VARIABLE, "").strip():
            named = parse(text)
            if named.server == self.server:
                return replace(self, secrets=named.secrets, options={**named.options, **self.options})
        return self

    def remember(self) -> None:
        """Remember the credentials that opened the server, for addresses where only the text is left."""
        if self.secrets:
            _known[self.server] = self.secrets


def parse(where: str) -> Address:
    """Read an address; what cannot be one is refused without showing what it holds."""
    scheme, separator, rest = where.partition("://")
    scheme = scheme.lower()
    if separator and scheme in _CLUSTERS:
        raise no_cluster(f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}")
    if not separator or scheme not in SCHEMES:
        raise BadAddress(
            f"{masked(where)!r} is not the address of a Redis server.",
            hint=f"One begins with {', '.join(f'{known}://' for known in SCHEMES)}.",
            address=masked(where),
        )
    rest, _, query = rest.partition("?")
    if ("@" in query and "@" not in rest) or "#" in rest:  # a password that was not encoded ends too early
        raise _unreadable(scheme)
    options = {name: values[0] for name, values in parse_qs(query).items()}
    netloc, slash, path = rest.partition("/")
    credentials, _, hosts = netloc.rpartition("@")
    if "@" in path or "@" in credentials:
        raise _unreadable(scheme)
    user, _, password = credentials.partition(":")
    secrets = {"username": unquote(user), "password": unquote(password)}
    secrets |= {name: options.pop(name) for name in _SECRETS if name in options}
    secrets = {name: value for name, value in secrets.items() if value}
    if scheme == "unix":
        if hosts or not path:
            raise _unreadable(scheme)
        db = _number(scheme, options.pop("db", "0"))
        return Address(scheme, path=slash + unquote(path), db=db, options=options, secrets=secrets)
    port = 26379 if scheme.endswith("+sentinel") else 6379
    places = tuple(_host(scheme, host, port) for host in hosts.split(","))
    service, db_text = _below(scheme, path)
    return Address(
        scheme,
        places,
        service=service,
        db=_number(scheme, options.pop("db", "") or db_text or "0"),
        options=options,
        secrets=secrets,
    )


def no_cluster(shown: str) -> BadAddress:
    """Return the refusal of a Redis Cluster."""
    return BadAddress(
        f"{shown} is a Redis Cluster: neither sessions nor checkpoints nor RQ's queues can be kept there.",
        hint="Name one server, or the sentinels that watch one (redis+sentinel://host:26379/service).",
        address=shown,
    )


def masked(text: str) -> str:
    """Return any text that may be an address, without credentials and query."""
    text = re.sub(r"(?<=://)\S*@" if "://" in text else r"^\S*@", "", text)
    return text.partition("?")[0] if "://" in text else text


def options_of(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the credentials for the server itself, as a client takes them."""
    return {name: value for name, value in secrets.items() if name in ("username", "password")}


def _below(scheme: str, path: str) -> tuple[str, str]:
    parts = [unquote(part) for part in path.split("/") if part]
    if scheme.endswith("+sentinel"):
        if not 1 <= len(parts) <= 2:
            raise BadAddress(
                f"An address that begins with {scheme}:// names the service after the hosts.",
                hint=f"As in {scheme}://host:26379,host:26379/mymaster/0.",
            )
        return parts[0], parts[1] if len(parts) == 2 else ""
    if len(parts) > 1:
        raise _unreadable(scheme)
    return "", parts[0] if parts else ""


def _host(scheme: str, text: str, port: int) -> tuple[str, int]:
    found = _HOST.match(text or "localhost")
    if found is None or int(found["port"] or port) > 65535:
        raise _unreadable(scheme)
    return found["host"], int(found["port"] or port)


def _number(scheme: str, text: str) -> int:
    if not text.isdecimal():
        raise BadAddress(f"The database of a {scheme}:// address is a number, as in {scheme}://host:6379/0.")
    return int(text)


def _unreadable(scheme: str) -> BadAddress:
    return BadAddress(  # without the text: wherever it breaks, the next piece may be the password
        f"The address that begins with {scheme}:// cannot be read.",
        hint="It is written SCHEME://[USER:PASSWORD@]HOST:PORT/DB; in user and password each of / ? # @ : % "
        "is written as %2F %3F %23 %40 %3A %25.",
    )
