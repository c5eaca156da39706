"""Names in a Redis store: from a path to the server and the name there.

    redis://host:port/db              the store, and what paths in it start with
    redis://host:port/db/NAME         a checkpoint
    redis://NAME                      a checkpoint in the store at hand, else in GRAFLOW_CKPT_REDIS_URL
    redis://host:port/db/session_{id}_step_{n}_{time}-{sequence}.pkl
                                      a session's own

Nothing is asked here, and no name is a pattern.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from graflow_ckpt.core.errors import BadAddress, CheckpointError
from graflow_ckpt.links.addresses import SCHEMES, URL_VARIABLE, masked, parse
from graflow_ckpt.stores.names import base_of

_ALONE = re.compile(r"[^:/@?]+\Z")  # what follows redis:// in a path that names no server


def split(path: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the store of a path, and the name in it; "" where the path names a store.

    The store is "" where the path leaves it open and no other is set.
    """
    rest = path.partition("://")[2].partition("?")[0]
    if not rest or _ALONE.match(rest):
        return environment.get(URL_VARIABLE, "").strip(), base_of(rest)
    return divided(path)


def divided(url: str) -> tuple[str, str]:
    """Return the same where what comes first is a server in any case."""
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
    """Return a store as it is shown and stored, and as what its paths start with."""
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
