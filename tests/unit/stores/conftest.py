"""Stores of every kind for the tests that all of them pass; see kinds.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.stores import streams
from tests.servers import Server, binaries
from tests.unit.stores.kinds import KINDS, RANKS, Kind, kind_of

SYNCED = {"appendonly": "yes", "appendfsync": "always"}  # else it keeps no journal


@pytest.fixture(scope="session")
def synced_redis() -> Iterator[Callable[[str], Server]]:
    """The server of a binary that syncs what it confirms: one of each for all tests of this process."""
    with ExitStack() as servers:
        yield cache(lambda name: servers.enter_context(Server(SYNCED, binary=binaries()[name])))


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_keepers: None
) -> Iterator[Kind]:
    """An empty place for a store of each kind in turn; no rank of a cluster is set."""
    for name in (*RANKS, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    kind = kind_of(request.param, request, tmp_path, monkeypatch)
    monkeypatch.setattr(type(kind.driver), "chunk", kind.chunk)
    monkeypatch.setattr(streams, "_AHEAD", 0)
    yield kind
    kind.close()


@pytest.fixture
def store(kind: Kind) -> Any:
    return kind.open()


@pytest.fixture
def fresh(kind: Kind) -> Callable[[], Any]:
    """Another process's view of the same store."""
    return lambda: kind.open(lease=600)
