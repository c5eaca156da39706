"""graflow-ckpt doctor, copy, export, import, and what somebody types who has read little."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from graflow_ckpt.checkpoint.care import inventory
from graflow_ckpt.cli.inspect.examination import examine
from graflow_ckpt.frontends.overrides import overrides
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import new_key
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.acceptance.command_line import (
    COUNT,
    KILLED,
    Terminal,
    checkpoints,
    graflow,
    inside,
    program,
    run_count,
    steps,
)
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


# --- what somebody types who has read little --------------------------------------------


@pytest.fixture
def completed() -> list[str]:
    """Six checkpoints of a session that has completed."""
    run_count("--session", "s", "--every", "1")
    return checkpoints("s")


@pytest.mark.parametrize(
    ("typed", "status", "told"),
    [
        ("delete x", 2, "Did you mean: graflow-ckpt checkpoints delete?"),
        ("verify x", 2, "Did you mean: graflow-ckpt checkpoints verify?"),
        ("checkpoint x", 2, "Did you mean: graflow-ckpt checkpoints?"),
        ("session x", 2, "Did you mean: graflow-ckpt sessions?"),
        ("checkpoints clear cuont --yes", 1, "of workflow 'cuont'"),
        ("checkpoints copy --workflow cuont --to x", 1, "of workflow 'cuont'"),
        ("checkpoints copy --from chekpoints --to x", 1, "{here}/chekpoints. --from names another place."),
        ("checkpoints show nihgt", 1, "graflow-ckpt sessions lists those that have"),
        ("checkpoints import nowhere.ckpt", 1, "is not there: is the path right"),
        ("checkpoints list --store encryptd+sqlite:///runs.db", 1, "encrypted+"),
        ("sessions --workflow cuont", 0, "There are no such sessions in checkpoints"),
        ("run . --session s", 2, ". is a folder. Name a file in it"),
        ("run checkpoints --session s", 2, "checkpoints is a folder. Name a file in it"),
        ("run count.py:counting --session s", 2, "A workflow is named by module: count:counting"),
        ("run ./count.py:counting --session s", 2, "A workflow is named by module: count:counting"),
        ("run ..count --session s", 2, "There is no file and no module '..count' here"),
        ("run 'my program' --session s", 2, "There is no file and no module 'my program' here"),
    ],
)
def test_what_is_mistyped_or_not_there_is_said_with_what_to_type(
    completed: list[str], typed: str, status: int, told: str
) -> None:
    said = dict(vars(overrides))

    ended = inside(*shlex.split(typed), status=status)

    assert told.format(here=f"There are no checkpoints in file://{Path.cwd()}") in " ".join(ended.err.split())
    assert checkpoints("s") == completed
    assert vars(overrides) == said  # of what was said for it nothing is left to the next program


def test_a_command_that_is_like_no_other_names_none() -> None:
    assert "Did you mean" not in inside("qqqq", status=2).err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sqlite:runs.db", "sqlite:///runs.db"),
        ("sqlite:/srv/runs.db", "sqlite:////srv/runs.db"),
        ("postgresql:host/runs", "postgresql://host/runs"),
        ("s3:/bucket/runs", "s3://bucket/runs"),
        ("file:/srv/runs", "file:///srv/runs"),
        ("sqlit:///runs.db", "sqlite://"),
        ("mysql://me:hunter3@host/runs", "postgresql://"),
    ],
)
def test_an_address_that_is_none_is_no_folder_and_names_what_to_write(typed: str, meant: str) -> None:
    for command in ("list", "stats"):
        refused = inside("checkpoints", command, "--store", typed, status=1)

        assert meant in refused.err
        assert "hunter3" not in refused.err
    assert list(Path().glob("*:*")) == []


def test_a_folder_may_be_called_like_half_an_address_if_it_is_written_as_one(completed: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "./s3:old")

    assert len(inside("checkpoints", "list", "--store", "./s3:old", "--json").document) == len(completed)


def test_a_question_that_nobody_answers_names_the_option(completed: list[str]) -> None:
    asked = graflow("checkpoints", "clear", "count", status=2)
    document = graflow("checkpoints", "clear", "count", "--json", status=2).document

    assert "Aborted: confirmation needed, but there is no terminal. Pass --yes" in asked.err
    assert document["error"] == "Usage"
    assert checkpoints("s") == completed


def test_work_that_is_interrupted_is_not_called_nothing(completed: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///runs.db")
    with closing(sqlite3.connect("runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # so that it has something to wait for

        terminal = Terminal("checkpoints", "vacuum", "--store", "sqlite:///runs.db")
        terminal.read_until("giving back")
        terminal.type("\x03")

        assert terminal.end() == 130
    assert "Interrupted; what was done until then stands." in terminal.text
    assert "Nothing was done" not in terminal.text


def test_settings_show_where_checkpoints_are_and_no_secret() -> None:
    told = inside(
        "settings",
        GRAFLOW_CKPT_STORE="retry+postgresql://me:hunter3@host/runs",
        GRAFLOW_CKPT_CACHE_URL="redis://:hunter3@host:6379/0",
        GRAFLOW_CKPT_FERNET_KEY="hunter3",
        WORKFLOW_CHECKPOINT_DSN="host=db password=hunter3",
        WORKFLOW_CHECKPOINT_BACKEND="postgres",
    ).out

    assert "hunter3" not in told
    assert "retry+postgresql://host/runs" in told
    assert "workflow_checkpoint_backend" in told


def test_the_file_of_a_database_is_no_folder_and_has_an_address(completed: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///runs.db")

    refused = inside("checkpoints", "list", "--store", "runs.db", status=2)

    assert "its address is sqlite:///runs.db." in refused.err


def test_no_key_is_put_first_for_a_store_that_could_not_be_sealed_with_it(completed: list[str]) -> None:
    before = inside("key", "list", "--json").document

    inside("key", "rotate", "--store", "redis://127.0.0.1:1/0", status=2)  # nor can a local key seal there

    assert inside("key", "list", "--json").document == before


def test_a_session_shows_its_newest_checkpoint(completed: list[str]) -> None:
    assert inside("checkpoints", "show", "s").out.startswith(completed[-1])


@pytest.mark.parametrize("word", ["encrypted", "compressed"])
def test_a_checkpoint_whose_store_was_named_without_its_word_is_read_with_the_keys(
    completed: list[str], word: str
) -> None:
    inside("checkpoints", "copy", "--to", f"{word}+sqlite:///runs.db")
    plain = ("--store", "sqlite:///runs.db")

    rows = inside("checkpoints", "list", *plain, "--json").document
    inside("checkpoints", "verify", "--all", *plain)
    other = inside("checkpoints", "verify", "--all", *plain, status=1, GRAFLOW_CKPT_KEY=new_key()).out

    assert len(rows) == len(completed)
    assert "was sealed with key" in other


def test_a_key_that_is_none_is_refused_before_the_first_task() -> None:
    program("count.py", COUNT)

    refused = graflow(
        "run", "count.py", "--session", "s", "--every", "1", status=1,
        GRAFLOW_CKPT_STORE="encrypted+sqlite:///runs.db", GRAFLOW_CKPT_FERNET_KEY="abc",
    )  # fmt: skip

    assert "is no Fernet key" in refused.err
    assert not Path("steps.log").exists()


def test_the_command_that_goes_on_names_all_that_leads_to_a_bucket(objects_url: str) -> None:
    told = run_count("--session", "s", "--max-steps", "2", "--store", objects_url,
                   GRAFLOW_CKPT_KEY=new_key()).err  # fmt: skip

    assert f"graflow-ckpt resume s --store '{objects_url}'" in told


def test_a_session_that_is_mistyped_names_the_one_that_was_meant(completed: list[str]) -> None:
    inside("checkpoints", "fork", "s", "nightly")

    for command in ("verify", "delete"):
        assert "Did you mean: nightly?" in inside("checkpoints", command, "nihgtly", status=1).err


WITHOUT = """
import sys
sys.modules["redis"] = sys.modules["pydantic"] = None
from graflow_ckpt.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["status s", "sessions purge s", "checkpoints take s", "worker", "top"])
def test_whoever_has_no_fleet_is_not_sent_for_its_packages(command: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT, *command.split()], capture_output=True, text=True, check=False
    )

    assert told.returncode == 2
    assert "A session in a store needs none: graflow-ckpt sessions, resume, checkpoints" in told.stderr


# --- graflow-ckpt checkpoints copy, export and import -----------------------------------


DATABASE = "sqlite:///other.db"


def test_a_session_is_copied_and_goes_on_at_its_new_place(killed: list[str]) -> None:
    done = inside("checkpoints", "copy", "--to", DATABASE, "--json").document

    assert [cut["state"] for cut in done["checkpoints"]] == ["copied"] * len(killed)
    assert [(one["session"], one["copied"]) for one in done["sessions"]] == [("s", len(killed))]
    again = inside("checkpoints", "copy", "s", "--to", DATABASE)
    assert again.out.splitlines()[1].split()[:3] == ["s", "0", str(len(killed))]
    graflow("resume", "s", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]
    assert graflow("sessions", "--store", DATABASE, "--json").document[0]["status"] == "completed"


def test_who_has_gone_on_there_is_named_and_the_exit_status_says_so(killed: list[str]) -> None:
    inside("checkpoints", "copy", "--to", DATABASE)
    graflow("resume", "s", "--store", DATABASE)
    graflow("resume", "s")

    told = inside("checkpoints", "copy", "--to", DATABASE, status=1)

    assert "session s was not copied: Session s has gone on by itself at sqlite:///" in told.err
    (failed,) = inside("checkpoints", "copy", "--to", DATABASE, "--json", status=1).document["failed"]
    assert failed["error"] == "Diverged"


def test_a_limit_may_be_larger_than_any_store(counted: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///runs.db")

    for store in ("checkpoints", "sqlite:///runs.db"):
        listed = inside("checkpoints", "list", "--limit", str(10**30), "--store", store, "--json").document
        assert len(listed) == len(counted)


def test_a_single_checkpoint_and_a_workflow_are_copied_alone(counted: list[str]) -> None:
    one = inside("checkpoints", "copy", counted[0], "--to", DATABASE, "--json").document
    none = inside("checkpoints", "copy", "--workflow", "other", "--to", DATABASE, "--json", status=1).document

    assert [(cut["path"], cut["state"]) for cut in one["checkpoints"]] == [(counted[0], "copied")]
    assert none["error"] == "NoSession"
    inside("checkpoints", "verify", one["checkpoints"][0]["target"])


def test_what_is_not_there_or_the_same_place_is_an_error(counted: list[str]) -> None:
    assert (
        "neither a session nor a checkpoint"
        in inside("checkpoints", "copy", "night", "--to", DATABASE, status=1).err
    )
    inside("checkpoints", "copy", "--to", DATABASE)
    (path, *_) = inside("checkpoints", "list", "--store", DATABASE, "--json").document
    assert "--from sqlite:///" in inside("checkpoints", "copy", path["path"], "--to", "x", status=2).err
    assert "the same place" in inside("checkpoints", "copy", "--to", "checkpoints", status=2).err
    assert (
        "--workflow is for all"
        in inside("checkpoints", "copy", "s", "--workflow", "w", "--to", DATABASE, status=2).err
    )


def test_what_was_sealed_with_the_local_key_is_copied_to_a_place_with_a_named_one(counted: list[str]) -> None:
    key = new_key()

    done = inside("checkpoints", "copy", "--to", DATABASE, "--json", GRAFLOW_CKPT_KEY=key).document

    assert {cut["state"] for cut in done["checkpoints"]} == {"copied"}
    inside("checkpoints", "verify", "--all", "--store", DATABASE, GRAFLOW_CKPT_KEY=key)
    inside("checkpoints", "verify", "--all", "--store", DATABASE, status=1)


def test_a_session_travels_in_a_file(killed: list[str]) -> None:
    told = inside("checkpoints", "export", "s", "s.ckpt")
    done = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, "--json").document

    assert f"{len(killed)} checkpoints copied" in told.err
    assert list(Path().glob("s.ckpt-*")) == []  # nothing lies beside it that would have to be carried, too
    assert {cut["state"] for cut in done["checkpoints"]} == {"copied"}
    graflow("resume", "s", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_a_journal_travels_in_a_file(tmp_path: Path) -> None:
    run_count("--session", "s", "--durability", "journal", "--", "4", status=KILLED)

    inside("checkpoints", "export", "s", "s.ckpt")
    (done,) = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, "--json").document["sessions"]

    assert done["records"] > 0
    graflow("run", "count.py", "--session", "s", "--durability", "journal", "--store", DATABASE)
    assert steps() == [0, 1, 2, 3, 4, 4, 5]


def test_single_checkpoints_and_all_of_a_store_are_exported(counted: list[str]) -> None:
    one = inside("checkpoints", "export", counted[0], "one.ckpt", "--json").document
    everything = inside("checkpoints", "export", "--all", "all.ckpt", "--json").document

    assert [cut["state"] for cut in one["checkpoints"]] == ["copied"]
    assert [(one["session"], one["copied"]) for one in everything["sessions"]] == [("s", len(counted))]
    done = inside("checkpoints", "import", "one.ckpt", "--store", "new", "--json").document
    assert [cut["state"] for cut in done["checkpoints"]] == ["copied"]
    assert f"{len(counted) - 1} checkpoints copied" in inside("checkpoints", "export", "s", "one.ckpt").err
    assert "give --all" in inside("checkpoints", "export", "x.ckpt", status=2).err


def test_a_file_of_another_machine_needs_its_key_or_trust(counted: list[str]) -> None:
    inside("checkpoints", "export", "s", "s.ckpt")
    elsewhere = {"XDG_STATE_HOME": str(Path("elsewhere").absolute())}

    refused = inside("checkpoints", "import", "s.ckpt", "--store", DATABASE, status=1, **elsewhere)
    asked = graflow("checkpoints", "import", "s.ckpt", "--trust", "--store", DATABASE, status=2, **elsewhere)
    inside("checkpoints", "import", "s.ckpt", "--trust", "--yes", "--store", DATABASE, **elsewhere)

    assert "sealed with key" in refused.err
    assert "session s: " in asked.err
    assert "runs the code in them" in asked.err
    inside("checkpoints", "verify", "--all", "--store", DATABASE, **elsewhere)


def test_what_is_no_file_of_checkpoints_is_refused() -> None:
    Path("x.ckpt").write_bytes(b"something else")

    told = inside("checkpoints", "import", "x.ckpt", "--json", status=1).document

    assert told["error"] == "CheckpointCorrupt"
    assert inside("checkpoints", "import", "none.ckpt", "--json", status=1).document["errno"] == 2


def test_somebody_at_a_terminal_sees_how_far_it_is(counted: list[str]) -> None:
    terminal = Terminal("checkpoints", "copy", "--to", DATABASE)

    terminal.read_until(r"checkpoints? copied")

    assert terminal.end() == 0


def test_what_is_not_encrypted_any_more_is_told(counted: list[str]) -> None:
    key = new_key()
    secret = "encrypted+sqlite:///secret.db"

    veiled = inside("checkpoints", "copy", "--to", secret, GRAFLOW_CKPT_KEY=key)
    clear = inside("checkpoints", "copy", "--from", secret, "--to", "clear", GRAFLOW_CKPT_KEY=key)
    file = inside("checkpoints", "export", "s", "s.ckpt", "--store", secret, GRAFLOW_CKPT_KEY=key)

    assert "in the clear" not in veiled.err
    assert "is in the clear in file://" in clear.err
    assert f"is in the clear in sqlite:///{Path.cwd()}/s.ckpt" in file.err
    inside("checkpoints", "verify", "--all", "--store", "clear", GRAFLOW_CKPT_KEY=key)
