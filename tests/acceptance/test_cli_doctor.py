"""graflow-ckpt doctor: what is installed, writable and safe; saves that wait, and `checkpoints sync`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from graflow_ckpt.checkpoint.care import inventory
from graflow_ckpt.cli.inspect.examination import examine
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.acceptance.command_line import COUNT, graflow, inside, program, run_count
from tests.servers import Server
from tests.trios import listed, own_name, put


def findings(*arguments: str, status: int | None = 0, **environment: str) -> dict[str, Any]:
    found = inside("doctor", *arguments, "--json", status=status, **environment).document
    return {finding["what"]: finding for finding in found}


def test_a_healthy_machine_is_told_so_and_keeps_nothing_of_it() -> None:
    Path("checkpoints").rmdir()
    found = findings("--store", "checkpoints")

    assert {name: found[name]["verdict"] for name in ("python", "blake3", "store", "key")} == dict.fromkeys(
        ("python", "blake3", "store", "key"), "ok"
    )
    assert "will be made by the first save" in found["store"]["found"]
    assert os.listdir() == []


def test_a_folder_that_anybody_can_write_is_bad() -> None:
    run_count("--session", "s")
    assert findings()["store modes"]["verdict"] == "ok"

    Path("checkpoints").chmod(0o777)

    assert "chmod o-w" in findings(status=1)["store"]["found"]


def test_a_store_that_is_no_folder_is_bad() -> None:
    Path("file").touch()

    found = findings("--store", "file", status=1)

    assert found["store"]["verdict"] == "bad"
    assert "file" in found["store"]["found"]


def test_a_key_that_others_can_read_is_bad(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    graflow("run", program("count.py", COUNT), "--session", "s", **state)
    key = tmp_path / "state" / "graflow_ckpt" / "key"
    key.chmod(0o644)

    found = findings(status=1, **state)

    assert found["key"]["verdict"] == "bad"
    assert "chmod" in found["key"]["found"]
    assert key.read_text().strip() not in str(found)


def test_for_people_it_is_a_table() -> None:
    lines = inside("doctor").out.splitlines()

    assert lines[0].split() == ["WHAT", "VERDICT", "FOUND"]
    assert any(line.startswith("store") for line in lines)


def test_a_database_that_has_grown_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    put(store, "best", "one")
    assert not [found for found in examine(store.url) if found.what == "database"]

    monkeypatch.setattr(inventory, "LARGE_MB", 0)

    (found,) = [found for found in examine(store.url) if found.what == "database"]
    assert found.verdict == "warning"
    assert "vacuum" in found.found


# --- saves that wait because their store was away ---------------------------------------


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
    document = inside("doctor", "--store", store.url, "--json", status=None).document
    return {finding["what"]: (finding["verdict"], finding["found"]) for finding in document}


def test_doctor_names_what_waits_and_sync_hands_it_over(store: Fallback) -> None:
    verdict, said = verdicts(store)["fallback"]
    assert verdict == "warning"
    assert "1 checkpoint of s in" in said
    assert str(store.waits.where) in said

    done = inside("checkpoints", "sync", "--store", store.url, "--json")

    assert done.document == {"handed_over": 1, "refused": 0, "waiting": 0}
    assert len(listed(open_store(store.inner.url), "s")) == 1
    assert verdicts(store)["fallback"][0] == "ok"


def test_a_store_without_a_fallback_has_nothing_to_sync() -> None:
    done = inside("checkpoints", "sync", "--store", "checkpoints", status=2)

    assert "has no fallback" in done.err
