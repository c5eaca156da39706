"""Sessions in wrapped stores, by the command line: killed, gone on with, and under a new key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.command_line import COUNT, KILLED, graflow, program, steps


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in ("GRAFLOW_CKPT_KEY", "GRAFLOW_CKPT_KEY_FILE", "GRAFLOW_CKPT_FERNET_KEY"):
        monkeypatch.delenv(variable, raising=False)


def test_a_killed_session_goes_on_from_a_wrapped_store_under_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-value-that-nobody-is-to-read"
    database = tmp_path / "runs.db"
    store = f"tenant.acme+compressed+encrypted+sqlite:///{database}"
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", store)
    set_n = 'context.get_channel().set("n", data + 1)'
    journaled = COUNT.replace('workflow("count")', 'workflow("count", durability="journal")')
    assert set_n in COUNT
    program("count.py", journaled.replace(set_n, f'{set_n}; context.get_channel().set("s", "{secret}")'))

    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "3", status=KILLED)
    old = graflow("key", "list", "--json").document["keys"]
    rotated = graflow("key", "rotate", "--json").document
    keys = graflow("key", "list", "--json").document["keys"]

    assert [row["use"] for row in old] == ["seals and encrypts"]
    assert old[0]["seals"] == old[0]["encrypts"] == rotated["resealed"] >= 2
    assert [(row["id"], row["use"], row["encrypts"]) for row in keys] == [
        (rotated["id"], "seals and encrypts", old[0]["encrypts"]),
        (old[0]["id"], "verifies", 0),
    ]
    assert keys[1]["journals"] >= 1
    resumed = graflow("resume", "s")
    assert "result 6" in resumed.out
    assert steps() == [0, 1, 2, 3, 3, 4, 5]
    assert graflow("checkpoints", "verify", "--all").status == 0
    rows = graflow("checkpoints", "list", "s", "--json").document
    assert {row["path"].rpartition("/")[0] for row in rows} == {store}
    assert graflow("checkpoints", "list", "--json", "--store", store.replace("acme", "other")).document == []
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("runs.db*"))
    assert secret.encode() not in kept
    assert b"acme-s" in kept


def test_keys_of_the_environment_are_not_changed_by_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", graflow("key", "new").out.strip())

    refused = graflow("key", "rotate", "--json", status=1)

    assert "GRAFLOW_CKPT_KEY" in json.loads(refused.out)["message"]
    assert "key reseal" in json.loads(refused.out)["hint"]
    assert graflow("key", "reseal", "--json").document["resealed"] == 0
