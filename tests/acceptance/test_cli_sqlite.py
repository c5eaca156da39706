"""graflow-ckpt with a store in SQLite: what is listed, backed up and given back while programs use it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.command_line import CHAIN, COUNT, KILLED, Terminal, graflow, program, steps

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

STORE = "sqlite:///runs.db"


@pytest.fixture
def killed() -> None:
    program("count.py", COUNT)
    place = {"GRAFLOW_CKPT_STORE": STORE}
    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "4", status=KILLED, **place)


def paths(*arguments: str, store: str = STORE) -> list[str]:
    listed = graflow("checkpoints", "list", *arguments, "--store", store, "--json").document
    return [row["path"].rpartition("/")[2].partition("_step_")[0] + f" {row['steps']}" for row in listed]


def test_the_newest_are_listed_by_session_workflow_and_status(killed: None) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c", GRAFLOW_CKPT_STORE=STORE)

    assert paths() == ["session_c 2", "session_s 4", "session_s 2"]
    assert paths("--limit", "2") == ["session_c 2", "session_s 4"]
    assert paths("s", "--limit", "1") == paths("--session", "s", "--limit", "1") == ["session_s 4"]
    assert paths("--workflow", "count") == paths("--status", "running") == ["session_s 4", "session_s 2"]
    assert paths("--workflow", "chain", "--status", "running") == []
    both = graflow("checkpoints", "list", "s", "--session", "c", "--store", STORE, status=2)
    assert "Name one session." in both.err


def test_a_backup_is_gone_on_from_when_the_database_is_lost(killed: None) -> None:
    done = graflow("checkpoints", "backup", "b.db", "--store", STORE, "--json").document
    assert done["bytes"] == os.path.getsize("b.db")
    for file in Path().glob("runs.db*"):
        file.unlink()
    os.rename("b.db", "runs.db")

    graflow("run", "count.py", "--session", "s", GRAFLOW_CKPT_STORE=STORE)

    assert steps() == [0, 1, 2, 3, 4, 4, 5]
    assert paths("--limit", "1") == ["session_s 6"]
    graflow("checkpoints", "verify", "--all", "--store", STORE)


def test_a_file_that_is_there_is_replaced_by_a_backup_only_if_somebody_says_so(killed: None) -> None:
    Path("b.db").write_text("precious")

    asked = graflow("checkpoints", "backup", "b.db", "--store", STORE, stdin="n\n", status=130)

    assert "Replace b.db?" in asked.err
    assert Path("b.db").read_text() == "precious"
    assert graflow("checkpoints", "backup", "b.db", "--store", STORE, "--yes").out == "b.db\n"
    assert len(paths(store="sqlite:///b.db")) == 2


def test_a_backup_shows_how_far_it_is_on_a_terminal(killed: None) -> None:
    terminal = Terminal("checkpoints", "backup", "b.db", "--store", STORE)

    assert terminal.end() == 0
    assert "copied" in terminal.text
    assert len(paths(store="sqlite:///b.db")) == 2


def test_a_vacuum_says_what_it_gave_back(killed: None) -> None:
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("INSERT INTO chunks VALUES (-1, zeroblob(3000000))")
        connection.execute("DELETE FROM chunks WHERE id = -1")

    done = graflow("checkpoints", "vacuum", "--store", STORE, "--json").document

    assert done["before"] - done["after"] > 2_900_000
    assert done["after"] == os.path.getsize("runs.db")
    assert "now" in graflow("checkpoints", "vacuum", "--store", STORE).err
    assert len(paths()) == 2


@pytest.mark.parametrize("command", [("backup", "b.db"), ("vacuum",)])
def test_what_is_no_database_is_refused(command: tuple[str, ...]) -> None:
    refused = graflow("checkpoints", *command, "--store", "checkpoints", status=2)
    missing = graflow("checkpoints", *command, "--store", STORE, status=1)

    assert "checkpoints is no SQLite store." in refused.err
    assert "--store sqlite:///FILE" in refused.err
    assert f"There is no database {Path.cwd()}/runs.db." in missing.err
    assert list(Path().glob("*.db*")) == []
