"""The one door to redis-py: whoever comes through it without the package is told what to install.

Everything of this package takes redis-py from here. Not here: anything of our own.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from graflow_ckpt.core.errors import PackageMissing

try:
    import redis
    from redis import exceptions as theirs
    from redis.backoff import NoBackoff
    from redis.connection import (
        AbstractConnection,
        Connection,
        ConnectionPool,
        SSLConnection,
        UnixDomainSocketConnection,
        parse_url,
    )
    from redis.retry import Retry
    from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
except ModuleNotFoundError as missing:
    raise PackageMissing(
        f"A Redis server cannot be used: the package {missing.name} is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[fleet]'.",
        extra="fleet",
    ) from missing

hiredis: Any
try:
    import hiredis
except ModuleNotFoundError:
    hiredis = None  # the half of redis-py that is written in C; it also does without, more slowly

__all__ = [
    "Connection",
    "ConnectionPool",
    "MasterNotFoundError",
    "NoBackoff",
    "Retry",
    "SSLConnection",
    "Sentinel",
    "SentinelConnectionPool",
    "UnixDomainSocketConnection",
    "hiredis",
    "parse_url",
    "redis",
    "theirs",
]

SILENT: dict[str, Any] = {}
"""So that redis-py does not read its own version from the disk at each connect, and tell it to the server."""

if "driver_info" in signature(AbstractConnection.__init__).parameters:  # from redis-py 7.1 on
    SILENT["driver_info"] = None
