"""Names in a Postgres store: from a path to the database and the row that it means.

    postgresql://[user:password@]host[:port][,host…]/database[?option=value]     the store
    postgresql://host:port/database                 how it is shown, stored, and what paths start with
    postgresql://host:port/database/NAME            a checkpoint
    postgresql://%2Frun%2Fpostgresql/database       a server behind a Unix socket; also ?host=/run/postgresql

`postgres://` is the same. Options are libpq's (sslmode, target_session_attrs, …).

Promise: what is shown and stored leaves out user, password and options. So that it can be opened
again, this process remembers the credentials that have opened a database, and those in
GRAFLOW_CKPT_STORE count for the database that it names; libpq's own sources (PGUSER, ~/.pgpass, …)
come after these. Nothing is asked here, and psycopg is not loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, unquote

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.names import base_of
from graflow_ckpt.stores.prefixes import unwrapped

SCHEMES = ("postgresql", "postgres")
STORE_VARIABLE = "GRAFLOW_CKPT_STORE"

_PORT = 5432
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.%~-]*)(?::(?P<port>\d{1,5}))?\Z")
_known: dict[tuple[object, ...], Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database. `options` are the query's, `secrets` the user and the password."""

    hosts: tuple[tuple[str, int], ...]
    database: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"{_shown(host)}:{port}" for host, port in self.hosts)
        return f"postgresql://{hosts}/{quote(self.database, safe='')}"

    @property
    def place(self) -> tuple[object, ...]:
        """The place that the same credentials are for."""
        return (self.hosts, self.database)

    def arguments(self) -> dict[str, str]:
        """Return the arguments as libpq takes them."""
        return {
            **self.options,
            **self.secrets,
            "host": ",".join(host.strip("[]") for host, _ in self.hosts),
            "port": ",".join(str(port) for _, port in self.hosts),
            "dbname": self.database,
        }

    def with_credentials(self, environment: Mapping[str, str] = os.environ) -> PostgresAddress:
        """Return the address with the known credentials of this database, unless it has its own."""
        if self.secrets:
            return self
        if found := _known.get(self.place):
            options = {name: value for name, value in found.items() if name not in _WHO}
            secrets = {name: value for name, value in found.items() if name in _WHO}
            return replace(self, secrets=secrets, options={**options, **self.options})
        text = unwrapped(environment.get(STORE_VARIABLE, "").strip())
        if is_postgres(text):
            named = parse(divided(text)[0])
            if named.place == self.place:
                return replace(self, secrets=named.secrets, options={**named.options, **self.options})
        return self

    def remember(self) -> None:
        """Remember these: they have opened the database, and will again, where only the text is left."""
        if self.secrets or self.options:
            _known[self.place] = {**self.options, **self.secrets}


_WHO = ("user", "password", "sslpassword")


def parse(where: str) -> PostgresAddress:
    """Read the address of a store; what cannot be one is refused without showing what it holds."""
    scheme, separator, rest = where.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        raise BadAddress(
            f"{masked(where)!r} is not the address of a Postgres database.",
            hint="One is written postgresql://host:port/database.",
            address=masked(where),
        )
    rest, _, query = rest.partition("?")
    if "#" in rest + query or ("@" in query and "@" not in rest):
        raise _unreadable()  # a password that was not encoded ends too early
    options = dict(parse_qsl(query, keep_blank_values=True))
    netloc, _, path = rest.partition("/")
    credentials, _, hosts = netloc.rpartition("@")
    if "@" in path or "@" in credentials:
        raise _unreadable()
    user, _, password = credentials.partition(":")
    secrets = {"user": unquote(user), "password": unquote(password)}
    secrets |= {name: options.pop(name) for name in _WHO if name in options}
    database = unquote(path.strip("/")) or options.pop("dbname", "")
    if not database or "/" in path.strip("/"):
        raise BadAddress(
            "The address of a Postgres database names no database."
            if not database
            else "The address of a Postgres database has more than a database after the host.",
            hint="It is written postgresql://host:port/database.",
        )
    port = options.pop("port", "")
    named = options.pop("host", "")
    places = [_host(host, port) for host in ((named and quote(named, safe=",")) or hosts).split(",")]
    return PostgresAddress(
        tuple(places), database, options, {name: value for name, value in secrets.items() if value}
    )


def folder_of(where: str) -> str:
    """Return a store as it is shown and stored, and as what its paths start with."""
    return str(parse(where))


def is_postgres(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def divided(url: str) -> tuple[str, str]:
    """Return the store of a path, with its credentials, and the name in it; "" where there is no name."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, below = rest.partition("/")
    database, _, name = below.partition("/")
    if "@" in database:  # of a password that was not encoded
        raise _unreadable()
    if "/" in name:
        raise CheckpointError(
            f"{masked(url)} is not the path of a checkpoint in Postgres: its name has slashes.",
            hint="Give it a name without: postgresql://host:port/database/NAME.",
            path=masked(url),
        )
    store = f"{scheme}://{netloc}/{database}"
    return f"{store}?{query}" if query else store, base_of(name)


def _host(text: str, port: str) -> tuple[str, int]:
    found = _HOST.match(text or "localhost")
    if found is None:
        raise _unreadable()
    number = found["port"] or port or str(_PORT)
    if not number.isdecimal() or not 0 < int(number) <= 65535:
        raise _unreadable()
    return unquote(found["host"]) or "localhost", int(number)


def _shown(host: str) -> str:
    return host if host.startswith("[") else quote(host, safe="")


def _unreadable() -> BadAddress:
    return BadAddress(  # without the text: wherever it breaks, the next piece may be the password
        "The address that begins with postgresql:// cannot be read.",
        hint="It is written postgresql://[USER:PASSWORD@]HOST:PORT/DATABASE; in user and password each of "
        "/ ? # @ : % is written as %2F %3F %23 %40 %3A %25.",
    )
