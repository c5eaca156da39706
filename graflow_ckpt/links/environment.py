"""The variables that this package reads: a table of names, and a word about those that are not in it.

Promise: a name that begins as ours do and is read by nothing is reported once in a process, with what may be
meant. Not here: what the values may be, and their readers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

PREFIX = "GRAFLOW_CKPT_"

NAMES = (
    "redis_url", "rq_url", "key", "key_file", "queues", "workers", "preload", "lease", "budget",
    "grace", "code_patience", "log", "observers",
)  # fmt: skip
"""What a file can set, too, in the order in which it is shown."""

ALONE = (
    "store", "session", "durability", "check", "config", "local_url", "memory_url", "sqlite_url",
    "postgres_url", "s3_url", "gcs_url", "azure_url", "cache_url", "fallback", "fernet_key", "slow_save",
)  # fmt: skip

OF_COMPOSE = ("redis_password", "redis_memory", "redis_port", "code")
"""Variables of docker-compose.yml, which a shell has that has read `.env`."""

_logger = logging.getLogger(__name__)


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


KNOWN = frozenset(variable(name) for name in (*NAMES, *ALONE, *OF_COMPOSE))


def unknown(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return variables that look like ours and are read by nothing: commonly a name that was mistyped."""
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in KNOWN)


@cache
def tell(name: str) -> None:
    """Say of a variable that nothing reads it."""
    names = [known.removeprefix(PREFIX) for known in sorted(KNOWN)]
    near = get_close_matches(name.removeprefix(PREFIX), names, 1)
    meant = f" Did you mean {PREFIX}{near[0]}?" if near else ""
    _logger.warning("%s is set, and nothing reads it.%s", name, meant)
