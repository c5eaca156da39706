"""Saves that wait because their store was away: doctor names them, and `checkpoints sync` hands them over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.fallback import Fallback
from graflow_ckpt.stores.keys import new_key
from graflow_ckpt.testing.trios import listed, own_name, put
from tests.acceptance.command_line import graflow
from tests.servers import Server


@pytest.fixture
def store(own_redis: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fallback:
    """A checkpoint of session `s` waits, which nobody runs; the server is back, and empty."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    store = open_store(f"fallback.{quote(str(tmp_path / 'folder'), safe='')}+{server.url}")
    assert isinstance(store, Fallback)
    server.kill()
    put(store, own_name(), "n1")
    server.start()
    return store


def verdicts(store: Fallback) -> dict[str, tuple[str, str]]:
    document = graflow("doctor", "--store", store.url, "--json", status=None).document
    return {finding["what"]: (finding["verdict"], finding["found"]) for finding in document}


def test_doctor_names_what_waits_and_sync_hands_it_over(store: Fallback) -> None:
    verdict, said = verdicts(store)["fallback"]
    assert verdict == "warning"
    assert "1 checkpoint of s in" in said
    assert str(store.waits.where) in said

    done = graflow("checkpoints", "sync", "--store", store.url, "--json")

    assert done.document == {"handed_over": 1, "refused": 0, "waiting": 0}
    assert len(listed(open_store(store.inner.url), "s")) == 1
    assert verdicts(store)["fallback"][0] == "ok"


def test_a_store_without_a_fallback_has_nothing_to_sync() -> None:
    done = graflow("checkpoints", "sync", "--store", "checkpoints", status=2)

    assert "has no fallback" in done.err
