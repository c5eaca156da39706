"""The key of all of these tests, and one server for those that look at stores of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.servers import Server
from tests.unit.checkpoint import trios


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


@pytest.fixture(scope="session")
def one_redis() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=["local", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """An empty one: a folder, or a server."""
    if request.param == "local":
        return open_store(tmp_path / "checkpoints")
    server: Server = request.getfixturevalue("one_redis")
    server.ask("FLUSHALL")
    return open_store(server.url)
