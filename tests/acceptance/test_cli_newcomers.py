"""What somebody types who has read little: each error says what to do instead, and nothing happens unseen."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from graflow_ckpt.frontends.overrides import overrides
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance.command_line import COUNT, Terminal, checkpoints, graflow, inside, program, run_count


@pytest.fixture
def counted() -> list[str]:
    """Six checkpoints of a session that has completed."""
    run_count("--session", "s", "--every", "1")
    return checkpoints("s")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("delete", "checkpoints delete"), ("verify", "checkpoints verify"), ("checkpoint", "checkpoints"),
     ("session", "sessions")],
)  # fmt: skip
def test_a_command_that_is_not_there_names_the_one_that_was_meant(typed: str, meant: str) -> None:
    assert f"Did you mean: graflow-ckpt {meant}?" in inside(typed, "x", status=2).err


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


def test_a_folder_may_be_called_like_half_an_address_if_it_is_written_as_one(counted: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "./s3:old")

    assert len(inside("checkpoints", "list", "--store", "./s3:old", "--json").document) == len(counted)


def test_a_question_that_nobody_answers_names_the_option(counted: list[str]) -> None:
    asked = graflow("checkpoints", "clear", "count", status=2)
    document = graflow("checkpoints", "clear", "count", "--json", status=2).document

    assert "Nothing was done: nobody answers here. --yes" in asked.err
    assert document["error"] == "Usage"
    assert checkpoints("s") == counted


@pytest.mark.parametrize(
    "command", [("clear", "cuont", "--yes"), ("copy", "--workflow", "cuont", "--to", "x")]
)
def test_a_workflow_that_nobody_knows_is_an_error_and_not_nothing(
    counted: list[str], command: tuple[str, ...]
) -> None:
    assert "of workflow 'cuont'" in inside("checkpoints", *command, status=1).err
    assert checkpoints("s") == counted


def test_where_nothing_is_nothing_is_copied_and_that_is_said() -> None:
    told = inside("checkpoints", "copy", "--from", "chekpoints", "--to", "x", status=1).err

    place = f"file://{Path.cwd()}/chekpoints"
    assert f"There are no checkpoints in {place}. --from names another place." in " ".join(told.split())


def test_a_limit_may_be_larger_than_any_store(counted: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///runs.db")

    for store in ("checkpoints", "sqlite:///runs.db"):
        listed = inside("checkpoints", "list", "--limit", str(10**30), "--store", store, "--json").document
        assert len(listed) == len(counted)


def test_work_that_is_interrupted_is_not_called_nothing(counted: list[str]) -> None:
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


def test_the_file_of_a_database_is_no_folder_and_has_an_address(counted: list[str]) -> None:
    inside("checkpoints", "copy", "--to", "sqlite:///runs.db")

    refused = inside("checkpoints", "list", "--store", "runs.db", status=2)

    assert "its address is sqlite:///runs.db." in refused.err


def test_no_key_is_put_first_for_a_store_that_could_not_be_sealed_with_it(counted: list[str]) -> None:
    before = inside("key", "list", "--json").document

    inside("key", "rotate", "--store", "redis://127.0.0.1:1/0", status=2)  # nor can a local key seal there

    assert inside("key", "list", "--json").document == before


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("show", "nihgt"), "graflow-ckpt sessions lists those that have"),
        (("import", "nowhere.ckpt"), "is not there: is the path right"),
        (("list", "--store", "encryptd+sqlite:///runs.db"), "encrypted+"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_look_at(
    counted: list[str], command: tuple[str, ...], hint: str
) -> None:
    assert hint in inside("checkpoints", *command, status=None).err


def test_a_session_shows_its_newest_checkpoint(counted: list[str]) -> None:
    assert inside("checkpoints", "show", "s").out.startswith(counted[-1])


@pytest.mark.parametrize("word", ["encrypted", "compressed"])
def test_a_checkpoint_whose_store_was_named_without_its_wrapper_says_so(
    counted: list[str], word: str
) -> None:
    inside("checkpoints", "copy", "--to", f"{word}+sqlite:///runs.db")

    told = inside("checkpoints", "verify", "--all", "--store", "sqlite:///runs.db", status=1).out

    assert f"Put {word}+ before it" in told
    assert "graflow-ckpt trust" not in told


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


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (".", ". is a folder. Name a file in it"),
        ("checkpoints", "checkpoints is a folder. Name a file in it"),
        ("count.py:counting", "A workflow is named by module: count:counting"),
        ("./count.py:counting", "A workflow is named by module: count:counting"),
        ("..count", "There is no file and no module '..count' here"),
        ("my program", "There is no file and no module 'my program' here"),
    ],
)
def test_what_is_no_program_is_told_by_what_it_is(counted: list[str], typed: str, told: str) -> None:
    said = dict(vars(overrides))

    assert told in inside("run", typed, "--session", "s", status=2).err
    assert vars(overrides) == said  # of what was said for it nothing is left to the next program


def test_a_session_that_is_mistyped_names_the_one_that_was_meant(counted: list[str]) -> None:
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


def test_sessions_of_a_workflow_that_has_none_are_such_sessions(counted: list[str]) -> None:
    assert "There are no such sessions in checkpoints" in inside("sessions", "--workflow", "cuont").err
