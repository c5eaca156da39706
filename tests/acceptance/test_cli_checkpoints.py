"""graflow-ckpt sessions and checkpoints: what there is; no pickle is opened, no value shown."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command_line import CHAIN, COUNT, GRAFLOW, KILLED, checkpoints, graflow, program

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

SECRETS = """
import sys
from graflow_ckpt import task, workflow
class Tells:
    def __reduce__(self): return open, ("opened", "w")
with workflow("secrets") as ctx:
    @task(inject_context=True)
    def work(context):
        context.get_channel().set("plain", "value-in-the-channel")
        context.get_channel().set("live", Tells())
        context.checkpoint(metadata={"epoch": 3, "api_key": "hunter2", "db": {"password": "hunter2"}})
        return "value-of-the-result"
    @task
    def after(work): raise ValueError("fails")
    work >> after
    ctx.execute()
"""


@pytest.fixture
def killed() -> list[str]:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "4", status=KILLED)
    return checkpoints("s")


# --- sessions --------------------------------------------------------------------------------


def test_sessions_are_listed_with_how_far_they_are(killed: list[str]) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c")

    header, first, second = graflow("sessions").out.splitlines()

    columns = "SESSION WORKFLOW STATUS STEPS DONE PENDING CHECKPOINTS AGE OWNER NEWEST"
    assert " ".join(header.split()) == columns
    assert first.split()[:7] == ["c", "chain", "completed", "2", "2", "0", "1"]
    assert second.split()[:7] == ["s", "count", "interrupted", "4", "1", "1", "2"]
    assert second.split()[-1] == killed[-1]
    assert [row["session"] for row in graflow("sessions", "--unfinished", "--json").document] == ["s"]
    assert [row["session"] for row in graflow("sessions", "--workflow", "chain", "--json").document] == ["c"]


def test_who_runs_a_session_is_told() -> None:
    program(
        "waits.py",
        """
import sys
from graflow_ckpt import task, workflow
with workflow("waits") as ctx:
    @task(inject_context=True)
    def start(context): context.checkpoint()
    @task
    def wait(start):
        print("waiting", flush=True)
        sys.stdin.readline()
    start >> wait
    ctx.execute()
""",
    )
    command = [*GRAFLOW, "run", "waits.py", "--session", "s"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        (row,) = graflow("sessions", "--json").document
        owner.communicate("\n")

    assert row["status"] == "running"
    assert row["owner"].startswith(f"{owner.pid}@")


def test_a_journaled_session_is_as_far_as_its_journal() -> None:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    (row,) = graflow("sessions", "--json").document

    assert (row["steps"], row["status"]) == (4, "interrupted")


def test_a_session_without_a_good_checkpoint_is_listed_as_bad(killed: list[str]) -> None:
    for path in killed:
        Path(path.replace(".pkl", ".state.json")).write_text("{}")

    (row,) = graflow("sessions", "--json").document

    assert (row["status"], row["checkpoints"]) == ("bad", 2)
    assert row["note"]


@pytest.mark.parametrize("store", ["checkpoints", "sqlite://"])
def test_an_empty_store_is_no_error_and_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", store)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path("checkpoints").rmdir()
    assert graflow("sessions").out == ""
    assert graflow("sessions", "--json").document == []
    assert graflow("checkpoints", "list", "--json").document == []
    graflow("checkpoints", "verify", "--all")
    assert os.listdir() == []


# --- list ------------------------------------------------------------------------------------


def test_checkpoints_are_listed_newest_first_and_filtered(killed: list[str]) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c")

    def paths(*arguments: str) -> list[str]:
        return [row["path"] for row in graflow("checkpoints", "list", *arguments, "--json").document]

    assert paths("s") == killed[::-1]
    assert paths("s", "--limit", "1") == killed[-1:]
    assert paths("--workflow", "chain") == checkpoints("c")
    assert paths("--status", "completed") == checkpoints("c")
    assert paths() == [*checkpoints("c"), *killed[::-1]]
    lines = graflow("checkpoints", "list").out.splitlines()
    assert lines[0].split() == ["PATH", "SESSION", "WORKFLOW", "STEP", "STATUS", "CAUSE", "AGE", "SIZE"]
    assert lines[1].split()[1:6] == ["c", "chain", "2", "completed", "end"]


@pytest.mark.parametrize("garbage", [b"", b"not json", b"[]", b"{}", b'{"sequence": "x"}', b"\xff\xfe"])
def test_what_cannot_be_read_does_not_hide_the_rest(killed: list[str], garbage: bytes) -> None:
    Path(killed[0].replace(".pkl", ".meta.json")).write_bytes(garbage)

    listed = graflow("checkpoints", "list", "--json").document
    assert [row["path"] for row in listed] == [killed[1], killed[0]]
    assert listed[1]["status"] == "unreadable"
    bad = graflow("checkpoints", "list", "--status", "unreadable", "--limit", "5", "--json").document
    assert [row["path"] for row in bad] == [killed[0]]
    graflow("checkpoints", "list")
    assert graflow("sessions", "--json").document[0]["steps"] == 4


# --- show ------------------------------------------------------------------------------------


def test_a_checkpoint_is_shown_without_values_and_secrets() -> None:
    program("secrets.py", SECRETS)
    graflow("run", "secrets.py", "--session", "s", "--", "--token", "hunter2", status=1)
    path = checkpoints("s")[0]

    text = graflow("checkpoints", "show", path)
    document = graflow("checkpoints", "show", path, "--json").document

    for shown in (text.out, json.dumps(document), graflow("checkpoints", "list", "--json").out):
        assert "hunter2" not in shown
        assert "value-" not in shown
    assert not Path("opened").exists()
    assert document["verdict"] == "good"
    assert document["meta"]["user_metadata"]["epoch"] == 3
    assert document["meta"]["sizes"]["pkl"] == Path(path).stat().st_size
    assert document["state"]["completed_tasks"] == ["work"]
    assert "completed   work" in text.out
    assert "host        " + os.uname().nodename in text.out


def test_a_damaged_checkpoint_is_shown_as_bad(killed: list[str]) -> None:
    Path(killed[0]).write_bytes(b"x" + Path(killed[0]).read_bytes()[1:])

    done = graflow("checkpoints", "show", killed[0], status=1)

    assert "verdict     bad: " in done.out
    assert "session     s of workflow count" in done.out
    assert "There is no checkpoint no.pkl." in graflow("checkpoints", "show", "no.pkl", status=1).err


# --- verify ----------------------------------------------------------------------------------


def test_good_checkpoints_verify(killed: list[str]) -> None:
    assert graflow("checkpoints", "verify", "s").err == "graflow-ckpt: 2 checkpoints, 0 bad\n"
    assert graflow("checkpoints", "verify", "--all").out.count("good") == 2
    found = graflow("checkpoints", "verify", killed[0], "--json").document
    assert [(row["path"], row["verdict"]) for row in found] == [(killed[0], "good")]


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_one_bad_byte_anywhere_is_found(killed: list[str], part: str) -> None:
    path = Path(killed[1].replace(".pkl", f".{part}"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)

    done = graflow("checkpoints", "verify", "s", "--json", status=1)

    assert [row["verdict"] for row in done.document] == ["good", "bad"]
    assert done.document[1]["why"]


def test_verify_wants_to_know_what() -> None:
    graflow("checkpoints", "verify", status=2)
    graflow("checkpoints", "verify", "s", "--all", status=2)
    assert "neither a checkpoint nor a session" in graflow("checkpoints", "verify", "s", status=1).err


def test_a_path_that_was_noted_long_ago_is_said_to_have_expired() -> None:
    program("count.py", COUNT)
    graflow("run", "count.py", "--session", "s")

    for command in (("checkpoints", "show"), ("resume",)):
        said = graflow(*command, "checkpoints/session_s_step_1_1700000000-1.pkl", status=1).err
        assert "expired at 2023-11-21T22:13:20+00:00" in said
