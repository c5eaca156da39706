"""What a pool refuses before it starts, and what it says about its server. How it lives: tests/crash."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import BadAddress, CheckpointError, GraflowError, GraphError, ServerRefuses
from graflow_ckpt.fleet import pool as pools
from graflow_ckpt.fleet.pool import PoolSettings, run
from graflow_ckpt.fleet.worker import reached, rq_name
from graflow_ckpt.stores.keys import Keyring
from tests.servers import Server


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever comes so far is content; logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(pools.Pool, "run", lambda self: 0)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_a_pool_whose_settings_are_sound_starts(redis_url: str, keyring: Keyring) -> None:
    assert run(PoolSettings(redis_url)) == 0


def test_without_a_key_it_says_how_to_make_one(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAFLOW_CKPT_KEY", raising=False)

    with pytest.raises(CheckpointError, match="key new"):
        run(PoolSettings(redis_url))


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"queues": ("with space",)}, GraphError, "with space"),
        ({"url": "http://somewhere"}, BadAddress, "redis://"),
        ({"url": "redis+cluster://127.0.0.1:7000"}, BadAddress, "Redis Cluster"),
        ({"preload": ("no_such_module_here",)}, GraflowError, "no_such_module_here"),
        ({"n": 0}, ValueError, "a worker"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(
    redis_url: str, keyring: Keyring, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(PoolSettings(**{"url": redis_url, **changed}))


def test_a_wrong_password_is_refused_and_not_shown(
    own_redis: Callable[..., Server], keyring: Keyring
) -> None:
    server = own_redis({"requirepass": "right-one"})

    with pytest.raises(ServerRefuses) as refused:
        run(PoolSettings(server.url.replace("right-one", "wrong-one")))

    assert "wrong-one" not in str(refused.value)


def test_what_is_wrong_with_the_server_is_said_at_the_start(
    own_redis: Callable[..., Server], keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    server = own_redis({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})

    run(PoolSettings(server.url))

    said = capsys.readouterr().err
    assert "maxmemory-policy allkeys-lru" in said
    assert "appendonly" in said


def test_modules_are_loaded_before_there_are_children(
    redis_url: str, keyring: Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_once.py").write_text("import sys\nsys.loaded_once = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loaded_once", raising=False)  # there is a test for each kind of server

    run(PoolSettings(redis_url, preload=("loaded_once",)))

    assert sys.__dict__.pop("loaded_once")


def test_a_version_of_rq_whose_workers_never_start_is_refused_by_name(
    redis_url: str, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "VERSION", "2.8.0")

    with pytest.raises(GraflowError, match=r"RQ 2\.8\.0 is too old.*rq>=2\.9"):
        run(PoolSettings(redis_url))


# --- a worker ---------------------------------------------------------------------------


def test_a_worker_is_named_by_its_machine_and_process() -> None:
    assert rq_name(77).startswith("graflow-")
    assert rq_name(77).endswith("-77")


def test_a_server_that_is_there_is_reached(redis_url: str) -> None:
    link = reached(redis_url)

    assert link.client.ping()
    link.close()
