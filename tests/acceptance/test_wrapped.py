"""Sessions in wrapped stores, by the command line: killed, gone on with, and under a new key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskExecutionContext, task, workflow
from graflow_ckpt.core.errors import UnknownKey
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.stores.around.encrypted import Encrypted
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.command_line import COUNT, KILLED, graflow, program, steps

FERNET = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in ("GRAFLOW_CKPT_KEY", "GRAFLOW_CKPT_KEY_FILE", "GRAFLOW_CKPT_FERNET_KEY"):
        monkeypatch.delenv(variable, raising=False)


def test_a_killed_session_goes_on_from_a_wrapped_store_under_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-value-that-nobody-is-to-read"
    store = f"tenant.acme+compressed+encrypted+sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", store)
    set_n = 'context.get_channel().set("n", data + 1)'
    journaled = COUNT.replace('workflow("count")', 'workflow("count", durability="journal")')
    assert set_n in COUNT
    program("count.py", journaled.replace(set_n, f'{set_n}; context.get_channel().set("s", "{secret}")'))

    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "3", status=KILLED)
    old = graflow("key", "list", "--json").document["keys"]
    rotated = graflow("key", "rotate", "--json").document
    keys = graflow("key", "list", "--json").document["keys"]
    doctor = {row["what"]: row for row in graflow("doctor", "--json").document}

    assert [row["use"] for row in old] == ["seals and encrypts"]
    assert old[0]["seals"] == old[0]["encrypts"] == rotated["resealed"] >= 2
    assert [(row["id"], row["use"], row["encrypts"]) for row in keys] == [
        (rotated["id"], "seals and encrypts", old[0]["encrypts"]),
        (old[0]["id"], "verifies and decrypts", 0),
    ]
    assert keys[1]["journals"] >= 1
    assert doctor["encryption"] == {
        "what": "encryption",
        "verdict": "ok",
        "found": f"what is new, with key {rotated['id']}",
    }
    resumed = graflow("resume", "s")
    assert "result 6" in resumed.out
    assert steps() == [0, 1, 2, 3, 3, 4, 5]
    assert graflow("checkpoints", "verify", "--all").status == 0
    rows = graflow("checkpoints", "list", "s", "--json").document
    assert {row["path"].rpartition("/")[0] for row in rows} == {store}
    assert graflow("checkpoints", "list", "--json", "--store", store.replace("acme", "other")).document == []
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("runs.db*"))
    assert secret.encode() not in kept
    assert b"session_acme-s_step_6_" in kept


def test_keys_of_the_environment_are_not_changed_by_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", graflow("key", "new").out.strip())

    refused = graflow("key", "rotate", "--json", status=1)

    assert "GRAFLOW_CKPT_KEY" in json.loads(refused.out)["message"]
    assert "key reseal" in json.loads(refused.out)["hint"]
    assert graflow("key", "reseal", "--json").document["resealed"] == 0


def test_a_checkpoint_that_goes_to_a_plain_place_is_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = TaskGraph()
    graph.add(Task("a", lambda: 1))
    graph.compile(["a"])
    store = f"encrypted+sqlite:///{tmp_path}/runs.db"
    context = ExecutionContext.create(graph, "a", session_id="s", store=store)

    context.checkpoint(f"{tmp_path}/plain.pkl")
    context.home.close()

    assert (tmp_path / "plain.meta.json").exists()
    told = [record.getMessage() for record in caplog.records if "is not encrypted" in record.getMessage()]
    assert len(told) == 1
    assert "plain.pkl" in told[0]


def test_a_store_that_the_program_has_made_keeps_its_sessions(tmp_path: Path) -> None:
    store = Encrypted(LocalStore(tmp_path / "kept"), fernet=FERNET)

    def run(limit: int) -> None:
        with workflow("made", "s", store=store) as flow:

            @task(inject_context=True)
            def count(context: TaskExecutionContext) -> int:
                context.get_channel().set("secret", "nobody is to read this")
                context.checkpoint()
                if limit == 0:
                    raise ZeroDivisionError
                return limit

            flow.execute()

    with pytest.raises(ZeroDivisionError):
        run(0)
    run(7)

    assert [raw for _, raw in LocalStore(tmp_path / "kept").list("s") if b'"encrypted"' not in raw] == []
    files = [file.read_bytes() for file in (tmp_path / "kept").iterdir()]
    assert not [data for data in files if b"nobody is to read" in data]
    rows = CheckpointManager.list_checkpoints("s", store=store.url)
    assert rows[0].path.startswith(f"encrypted+file://{tmp_path}/kept/session_s_step_1_")
    assert CheckpointManager.verify(rows[0].path).session_id == "s"
    assert Encrypted(LocalStore(tmp_path / "kept"), fernet=FERNET).meta(rows[0].path)
    with pytest.raises(UnknownKey):
        Encrypted(LocalStore(tmp_path / "kept"), Keyring({"k": bytes(32)})).meta(rows[0].path)
