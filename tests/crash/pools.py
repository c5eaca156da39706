"""Pools for crash tests, with the key of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.pools import Pool, directly, is_alive, surroundings


def pool(url: str, folder: Path, environment: dict[str, str] | None = None, **settings: Any) -> Pool:
    given = surroundings(key=os.environ["GRAFLOW_CKPT_KEY"]) | (environment or {})
    return Pool(url, folder, given, directly(url, **settings))


@contextmanager
def ready_pool(*where: Any, **settings: Any) -> Iterator[Pool]:
    """The same, whose workers all wait for work."""
    with pool(*where, **settings) as made:
        made.ready()
        yield made


def alive(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
