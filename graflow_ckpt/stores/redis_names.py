"""Names in a Redis store: from a path to the keys that have what it names.

    redis://host:port/db              the store, and what paths in it start with
    redis://host:port/db/NAME         a checkpoint
    redis://NAME                      a checkpoint in the store at hand, else in GRAFLOW_CKPT_REDIS_URL
    redis://host:port/db/session_{id}_step_{n}_{time}-{sequence}.pkl
                                      a session's own

    graflow:ck:{id}:…    lease, journal and own checkpoints of a session
    graflow:ck:{@}:…     all checkpoints under other names, with epoch and claim of each session

Nothing is asked here, and no name is a pattern.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.links.addresses import SCHEMES, URL_VARIABLE, masked, parse
from graflow_ckpt.stores.names import base_of, session_of

NAMED = "@"  # no session is called like that
_ALONE = re.compile(r"[^:/@?]+\Z")  # what follows redis:// in a path that names no server


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one tag: a session's, or those of all other names."""

    tag: str

    @property
    def lease(self) -> str:
        """Of a session: who owns it."""
        return self._key("lease")

    @property
    def journal(self) -> str:
        """Of a session: which segments there are."""
        return self._key("journal")

    def segment(self, epoch: int, after: int) -> str:
        return self._key(f"journal:{epoch}:{after}")

    def fence(self, session: str) -> str:
        """Where the epoch and the claim stand that a writer of the session must have."""
        return self._key(f"fence:{session}") if self.tag == NAMED else self.lease

    def fences(self, session: str) -> list[str]:
        """Of the other names: the epoch of each session, and what a writer of this one must have."""
        return [self._key("epochs"), self.fence(session)]

    @property
    def sessions(self) -> str:
        """Of the other names: the sessions that have or had keys of their own."""
        return self._key("sessions")

    @property
    def metas(self) -> str:
        return self._key("metas")

    @property
    def records(self) -> str:
        """What a path points at: the chunks of each part."""
        return self._key("records")

    @property
    def index(self) -> str:
        return self._key("index")

    @property
    def staging(self) -> str:
        """Who is writing chunks."""
        return self._key("staging")

    def chunks(self, nonce: str = "", part: str = "") -> str:
        """What the keys of chunks start with: all, or those of one part."""
        return self._key(f"chunk:{nonce}:{part}:" if part else "chunk:")

    @property
    def contents(self) -> str:
        """Values that checkpoints have in common: what saves find. The keys of each begin with this one."""
        return self._key("contents")

    @property
    def over(self) -> str:
        """Checkpoints and saves that are no more, and have not let go of all contents yet."""
        return f"{self.contents}:over"

    def content(self, nonce: str) -> str:
        """What the keys of the chunks of one start with."""
        return f"{self.contents}:in:{nonce}:"

    def _key(self, name: str) -> str:
        return f"graflow:ck:{{{self.tag}}}:{name}"


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint: the tag that it is under, and its name there."""

    keys: Keys
    base: str

    @property
    def session(self) -> str | None:
        """The session whose own path this is."""
        return None if self.keys.tag == NAMED else self.keys.tag


def target_of(base: str) -> Target:
    return Target(Keys(session_of(base) or NAMED), base)


def split(path: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The store of a path, and the name in it; "" where the path names a store.

    The store is "" where the path leaves it open and no other is set.
    """
    rest = path.partition("://")[2].partition("?")[0]
    if not rest or _ALONE.match(rest):
        return environment.get(URL_VARIABLE, "").strip(), base_of(rest)
    return divided(path)


def divided(url: str) -> tuple[str, str]:
    """The same where what comes first is a server in any case."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, below = rest.partition("/")
    parts = below.split("/") if below else []
    kept = 1 if scheme.endswith("+sentinel") else 0
    if len(parts) > kept and parts[kept].isdecimal():
        kept += 1
    if len(parts) > kept + 1:
        raise CheckpointError(
            f"{masked(url)} is not the path of a checkpoint in Redis: its name has slashes.",
            hint="Give it a name without: redis://host:port/db/NAME.",
            path=masked(url),
        )
    name = parts[kept] if len(parts) > kept else ""
    store = "/".join([f"{scheme}://{netloc}", *parts[:kept]])
    return f"{store}?{query}" if query else store, base_of(name)


def folder_of(store: str) -> str:
    """A store as it is shown and stored, and as what its paths start with."""
    address = parse(store)
    if address.scheme == "unix":
        raise BadAddress(
            f"{address} cannot be a store: a path in it would have no place for a name.",
            hint="Name the server by host and port: redis://host:port/db.",
            address=str(address),
        )
    return str(address)


def is_redis(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES
