"""Commands of a fleet whose lists hold junk: the good rows, one line for each bad one, and no traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.fleet.lists import SESSIONS
from graflow_ckpt.interfaces.cli import main
from graflow_ckpt.sessions.layout import keys_of
from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import ETL, Fleet, started
from tests.crash.poisons import junk, wrong_types

SHOWN = [["sessions"], ["top", "--once"], ["failed", "list"], ["doctor"]]
ODD = [f"odd-{n}" for n in range(5)]
OF_SESSION = [["status"], ["pause"], ["cancel"], ["failed", "requeue"], ["failed", "list", "--session"]]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with started() as fleet:
        fleet.put("night-7")
        junk(fleet.server.client())
        redis: Any = fleet.server.client()
        for table in ("er", "dead"):
            redis.hset(f"{keys_of('night-7')}{table}", b"\xff", b"fjunk")
        yield fleet


@pytest.fixture(autouse=True)
def surroundings(fleet: Fleet, own_folder: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(fleet.environment)
    program("etl.py", ETL)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_a_list_with_bad_members_shows_the_good_ones(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(command)

    told = capsys.readouterr()
    assert status == 0 or command == ["doctor"], told.err
    assert "Traceback" not in told.out + told.err
    assert "\x1b[31m" not in told.out + told.err
    if command in (["sessions"], ["top", "--once"], ["failed", "list"]):
        assert "night-7" in told.out


def test_a_session_whose_tables_are_nonsense_is_a_row_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sessions", "--json"]) == 0

    rows = {row["session"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["odd-1"]["status"] == "unknown"
    assert "cannot be read" in rows["odd-1"]["reason"]


@pytest.mark.parametrize("session", ODD)
@pytest.mark.parametrize("command", OF_SESSION, ids=" ".join)
def test_of_one_session_nonsense_is_one_error(
    command: list[str], session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([*command, session])

    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    assert status != 0
    assert session in told.err


def test_a_list_that_is_something_else_is_named() -> None:
    with started() as other:
        wrong_types(other.server.client())
        other.server.client().set(SESSIONS, "junk")

        said = other("sessions", status=None).err

        assert f"{SESSIONS} is a string, not a zset" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("session", ODD)
def test_a_session_that_cannot_be_read_is_deleted_as_its_error_says(
    session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["sessions", "purge", session, "--yes"])

    assert status == 0, capsys.readouterr().err
    assert main(["status", session]) != 0
    assert "There is no session" in capsys.readouterr().err
