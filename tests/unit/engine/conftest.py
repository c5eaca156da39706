"""Sessions of these tests leave their checkpoints in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import workflow
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.places import Make, in_redis
from tests.servers import Server


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["memory", "redis"])
def make(
    request: pytest.FixtureRequest, redis_url: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """What makes workflows: of sessions in this process, or in Redis."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return workflow if request.param == "memory" else in_redis(redis_server.client())
