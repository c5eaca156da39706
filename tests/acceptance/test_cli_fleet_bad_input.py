"""Commands of a fleet that cannot do what they are asked: status, message, and never a secret.

In this process, to ask each of them in each situation; what they do is tested in processes of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.cli import main
from graflow_ckpt.fleet.lists import SESSIONS
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.acceptance.command_line import completed
from tests.acceptance.fleet_line import SECRET, Fleet, started
from tests.crash.poisons import junk, wrong_types
from tests.servers import Server

OF_SESSION = [
    ["status"], ["wait"], ["pause"], ["cancel"], ["failed", "requeue"], ["sessions", "purge"],
    ["failed", "list", "--session"],
]  # fmt: skip
OF_FLEET = [["sessions", "--url", "{url}"], ["failed", "list"], ["top", "--once"], ["submit", "etl.py"]]
ALL = [*([*command, "s"] for command in OF_SESSION), ["resume", "s", "--url", "{url}"], *OF_FLEET]
EACH = pytest.mark.parametrize("command", ALL, ids=" ".join)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with started() as fleet:
        fleet.put("night-7")
        yield fleet


@pytest.fixture(autouse=True)
def surroundings(request: pytest.FixtureRequest, own_folder: Path) -> Iterator[None]:
    fleet: Fleet = request.getfixturevalue("poisoned" if "poisoned" in request.fixturenames else "fleet")
    with fleet.surrounding():
        yield


Asked = Callable[..., tuple[int, str]]


@pytest.fixture
def asked(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> Asked:
    """The status of a command and all that it says, which has no secret in it."""

    def ask(command: list[str], url: str = "", **environment: str) -> tuple[int, str]:
        os.environ.update({"GRAFLOW_CKPT_REDIS_URL": url or fleet.url, **environment})
        status = main([word.format(url=url or fleet.url) for word in command])
        told = capsys.readouterr()
        fleet.check(told.out + told.err)
        return status, told.out + told.err

    return ask


def error_of(asked: Asked, command: list[str], url: str = "", **environment: str) -> dict[str, str]:
    """The document that says what went wrong."""
    status, told = asked([*command, "--json"], url, **environment)
    assert status != 0
    found: dict[str, str] = json.loads(told.splitlines()[-1])
    return found


@EACH
def test_a_server_that_is_gone_is_named(asked: Asked, command: list[str]) -> None:
    status, told = asked(command, f"redis://:{'hu%2Fsh%40sh'}@127.0.0.1:1/0")

    assert status == 1
    assert "redis://127.0.0.1:1/0 cannot be reached" in told


@EACH
def test_a_wrong_password_is_refused_and_not_shown(asked: Asked, fleet: Fleet, command: list[str]) -> None:
    status, told = asked(command, fleet.url.replace("hu%2Fsh%40sh", "wr%2Fong"))

    assert status == 1
    assert f"{fleet.shown} refuses" in told
    assert "wr/ong" not in told
    assert "wr%2Fong" not in told


@EACH
def test_what_is_no_address_is_status_2(asked: Asked, command: list[str]) -> None:
    status, told = asked(command, f"redis://:{SECRET}@host:6379")

    assert status == 2
    assert "cannot be used: The address that begins with redis:// cannot be read" in told


@pytest.mark.parametrize("command", OF_SESSION, ids=" ".join)
def test_a_session_that_is_not_there_is_said_with_what_comes_near(asked: Asked, command: list[str]) -> None:
    error = error_of(asked, [*command, "night-8"])

    assert error["error"] == "NoSession"
    assert error["session"] == "night-8"
    assert error["hint"].startswith("Is night-7 meant?")


@pytest.mark.parametrize("session", ["a b", "a/b", "x" * 65, "ümlaut"])
@pytest.mark.parametrize("command", [*OF_SESSION, ["submit", "etl.py", "--session"]], ids=" ".join)
def test_what_rq_would_refuse_as_an_id_is_status_2(asked: Asked, command: list[str], session: str) -> None:
    status, told = asked([*command, session])

    assert status == 2
    assert "is not a session id" in told


@pytest.mark.parametrize("command", [c for c in ALL if "{url}" not in c], ids=" ".join)
def test_without_a_fleet_that_is_named_the_ways_to_name_one_are_told(
    asked: Asked, command: list[str]
) -> None:
    status, told = asked(command, " ")

    assert status == 2
    for way in ("GRAFLOW_CKPT_REDIS_URL", "graflow-ckpt.toml", "--url"):
        assert way in told


@EACH
def test_a_file_with_a_key_that_is_none_is_status_2(asked: Asked, command: list[str]) -> None:
    Path("graflow-ckpt.toml").write_text('[fleet]\nqueus = "a"')

    error = error_of(asked, command)

    assert error["error"] == "BadSetting"
    assert error["names"] == ["queus"]
    assert error["where"] == str(Path("graflow-ckpt.toml").absolute())


def test_looking_on_and_steering_need_no_key(asked: Asked) -> None:
    for command in (
        ["status"],
        ["pause"],
        ["resume"],
        ["wait", "--timeout", "0"],
        ["failed", "list", "--session"],
    ):
        assert asked([*command, "night-7"], GRAFLOW_CKPT_KEY="")[0] in (0, 124)
    assert asked(["sessions"], GRAFLOW_CKPT_KEY="")[0] == 0
    assert asked(["top", "--once"], GRAFLOW_CKPT_KEY="")[0] == 0


def test_a_key_that_is_none_is_refused_and_not_shown(asked: Asked) -> None:
    status, told = asked(["status", "night-7"], GRAFLOW_CKPT_KEY="id:geheim")

    assert status == 2
    assert "GRAFLOW_CKPT_KEY cannot be used" in told
    assert "geheim" not in told


def test_an_address_without_a_password_has_that_of_the_environment(fleet: Fleet) -> None:
    fleet("status", "night-7", "--url", fleet.shown)


@pytest.mark.parametrize(
    "command",
    [["sessions"], ["checkpoints", "list"], ["resume", "x"], ["resume"], ["plan", "x"], ["doctor"],
     ["checkpoints", "verify", "--all"]],
    ids=" ".join,
)  # fmt: skip
def test_the_address_of_a_store_is_shown_without_its_password(
    asked: Asked, fleet: Fleet, command: list[str]
) -> None:
    _, told = asked([*command, "--store", "{url}"])  # which looks for the password

    assert fleet.shown in told
    assert SECRET not in asked([*command, "--store", f"redis://:{SECRET}@host"])[1]


def test_what_a_run_tells_to_type_has_no_password_in_it(fleet: Fleet) -> None:
    told = fleet("run", "etl.py", "--session", "s", "--store", fleet.url).err

    assert fleet.shown in told


def test_something_else_under_our_names_is_named(asked: Asked, fleet: Fleet) -> None:
    fleet.server.ask("SET", "graflow:{taken}:c", "mine")

    error = error_of(asked, ["status", "taken"])

    assert error["error"] == "KeyTaken"
    assert "graflow:{taken}:c is a string" in error["message"]


def test_a_replica_takes_no_orders(asked: Asked, fleet: Fleet, own_redis: Callable[..., Server]) -> None:
    replica = own_redis({"requirepass": SECRET}, replica_of=fleet.server)

    assert asked(["status", "night-7"], replica.url)[0] == 0
    done = fleet("submit", "etl.py", "--json", status=1, GRAFLOW_CKPT_REDIS_URL=replica.url)
    assert done.document["error"] == "ServerReadOnly"


def test_ids_are_completed_and_a_server_that_is_gone_is_no_error(fleet: Fleet) -> None:
    for line in ("graflow-ckpt wait ni", "graflow-ckpt resume ni", "graflow-ckpt failed list --session "):
        assert completed(line, fleet) == ["night-7"]
    for url in ("redis://127.0.0.1:1/0", ""):
        assert completed("graflow-ckpt wait ni", fleet, GRAFLOW_CKPT_REDIS_URL=url) == []


# --- lists that hold junk: the good rows, one line for each bad one ---------------------


SHOWN = [["sessions"], ["top", "--once"], ["failed", "list"], ["doctor"]]
ODD = [f"odd-{n}" for n in range(5)]
OF_ODD = [["status"], ["pause"], ["cancel"], ["failed", "requeue"], ["failed", "list", "--session"]]


@pytest.fixture(scope="module")
def poisoned() -> Iterator[Fleet]:
    """Its lists hold junk."""
    with started() as fleet:
        fleet.put("night-7")
        junk(fleet.server.client())
        redis: Any = fleet.server.client()
        for table in ("er", "dead"):
            redis.hset(f"{keys_of('night-7')}{table}", b"\xff", b"fjunk")
        yield fleet


@pytest.mark.parametrize("command", SHOWN, ids=" ".join)
def test_a_list_with_bad_members_shows_the_good_ones(
    poisoned: Fleet, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(command)

    told = capsys.readouterr()
    assert status == 0 or command == ["doctor"], told.err
    assert "Traceback" not in told.out + told.err
    assert "\x1b[31m" not in told.out + told.err
    if command in (["sessions"], ["top", "--once"], ["failed", "list"]):
        assert "night-7" in told.out


def test_a_session_whose_tables_are_nonsense_is_a_row_with_the_reason(
    poisoned: Fleet,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sessions", "--json"]) == 0

    rows = {row["session"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["odd-1"]["status"] == "unknown"
    assert "cannot be read" in rows["odd-1"]["reason"]


@pytest.mark.parametrize("session", ODD)
@pytest.mark.parametrize("command", OF_ODD, ids=" ".join)
def test_of_one_session_nonsense_is_one_error(
    poisoned: Fleet, command: list[str], session: str, capsys: pytest.CaptureFixture[str]
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
    poisoned: Fleet, session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["sessions", "purge", session, "--yes"])

    assert status == 0, capsys.readouterr().err
    assert main(["status", session]) != 0
    assert "There is no session" in capsys.readouterr().err
