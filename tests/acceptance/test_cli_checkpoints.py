"""graflow-ckpt sessions, checkpoints, trust and key: what there is, what has changed, forks, foreign seals.

No pickle is opened to look, and no value shown.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command_line import (
    CHAIN,
    COUNT,
    GRAFLOW,
    KILLED,
    Terminal,
    checkpoints,
    graflow,
    inside,
    program,
    python,
    run_count,
)

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


# --- sessions --------------------------------------------------------------------------------


def test_sessions_are_listed_with_how_far_they_are(killed: list[str]) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c")

    header, first, second = inside("sessions").out.splitlines()

    columns = "SESSION WORKFLOW STATUS STEPS DONE PENDING CHECKPOINTS AGE OWNER NEWEST"
    assert " ".join(header.split()) == columns
    assert first.split()[:7] == ["c", "chain", "completed", "2", "2", "0", "1"]
    assert second.split()[:7] == ["s", "count", "interrupted", "4", "1", "1", "2"]
    assert second.split()[-1] == killed[-1]
    assert [row["session"] for row in inside("sessions", "--unfinished", "--json").document] == ["s"]
    assert [row["session"] for row in inside("sessions", "--workflow", "chain", "--json").document] == ["c"]


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
        (row,) = inside("sessions", "--json").document
        owner.communicate("\n")

    assert row["status"] == "running"
    assert row["owner"].startswith(f"{owner.pid}@")


def test_a_journaled_session_is_as_far_as_its_journal() -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    (row,) = inside("sessions", "--json").document

    assert (row["steps"], row["status"]) == (4, "interrupted")


def test_a_session_without_a_good_checkpoint_is_listed_as_bad(killed: list[str]) -> None:
    for path in killed:
        Path(path.replace(".pkl", ".state.json")).write_text("{}")

    (row,) = inside("sessions", "--json").document

    assert (row["status"], row["checkpoints"]) == ("bad", 2)
    assert row["note"]


@pytest.mark.parametrize("store", ["checkpoints", "sqlite://"])
def test_an_empty_store_is_no_error_and_is_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", store)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path("checkpoints").rmdir()
    assert inside("sessions").out == ""
    assert inside("sessions", "--json").document == []
    assert inside("checkpoints", "list", "--json").document == []
    inside("checkpoints", "verify", "--all")
    assert os.listdir() == []


# --- list ------------------------------------------------------------------------------------


def test_checkpoints_are_listed_newest_first_and_filtered(killed: list[str]) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c")

    def paths(*arguments: str) -> list[str]:
        return [row["path"] for row in inside("checkpoints", "list", *arguments, "--json").document]

    assert paths("s") == killed[::-1]
    assert paths("s", "--limit", "1") == killed[-1:]
    assert paths("--workflow", "chain") == checkpoints("c")
    assert paths("--status", "completed") == checkpoints("c")
    assert paths() == [*checkpoints("c"), *killed[::-1]]
    lines = inside("checkpoints", "list").out.splitlines()
    assert lines[0].split() == ["PATH", "SESSION", "WORKFLOW", "STEP", "STATUS", "CAUSE", "AGE", "SIZE"]
    assert lines[1].split()[1:6] == ["c", "chain", "2", "completed", "end"]


@pytest.mark.parametrize("garbage", [b"", b"not json", b"[]", b"{}", b'{"sequence": "x"}', b"\xff\xfe"])
def test_what_cannot_be_read_does_not_hide_the_rest(killed: list[str], garbage: bytes) -> None:
    Path(killed[0].replace(".pkl", ".meta.json")).write_bytes(garbage)

    listed = inside("checkpoints", "list", "--json").document
    assert [row["path"] for row in listed] == [killed[1], killed[0]]
    assert listed[1]["status"] == "unreadable"
    bad = inside("checkpoints", "list", "--status", "unreadable", "--limit", "5", "--json").document
    assert [row["path"] for row in bad] == [killed[0]]
    inside("checkpoints", "list")
    assert inside("sessions", "--json").document[0]["steps"] == 4


# --- show ------------------------------------------------------------------------------------


def test_a_checkpoint_is_shown_without_values_and_secrets() -> None:
    program("secrets.py", SECRETS)
    graflow("run", "secrets.py", "--session", "s", "--", "--token", "hunter2", status=1)
    path = checkpoints("s")[0]

    text = inside("checkpoints", "show", path)
    document = inside("checkpoints", "show", path, "--json").document

    for shown in (text.out, json.dumps(document), inside("checkpoints", "list", "--json").out):
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

    done = inside("checkpoints", "show", killed[0], status=1)

    assert "verdict     bad: " in done.out
    assert "session     s of workflow count" in done.out
    assert "There is no checkpoint no.pkl." in inside("checkpoints", "show", "no.pkl", status=1).err


# --- verify ----------------------------------------------------------------------------------


def test_good_checkpoints_verify(killed: list[str]) -> None:
    assert inside("checkpoints", "verify", "s").err == "graflow-ckpt: 2 checkpoints, 0 bad\n"
    assert inside("checkpoints", "verify", "--all").out.count("good") == 2
    found = inside("checkpoints", "verify", killed[0], "--json").document
    assert [(row["path"], row["verdict"]) for row in found] == [(killed[0], "good")]


@pytest.mark.parametrize("part", ["pkl", "state.json", "meta.json"])
def test_one_bad_byte_anywhere_is_found(killed: list[str], part: str) -> None:
    path = Path(killed[1].replace(".pkl", f".{part}"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)

    done = inside("checkpoints", "verify", "s", "--json", status=1)

    assert [row["verdict"] for row in done.document] == ["good", "bad"]
    assert done.document[1]["why"]


def test_verify_wants_to_know_what() -> None:
    inside("checkpoints", "verify", status=2)
    inside("checkpoints", "verify", "s", "--all", status=2)
    assert "neither a checkpoint nor a session" in inside("checkpoints", "verify", "s", status=1).err


def test_a_path_that_was_noted_long_ago_is_said_to_have_expired() -> None:
    run_count("--session", "s")

    for command in (("checkpoints", "show"), ("resume",)):
        said = graflow(*command, "checkpoints/session_s_step_1_1700000000-1.pkl", status=1).err
        assert "expired at 2023-11-21T22:13:20+00:00" in said


# --- audit, and a sample that is verified -----------------------------------------------


def test_an_audit_shows_what_belongs_to_no_checkpoint(counted: list[str]) -> None:
    Path(counted[0].replace(".pkl", ".meta.json")).unlink()

    told = inside("checkpoints", "audit", status=1)
    (first, second) = inside("checkpoints", "audit", "--json", status=1).document["orphans"]

    assert "2 orphans" in told.err
    assert (first["kind"], first["session"], second["name"]) == (
        "part",
        "s",
        Path(counted[0]).stem + ".state.json",
    )


def test_a_sample_is_verified(counted: list[str]) -> None:
    assert f"2 checkpoints of {len(counted)}, 0 bad" in inside("checkpoints", "verify", "--sample", "2").err
    assert len(inside("checkpoints", "verify", "s", "--sample", "9", "--json").document) == len(counted)


# --- diff, bisect -----------------------------------------------------------------------


TRAIN = """
import numpy as np
from graflow_ckpt import EveryTask, task, workflow

class Model:
    def __init__(self, weights): self.weights = weights
    def __setstate__(self, state):
        raise AssertionError("a pickle was opened")

with workflow("train", session_id="night", checkpoint=EveryTask()) as ctx:
    @task(inject_context=True)
    def train(context, data=1):
        channel = context.get_channel()
        channel.set("loss", 1 / data if data < 5 else float(data))
        channel.append("history", data)
        channel.set("model", Model(np.arange(4.0) * data))
        channel.set("api_key", f"hunter{data}")
        channel.set("still", [1, 2])
        if data < 7:
            context.next_iteration(data + 1)
        return {"status": "lost" if data > 5 else "ok"}
    ctx.execute(train)
"""


@pytest.fixture
def trained(own_folder: Path) -> list[str]:
    python(program("train.py", TRAIN))
    return checkpoints("night")


def test_two_checkpoints_are_compared_without_opening_a_pickle(trained: list[str]) -> None:
    text = inside("checkpoints", "diff", trained[1], trained[4])
    found = inside("checkpoints", "diff", trained[1], "night", "--json").document

    rows = {line.split()[0]: line for line in text.out.splitlines()}
    assert "~ changed  list of 2 ▁█ 1 … 2" in rows["history"]
    assert "+900 %" in rows["loss"]
    assert "list of 4 ▁▃▆█ 0 … 6" in rows[".weights"]
    assert "hunter" not in text.out
    assert "5 values differ" not in text.err
    assert "values that differ: 4, that are the same: 1" in text.err
    assert [one["name"] for one in found["values"]] == ["api_key", "history", "loss", "model"]
    assert found["same"] == ["still"]
    assert found["b"]["path"] == trained[-1]
    assert found["values"][3]["before"]["kind"] == "__main__.Model"
    assert found["results"][0]["inside"][0] == {
        "name": ".status", "what": "changed", "before": "'ok'", "after": "'lost'",
    }  # fmt: skip


def test_the_first_bad_checkpoint_is_found(trained: list[str]) -> None:
    text = inside("checkpoints", "bisect", "night", "--bad", "loss > 2 and max(model.weights) > 1")
    found = inside(
        "checkpoints", "bisect", "night", "--bad", "results.train.status == 'lost'", "--json"
    ).document

    assert f"first bad  {trained[4]}" in text.out
    assert f"last good  {trained[3]}" in text.out
    assert "1 step between them" in text.err
    assert found["first_bad"]["path"] == trained[5]
    assert found["last_good"]["steps"] == 5
    assert len(found["looked_at"]) < len(trained)
    assert any(one["name"] == "history" for one in found["between"]["values"])


def test_none_is_bad_is_an_exit_status_and_nonsense_is_another(trained: list[str]) -> None:
    assert (
        "none of session night is bad"
        in inside("checkpoints", "bisect", "night", "--bad", "loss > 100", status=1).err
    )
    told = inside("checkpoints", "bisect", "night", "--bad", "los > 1", "--json", status=1).document
    assert (told["error"], told["name"]) == ("BadCondition", "los")
    assert (
        "not allowed in an expression"
        in inside("checkpoints", "bisect", "night", "--bad", "exit()", status=2).err
    )


# --- fork -------------------------------------------------------------------------------


RATE = """
from graflow_ckpt import EveryTask, task, workflow

with workflow("rate", checkpoint=EveryTask()) as ctx:
    @task(inject_context=True)
    def climb(context, data=0):
        channel = context.get_channel()
        channel.set("height", channel.get("height", 0) + channel.get("rate", 1))
        channel.set("rate", channel.get("rate", 1))
        if data < 3:
            context.next_iteration(data + 1)
        return channel.get("height")
    print("result", ctx.execute())
"""


@pytest.fixture
def rated() -> list[str]:
    program("rate.py", RATE)
    graflow("run", "rate.py", "--session", "s")
    return checkpoints("s")


def test_a_fork_begins_where_the_checkpoint_is_with_the_values_that_were_set(rated: list[str]) -> None:
    made = inside("checkpoints", "fork", rated[0], "fast", "--set", "rate=100", "--json").document
    done = graflow("resume", "fast")

    assert (made["session"], made["from"], made["set"]) == ("fast", rated[0], ["rate"])
    assert done.out == "result 301\n"
    assert checkpoints("s") == rated
    assert "session s was finished" in graflow("resume", "s").err


def test_it_gets_a_name_and_runs_nothing(rated: list[str]) -> None:
    first = inside("checkpoints", "fork", rated[1])
    second = inside("checkpoints", "fork", rated[1], "--json").document

    assert first.out.startswith("checkpoints/session_s-fork_step_2_")
    assert "session s-fork begins at step 2; graflow-ckpt resume s-fork" in first.err
    assert second["session"] == "s-fork-2"


def test_only_values_that_are_there_can_be_set(rated: list[str]) -> None:
    told = inside("checkpoints", "fork", rated[0], "x", "--set", "rat=2", status=1)

    assert "has no value 'rat' that could be set" in told.err
    assert "It has: rate." in told.err
    assert checkpoints("x") == []
    inside("checkpoints", "fork", rated[0], "x", "--set", "rate", status=2)
    inside("checkpoints", "fork", rated[0], "s", status=1)


# --- trust, key -------------------------------------------------------------------------


@pytest.fixture
def foreign() -> list[str]:
    """Checkpoints that another machine has sealed."""
    program("count.py", COUNT)
    key = graflow("key", "new").out.strip()
    command = ("run", "count.py", "--session", "s", "--every", "2", "--", "4")
    graflow(*command, status=KILLED, GRAFLOW_CKPT_KEY=key)
    return checkpoints("s")


def test_a_foreign_checkpoint_is_refused_with_both_ways_on(foreign: list[str]) -> None:
    refused = graflow("resume", foreign[-1], status=1).err

    assert "GRAFLOW_CKPT_KEY" in refused
    assert "graflow-ckpt trust" in refused
    assert "Traceback" not in refused


def test_a_trusted_checkpoint_is_one_s_own(foreign: list[str]) -> None:
    done = graflow("trust", foreign[-1], "--yes")

    assert "host" in done.err
    assert "count.py" in done.err
    assert [row["verdict"] for row in inside("checkpoints", "verify", "s", "--json", status=1).document] == [
        "bad", "good",
    ]  # fmt: skip
    assert "continues from step 4" in graflow("resume", "s").err


def test_somebody_is_asked_first(foreign: list[str]) -> None:
    before = Path(foreign[-1].replace(".pkl", ".meta.json")).read_bytes()

    assert "Nothing was done." in graflow("trust", foreign[-1], stdin="n\n", status=130).err
    assert Path(foreign[-1].replace(".pkl", ".meta.json")).read_bytes() == before

    terminal = Terminal("trust", foreign[-1])
    terminal.read_until(r"Seal it with the key of this machine\? \[y/N\]")
    terminal.type("y\n")
    assert terminal.end() == 0
    inside("checkpoints", "verify", foreign[-1])


@pytest.mark.parametrize("part", ["pkl", "state.json"])
def test_files_that_are_not_those_of_the_meta_are_never_sealed(foreign: list[str], part: str) -> None:
    path = Path(foreign[-1].replace(".pkl", f".{part}"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    assert "corrupted" in graflow("trust", foreign[-1], "--yes", status=1).err
    inside("checkpoints", "verify", foreign[-1], status=1)


def test_one_s_own_checkpoint_needs_no_trust() -> None:
    run_count("--session", "s")

    assert "nothing to do" in graflow("trust", checkpoints("s")[0]).err


def test_a_key_can_be_carried_over(foreign: list[str]) -> None:
    key = graflow("key", "new", "--json").document
    assert key["key"].startswith(f"{key['id']}:")

    Path("key").write_text(key["key"])
    Path("key").chmod(0o600)
    graflow("trust", foreign[-1], "--yes", GRAFLOW_CKPT_KEY_FILE="key")

    inside("checkpoints", "verify", foreign[-1], GRAFLOW_CKPT_KEY=key["key"])
    inside("checkpoints", "verify", foreign[-1], status=1)
