"""Commands of a fleet that cannot do what they are asked: status, message, and never a secret.

In this process, to ask each of them in each situation; what they do is tested in processes of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.fleet.lists import SESSIONS
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.acceptance.command_line import Ended, completed
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


def asked(fleet: Fleet, command: list[str], url: str = "", **environment: str) -> Ended:
    """A command with another address of the fleet, in words and environment."""
    words = [word.format(url=url or fleet.url) for word in command]
    return fleet.here(*words, status=None, GRAFLOW_CKPT_REDIS_URL=url or fleet.url, **environment)


def error_of(fleet: Fleet, command: list[str]) -> dict[str, str]:
    """The document that says what went wrong."""
    done = asked(fleet, [*command, "--json"])
    assert done.status != 0
    found: dict[str, str] = json.loads(done.said.splitlines()[-1])
    return found


@EACH
def test_a_server_that_is_gone_is_named(fleet: Fleet, command: list[str]) -> None:
    done = asked(fleet, command, "redis://:hu%2Fsh%40sh@127.0.0.1:1/0")

    assert done.status == 1
    assert "redis://127.0.0.1:1/0 cannot be reached" in done.said


@EACH
def test_a_wrong_password_is_refused_and_not_shown(fleet: Fleet, command: list[str]) -> None:
    done = asked(fleet, command, fleet.url.replace("hu%2Fsh%40sh", "wr%2Fong"))

    assert done.status == 1
    assert f"{fleet.shown} refuses" in done.said
    assert "wr/ong" not in done.said
    assert "wr%2Fong" not in done.said


@EACH
def test_what_is_no_address_is_status_2(fleet: Fleet, command: list[str]) -> None:
    done = asked(fleet, command, f"redis://:{SECRET}@host:6379")

    assert done.status == 2
    assert "cannot be used: The address that begins with redis:// cannot be read" in done.said


@pytest.mark.parametrize("command", OF_SESSION, ids=" ".join)
def test_a_session_that_is_not_there_is_said_with_what_comes_near(fleet: Fleet, command: list[str]) -> None:
    error = error_of(fleet, [*command, "night-8"])

    assert error["error"] == "NoSession"
    assert error["session"] == "night-8"
    assert error["hint"].startswith("Is night-7 meant?")


@pytest.mark.parametrize("session", ["a b", "a/b", "x" * 65, "ümlaut"])
@pytest.mark.parametrize("command", [*OF_SESSION, ["submit", "etl.py", "--session"]], ids=" ".join)
def test_what_rq_would_refuse_as_an_id_is_status_2(fleet: Fleet, command: list[str], session: str) -> None:
    done = asked(fleet, [*command, session])

    assert done.status == 2
    assert "is not a session id" in done.said


@pytest.mark.parametrize("command", [c for c in ALL if "{url}" not in c], ids=" ".join)
def test_without_a_fleet_that_is_named_the_ways_to_name_one_are_told(
    fleet: Fleet, command: list[str]
) -> None:
    done = asked(fleet, command, " ")

    assert done.status == 2
    for way in ("GRAFLOW_CKPT_REDIS_URL", "graflow-ckpt.toml", "--url"):
        assert way in done.said


@EACH
def test_a_file_with_a_key_that_is_none_is_status_2(fleet: Fleet, command: list[str]) -> None:
    Path("graflow-ckpt.toml").write_text('[fleet]\nqueus = "a"')

    error = error_of(fleet, command)

    assert error["error"] == "BadSetting"
    assert error["names"] == ["queus"]
    assert error["where"] == str(Path("graflow-ckpt.toml").absolute())


@pytest.mark.parametrize(
    "command",
    ["status night-7", "wait --timeout 0 night-7", "sessions", "top --once", "failed list --session night-7",
     "pause night-7", "resume night-7"],
)  # fmt: skip
def test_looking_on_and_steering_need_no_key(fleet: Fleet, command: str) -> None:
    assert asked(fleet, command.split(), GRAFLOW_CKPT_KEY="").status in (0, 124)


def test_a_key_that_is_none_is_refused_and_not_shown(fleet: Fleet) -> None:
    done = asked(fleet, ["status", "night-7"], GRAFLOW_CKPT_KEY="id:geheim")

    assert done.status == 2
    assert "GRAFLOW_CKPT_KEY cannot be used" in done.said
    assert "geheim" not in done.said


def test_an_address_without_a_password_has_that_of_the_environment(fleet: Fleet) -> None:
    fleet("status", "night-7", "--url", fleet.shown)


@pytest.mark.parametrize(
    "command",
    [["sessions"], ["checkpoints", "list"], ["resume", "x"], ["resume"], ["plan", "x"], ["doctor"],
     ["checkpoints", "verify", "--all"]],
    ids=" ".join,
)  # fmt: skip
def test_the_address_of_a_store_is_shown_without_its_password(fleet: Fleet, command: list[str]) -> None:
    done = asked(fleet, [*command, "--store", "{url}"])  # which looks for the password

    assert fleet.shown in done.said
    assert SECRET not in asked(fleet, [*command, "--store", f"redis://:{SECRET}@host"]).said


def test_what_a_run_tells_to_type_has_no_password_in_it(fleet: Fleet) -> None:
    told = fleet("run", "etl.py", "--session", "s", "--store", fleet.url).err

    assert fleet.shown in told


def test_something_else_under_our_names_is_named(fleet: Fleet) -> None:
    fleet.server.ask("SET", "graflow:{taken}:c", "mine")

    error = error_of(fleet, ["status", "taken"])

    assert error["error"] == "KeyTaken"
    assert "graflow:{taken}:c is a string" in error["message"]


def test_a_replica_takes_no_orders(fleet: Fleet, own_redis: Callable[..., Server]) -> None:
    replica = own_redis({"requirepass": SECRET}, replica_of=fleet.server)

    assert asked(fleet, ["status", "night-7"], replica.url).status == 0
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
def test_a_list_with_bad_members_shows_the_good_ones(poisoned: Fleet, command: list[str]) -> None:
    done = poisoned.here(*command, status=None if command == ["doctor"] else 0)

    assert "Traceback" not in done.said
    assert "\x1b[31m" not in done.said
    assert "night-7" in done.out or command == ["doctor"]


def test_a_session_whose_tables_are_nonsense_is_a_row_with_the_reason(poisoned: Fleet) -> None:
    rows = {row["session"]: row for row in poisoned.here("sessions", "--json").document}

    assert rows["odd-1"]["status"] == "unknown"
    assert "cannot be read" in rows["odd-1"]["reason"]


@pytest.mark.parametrize("session", ODD)
@pytest.mark.parametrize("command", OF_ODD, ids=" ".join)
def test_of_one_session_nonsense_is_one_error(poisoned: Fleet, command: list[str], session: str) -> None:
    done = poisoned.here(*command, session, status=None)

    assert "Traceback" not in done.said
    assert done.status != 0
    assert session in done.err


def test_a_list_that_is_something_else_is_named() -> None:
    with started() as other:
        wrong_types(other.server.client())
        other.server.client().set(SESSIONS, "junk")

        said = other("sessions", status=None).err

        assert f"{SESSIONS} is a string, not a zset" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("session", ODD)
def test_a_session_that_cannot_be_read_is_deleted_as_its_error_says(poisoned: Fleet, session: str) -> None:
    poisoned.here("sessions", "purge", session, "--yes")

    assert "There is no session" in poisoned.here("status", session, status=1).err
