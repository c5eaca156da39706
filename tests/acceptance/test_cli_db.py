"""graflow-ckpt db; programs whose checkpoints are in Postgres or SQLite; retention of workflows that run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from graflow_ckpt import (
    BestOf,
    CheckpointManager,
    DeleteOnSuccess,
    EveryTask,
    KeepEvery,
    KeepLast,
    OfAll,
    task,
    workflow,
)
from graflow_ckpt.checkpoint.retention import Retention
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring, new_key
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests import things
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
    run_count,
    steps,
)
from tests.acceptance.places import Make
from tests.postgres_servers import PASSWORD, PostgresServer
from tests.trios import own_name, put

pytestmark = pytest.mark.usefixtures("checkpoints_alone")


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """Of a database without tables."""
    return postgres_server.database()


def shown(url: str) -> str:
    return url.replace(f"{PostgresServer.user}:{PASSWORD}@", "")


def test_tables_are_made_looked_at_and_taken_away(url: str) -> None:
    before = graflow("db", "status", "--store", url, "--json", status=1).document
    assert (before["version"], before["verdict"], before["applied"]) == (0, "none", [])

    assert graflow("db", "upgrade", GRAFLOW_CKPT_STORE=url).out == "1 things\n"
    assert "nothing to do" in graflow("db", "upgrade", "--store", f"retry+{url}").err

    after = graflow("db", "status", "--store", url, "--json").document
    assert (after["version"], after["verdict"], after["store"]) == (1, "ready", shown(url))
    table = graflow("db", "status", "--store", url)
    assert "things" in table.out
    assert "ready" in table.err
    done = graflow("db", "downgrade", "--to", "0", "--yes", "--store", url, "--json").document
    assert (done["taken"], done["verdict"]) == ([1], "none")


def test_somebody_is_asked_before_checkpoints_go(url: str) -> None:
    graflow("db", "upgrade", "--store", url)

    asked = graflow("db", "downgrade", "--to", "0", "--store", url, stdin="n\n", status=130)

    assert "0 checkpoints and 0 sessions go" in asked.err
    assert "Nothing was done." in asked.err
    graflow("db", "status", "--store", url)
    put(PostgresStore(url), own_name(), "one")
    terminal = Terminal("db", "downgrade", "--to", "0", "--store", url)
    terminal.read_until(r"1 checkpoints and 1 sessions go .*Go back to version 0\? \[y/N\]")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert graflow("db", "status", "--store", url, "--json", status=1).document["verdict"] == "none"


@pytest.mark.parametrize("where", ["checkpoints", "redis://h:1/0", "postgresql://me:hunter3@h"])
def test_what_is_no_database_is_refused(where: str) -> None:
    refused = graflow("db", "upgrade", "--store", where, status=2)

    assert "hunter3" not in refused.err
    assert "Traceback" not in refused.err


def test_a_password_is_never_shown(url: str) -> None:
    wrong = url.replace(PASSWORD, "hunter3")

    for command in (("db", "status"), ("db", "upgrade"), ("checkpoints", "list"), ("sessions",)):
        refused = graflow(*command, "--store", wrong, "--traceback", status=1)

        assert "authentication failed" in refused.err
        assert "hunter3" not in refused.out + refused.err


def test_a_killed_program_goes_on_from_what_is_in_the_database(url: str) -> None:
    program("count.py", COUNT)
    settings = {"GRAFLOW_CKPT_STORE": url, "GRAFLOW_CKPT_KEY": new_key()}
    refused = graflow("run", "count.py", "--session", "s", status=1, **settings)
    assert f"graflow-ckpt db upgrade --store {shown(url)}" in refused.err
    graflow("db", "upgrade", **settings)

    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "4", status=KILLED, **settings)
    row, *_ = graflow("checkpoints", "list", "s", "--json", **settings).document
    assert row["path"].startswith(f"{shown(url)}/session_s_step_4_")
    verified = graflow("checkpoints", "verify", "s", "--json", **settings).document
    assert [row["verdict"] for row in verified] == ["good", "good"]
    done = graflow("run", "count.py", "--session", "s", "--every", "2", "--", "4", **settings)

    assert "continues from step 4" in done.err
    assert "result 6" in done.out
    assert graflow("sessions", "--json", **settings).document[0]["session"] == "s"
    shows = graflow("checkpoints", "show", row["path"], **settings)
    assert PASSWORD not in shows.out + shows.err + done.out + done.err


def test_a_machine_without_the_key_is_refused_before_its_first_task(url: str) -> None:
    program("count.py", COUNT)
    graflow("db", "upgrade", "--store", url)
    clean = {name: value for name, value in os.environ.items() if name != "GRAFLOW_CKPT_KEY"}

    refused = subprocess.run(
        [*GRAFLOW, "run", "count.py", "--store", url, "--every", "2"],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )

    assert refused.returncode != 0
    assert "GRAFLOW_CKPT_KEY" in refused.stderr
    assert urlsplit(url).password not in refused.stderr + refused.stdout
    assert not os.path.exists("steps.log")


# --- SQLite: listed, backed up and vacuumed ---------------------------------------------


STORE = "sqlite:///runs.db"


@pytest.fixture
def killed_in_sqlite() -> None:
    program("count.py", COUNT)
    place = {"GRAFLOW_CKPT_STORE": STORE}
    graflow("run", "count.py", "--session", "s", "--every", "2", "--", "4", status=KILLED, **place)


def paths(*arguments: str, store: str = STORE) -> list[str]:
    listed = graflow("checkpoints", "list", *arguments, "--store", store, "--json").document
    return [row["path"].rpartition("/")[2].partition("_step_")[0] + f" {row['steps']}" for row in listed]


def test_the_newest_are_listed_by_session_workflow_and_status(killed_in_sqlite: None) -> None:
    program("chain.py", CHAIN)
    graflow("run", "chain.py", "--session", "c", GRAFLOW_CKPT_STORE=STORE)

    assert paths() == ["session_c 2", "session_s 4", "session_s 2"]
    assert paths("--limit", "2") == ["session_c 2", "session_s 4"]
    assert paths("s", "--limit", "1") == paths("--session", "s", "--limit", "1") == ["session_s 4"]
    assert paths("--workflow", "count") == paths("--status", "running") == ["session_s 4", "session_s 2"]
    assert paths("--workflow", "chain", "--status", "running") == []
    both = graflow("checkpoints", "list", "s", "--session", "c", "--store", STORE, status=2)
    assert "Name one session." in both.err


def test_a_backup_is_gone_on_from_when_the_database_is_lost(killed_in_sqlite: None) -> None:
    done = graflow("checkpoints", "backup", "b.db", "--store", STORE, "--json").document
    assert done["bytes"] == os.path.getsize("b.db")
    for file in Path().glob("runs.db*"):
        file.unlink()
    os.rename("b.db", "runs.db")

    graflow("run", "count.py", "--session", "s", GRAFLOW_CKPT_STORE=STORE)

    assert steps() == [0, 1, 2, 3, 4, 4, 5]
    assert paths("--limit", "1") == ["session_s 6"]
    graflow("checkpoints", "verify", "--all", "--store", STORE)


def test_a_file_that_is_there_is_replaced_by_a_backup_only_if_somebody_says_so(
    killed_in_sqlite: None,
) -> None:
    Path("b.db").write_text("precious")

    asked = graflow("checkpoints", "backup", "b.db", "--store", STORE, stdin="n\n", status=130)

    assert "Replace b.db?" in asked.err
    assert Path("b.db").read_text() == "precious"
    assert graflow("checkpoints", "backup", "b.db", "--store", STORE, "--yes").out == "b.db\n"
    assert len(paths(store="sqlite:///b.db")) == 2


def test_a_backup_shows_how_far_it_is_on_a_terminal(killed_in_sqlite: None) -> None:
    terminal = Terminal("checkpoints", "backup", "b.db", "--store", STORE)

    assert terminal.end() == 0
    assert "copied" in terminal.text
    assert len(paths(store="sqlite:///b.db")) == 2


def test_a_vacuum_says_what_it_gave_back(killed_in_sqlite: None) -> None:
    store = SqliteStore("runs.db")
    things.write(store, "data/s/1-0/000000", bytes(3_000_000))
    things.drop(store, ["data/s/1-0/000000"])
    store.close()

    done = graflow("checkpoints", "vacuum", "--store", STORE, "--json").document

    assert done["before"] - done["after"] > 2_900_000
    assert done["after"] == os.path.getsize("runs.db")
    assert "now" in graflow("checkpoints", "vacuum", "--store", STORE).err
    assert len(paths()) == 2


@pytest.mark.parametrize("command", [("backup", "b.db"), ("vacuum",)])
def test_what_is_no_sqlite_store_is_refused(command: tuple[str, ...]) -> None:
    refused = graflow("checkpoints", *command, "--store", "checkpoints", status=2)
    missing = graflow("checkpoints", *command, "--store", STORE, status=1)

    assert "checkpoints is no SQLite store." in refused.err
    assert "--store sqlite:///FILE" in refused.err
    assert f"There is no database {Path.cwd()}/runs.db." in missing.err
    assert list(Path().glob("*.db*")) == []


# --- retention of workflows that run ----------------------------------------------------


def kept_steps(session: str = "s", store: str = "checkpoints") -> list[int]:
    return sorted(m.steps for m in CheckpointManager.list_checkpoints(session, store=store))


def loop(limit: int, make: Make = workflow, fails: Callable[[], bool] = bool, **options: Any) -> Any:
    """A task that comes round so often; each round asks for nothing unless told."""
    asks = options.pop("asks", lambda number: None)
    with make("loop", session_id="s", checkpoint=options.pop("checkpoint", EveryTask()), **options) as flow:

        @task(inject_context=True)
        def count(context: Any, data: int = 1) -> int:
            if data == limit and fails():
                raise ZeroDivisionError("the last one fails")
            if (metadata := asks(data)) is not None:
                context.checkpoint(metadata)
            if data < limit:
                context.next_iteration(data + 1)
            return data

    return flow.execute()


def aged(session: str, days: float) -> None:
    """Its checkpoints say that they are so old; sealed, as if that were so."""
    keyring = Keyring.load()
    for path in Path("checkpoints").glob(f"session_{session}_step_*.meta.json"):
        meta = json.loads(path.read_text())
        meta["created_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        path.write_text(
            json.dumps(seal({k: v for k, v in meta.items() if k not in ("seal", "key_id")}, keyring))
        )


# --- after saves -------------------------------------------------------------------------


def test_by_default_a_long_run_leaves_ten(workflow: Make) -> None:
    loop(30, workflow)

    assert len(kept_steps()) == 10
    assert kept_steps()[-1] == 30


def test_a_loop_that_asks_in_every_round_can_be_kept_small(workflow: Make) -> None:
    loop(
        9, checkpoint=None, asks=lambda number: {"loss": abs(number - 4)},
        keep=OfAll(KeepLast(2) | BestOf("loss", 1, "min") | KeepEvery(7)),
    )  # fmt: skip

    assert kept_steps() == [4, 7, 9, 9]


def test_a_run_that_fails_is_looked_after_and_goes_on() -> None:
    broken = [True]
    with pytest.raises(ZeroDivisionError):
        loop(8, fails=lambda: broken[0], keep=KeepLast(2))
    assert len(kept_steps()) == 2

    broken[0] = False
    assert loop(8, fails=lambda: broken[0], keep=KeepLast(2)) == 8
    assert len(kept_steps()) == 2


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_what_ended_well_can_leave_nothing(durability: Any) -> None:
    def big(number: int) -> None:
        return None

    broken = [True]
    keep: Retention = OfAll(KeepLast(3) & DeleteOnSuccess())
    with pytest.raises(ZeroDivisionError):
        loop(5, fails=lambda: broken[0], keep=keep, durability=durability, asks=big)
    assert kept_steps()

    broken[0] = False
    assert loop(5, fails=lambda: broken[0], keep=keep, durability=durability, asks=big) == 5

    assert kept_steps() == []
    assert [raw for _, _, raw in open_store("checkpoints").segments("s") if raw] == []
    assert loop(2, keep=keep, durability=durability) == 2  # it begins anew


# --- the command line --------------------------------------------------------------------


def test_what_was_forked_stays_with_the_fork_and_goes_without_it() -> None:
    run_count("--session", "s", "--every", "1", "--", "4", status=KILLED)
    origin = checkpoints("s")[1]
    graflow("resume", origin, "--fork", "other")
    first = checkpoints("other")[0]
    metas = [json.loads(Path(p.replace(".pkl", ".meta.json")).read_text()) for p in checkpoints("other")]
    source = json.loads(Path(origin.replace(".pkl", ".meta.json")).read_text())
    assert {meta["origin"] for meta in metas} == {source["checkpoint_id"]}
    inside("checkpoints", "delete", first, "--yes")  # the others still know where they come from

    spared = inside("checkpoints", "prune", "--keep", "1", "--yes", "--json").document["spared"]
    assert [(row["path"], row["why"]) for row in spared] == [(origin, "forked")]
    graflow("resume", "s")
    assert origin in checkpoints("s")

    inside("checkpoints", "delete", "other", "--yes")
    inside("prune", "--keep", "1", "--yes")  # the same by its short name
    assert origin not in checkpoints("s")
    assert len(checkpoints("s")) == 1


def test_a_session_goes_on_from_what_pruning_has_left() -> None:
    program("count.py", COUNT)
    graflow(
        "run",
        "count.py",
        "--session",
        "s",
        "--every",
        "1",
        "--durability",
        "journal",
        "--",
        "4",
        status=KILLED,
    )
    newest = checkpoints("s")[-1]

    aged("s", 30)
    text = inside("checkpoints", "prune", "--older-than", "7d", "--yes").err

    assert "1 checkpoint kept: the newest good one of a session" in text
    assert checkpoints("s") == [newest]
    assert "continues from step 4" in graflow("resume", "s").err
