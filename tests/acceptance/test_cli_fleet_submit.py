"""graflow-ckpt submit, wait, status, top and doctor: a program becomes a session, and is followed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import ETL, Fleet, started
from tests.servers import Server
from tests.stretch import until

COUNT = """
from graflow_ckpt import task, workflow

with workflow("count", session_id="{session}") as ctx:

    @task(inject_context=True)
    def count(context, limit=3, data=0):
        if data + 1 < limit:
            context.next_iteration(data + 1)
        return data + 1

    ctx.get_channel().set("limit", 5)
    ctx.execute(max_steps=4)
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with two workers, for all tests of this file."""
    with started() as fleet, fleet.pool(workers=2, folder=tmp_path_factory.mktemp("pool")):
        yield fleet


# --- submit ------------------------------------------------------------------------------


def test_a_submitted_program_runs_elsewhere_and_its_session_is_printed(fleet: Fleet) -> None:
    program("etl.py", f"print('written down')\n{ETL}")

    done = fleet("submit", "etl.py", "--input", "rows=5")

    session = done.out.strip()
    assert done.out == f"{session}\n"  # what the program prints is beside it
    assert "written down" in done.err
    assert "extract runs" not in done.err  # it was planned here, and no more
    assert f"graflow-ckpt wait {session}" in done.err
    assert "completed after 4 steps" in fleet("wait", session).err
    found = fleet.status(session)
    assert (found.status, found.workflow, found.completed) == ("completed", "etl", 4)


def test_submit_and_wait_are_one_command_and_one_document(fleet: Fleet) -> None:
    found = fleet("submit", "etl.py", "--session", "both", "--wait", "--json").document

    assert (found["session"], found["status"], found["code"]) == ("both", "completed", 0)


def test_a_session_that_fails_is_status_1_and_says_what_to_look_at(fleet: Fleet) -> None:
    done = fleet("submit", "etl.py", "--session", "fails", "--input", "mended=nothing", "--wait", status=1)

    assert "failed after" in done.err
    assert "ValueError: no file nothing" in done.err
    assert "graflow-ckpt failed list --session fails --traceback" in done.err


def test_of_a_module_the_workflow_is_submitted_that_is_named(server: Fleet) -> None:
    program("flows.py", ETL.replace('print("result", ctx.execute())', "pass"))

    assert fleet_document(server, "flows:etl")["workflow"] == "etl"
    assert fleet_document(server, "flows:ctx")["workflow"] == "etl"
    assert fleet_document(server, "flows.py")["workflow"] == "etl"  # it executes none, and has one


def fleet_document(fleet: Fleet, target: str) -> dict[str, object]:
    found: dict[str, object] = fleet("submit", target, "--json").document
    return found


def test_what_the_program_says_counts_unless_the_command_line_says_otherwise(server: Fleet) -> None:
    program("count.py", COUNT.format(session="mine"))

    server("submit", "count.py")
    server("submit", "count.py", "--session", "other", "--max-steps", "2")

    assert server.status("mine").max_steps == 4
    assert server.status("other").max_steps == 2


def test_inputs_of_the_program_reach_the_session(fleet: Fleet) -> None:
    program("count.py", COUNT.format(session="five"))

    done = fleet("submit", "count.py", "--wait")

    assert "max_steps=4 reached after 4 steps" in done.err
    assert "resume five --max-steps 8" in done.err


def test_the_same_id_again_is_refused_or_given_back(server: Fleet) -> None:
    server.put("twice")

    refused = server("submit", "etl.py", "--session", "twice", status=1)
    assert "There is a session twice already" in refused.err
    assert "--existing return" in refused.err

    assert server.submit("etl.py", "twice", "--existing", "return") == "twice"


def test_a_program_that_submits_itself_makes_one_session(server: Fleet) -> None:
    program("self.py", ETL.replace('print("result", ctx.execute())', f"ctx.submit({server.url!r})"))
    before = len(server.client.sessions())

    server("submit", "self.py")

    assert len(server.client.sessions()) == before + 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("", "executes no workflow, and has none"),
        ("import graflow_ckpt as g; g.workflow('a'); g.workflow('b')", "has several (it has: a, b)"),
        ("import sys; sys.exit('not today')", "not today"),
    ],
    ids=["raises", "empty", "several", "exits"],
)
def test_a_program_without_a_workflow_to_submit_says_why(server: Fleet, text: str, told: str) -> None:
    program("bad.py", text)

    assert told in server("submit", "bad.py", status=1).err


def test_without_a_key_nothing_is_submitted(server: Fleet) -> None:
    told = server("submit", "etl.py", status=2, GRAFLOW_CKPT_KEY="").err

    assert "GRAFLOW_CKPT_KEY" in told


def test_a_timeout_without_wait_is_a_mistake(server: Fleet) -> None:
    assert "--timeout is for --wait" in server("submit", "etl.py", "--timeout", "5", status=2).err


# --- wait --------------------------------------------------------------------------------


def test_who_waits_no_longer_gets_status_124(server: Fleet) -> None:
    server.put("patient")

    done = server("wait", "patient", "--timeout", "100ms", status=124)
    assert "has not ended after 0.1 s (0 done, 0 running, 1 waiting)" in done.err

    found = server("wait", "patient", "--timeout", "0", "--json", status=124).document
    assert (found["code"], found["status"], found["ready"]) == (124, "running", 1)


def test_a_paused_session_is_status_3_and_a_cancelled_one_1(server: Fleet) -> None:
    server.put("stops")
    server("pause", "stops", "--reason", "the disk is full")

    done = server("wait", "stops", status=3)
    assert "paused after 0 steps: the disk is full; go on: graflow-ckpt resume stops" in done.err

    server("cancel", "stops")
    assert "cancelled after 0 steps" in server("wait", "stops", status=1).err


def test_a_time_that_is_none_is_a_mistake(server: Fleet) -> None:
    assert "'soon' is no time" in server("wait", "s", "--timeout", "soon", status=2).err


def test_on_a_terminal_there_is_a_bar_while_it_runs(fleet: Fleet, tmp_path: Path) -> None:
    fleet.submit("slow.py", "watched", "--input", f"until={tmp_path}/go")

    terminal = fleet.terminal("wait", "watched")
    terminal.read_until(r"slow watched running\s+.*0/1 done, 1 running")
    (tmp_path / "go").touch()

    assert terminal.end() == 0
    assert "session watched: completed after 1 step" in terminal.text


def test_ctrl_c_ends_the_wait_and_not_the_session(server: Fleet) -> None:
    server.put("goes-on")

    terminal = server.terminal("wait", "goes-on")
    terminal.read_until("0/1 done")
    terminal.type("\x03")

    assert terminal.end() == 130
    assert "session goes-on goes on by itself; wait again: graflow-ckpt wait goes-on" in terminal.text
    assert server.status("goes-on").status == "running"


def test_a_server_that_comes_back_is_waited_for(own_folder: Path) -> None:
    with started() as fleet:
        fleet.server.config["appendonly"] = "yes"
        fleet.server.restart()
        fleet.submit("etl.py", "stays")
        fleet.server.kill()
        gone = fleet("wait", "stays", status=1).err
        assert "cannot be reached" in gone

        fleet.server.start()
        assert fleet.status("stays").status == "running"


# --- status ------------------------------------------------------------------------------


def test_status_says_how_far_it_is_and_where(server: Fleet) -> None:
    server.put("looked-at")

    lines = server("status", "looked-at").out.splitlines()

    assert lines[0] == f"session looked-at of workflow etl at {server.shown}"
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
    assert told["status"] == "running"
    assert told["tasks"] == "0 of 1 done, 0 failed"
    assert told["pending"] == "1 ready, 0 running, 0 delayed"
    assert told["queues"] == "default 1 (no worker serves default)"


def test_status_as_json_is_one_document(server: Fleet) -> None:
    server.put("as-json")

    found = json.loads(server("status", "as-json", "--json").out)

    assert found["at"] == server.shown
    assert (found["queues"], found["starts"], found["declined"]) == ({"default": 1}, ["never"], {})


def test_also_what_is_found_after_the_program_has_begun_is_json(server: Fleet) -> None:
    program("flows.py", ETL)

    assert server("submit", "flows:nope", "--json", status=2).document["error"] == "Usage"


# --- graflow-ckpt top and doctor --------------------------------------------------------


@pytest.fixture
def slow(fleet: Fleet, own_folder: Path) -> Iterator[str]:
    """A session of which one task runs for as long as the test does."""
    session = fleet.submit(
        "slow.py", own_folder.name[-40:].replace(".", "-"), "--input", f"until={own_folder}/go"
    )
    until(lambda: fleet.status(session).running == 1)
    until(lambda: any(worker.session == session for worker in fleet.workers()))
    yield session
    (own_folder / "go").touch()


def test_one_picture_has_the_sessions_the_queues_and_the_workers(fleet: Fleet, slow: str) -> None:
    lines = fleet("top", "--once").out.splitlines()

    assert lines[0].startswith(f"{fleet.shown}  1 session running, 2 workers, 1 busy, ")
    assert find(lines, slow, "slow", "running", "0/1", "0", "1")
    assert find(lines, "default", "0", "1", "0", "2")
    (busy,) = [line for line in lines if "/worker-" in line and slow in line]
    assert busy.split()[3] == "busy"
    assert busy.split()[-1] == "s"  # when it was seen


def find(lines: list[str], *words: str) -> bool:
    return any(line.split()[: len(words)] == list(words) for line in lines)


def test_one_picture_as_json_is_one_document(fleet: Fleet, slow: str) -> None:
    found = fleet("top", "--once", "--json").document

    (session,) = [row for row in found["sessions"] if row["session"] == slow]
    assert (session["running"], session["slices"], session["rate"]) == (1, {"default": 1}, 0.0)
    assert (found["workers"], found["busy"]) == (2, 1)
    assert [queue["name"] for queue in found["queues"]] == ["default"]
    (pool,) = found["pools"]
    assert {worker["session"] for worker in pool["workers"]} == {slow, ""}
    assert pool["age"] < 10


def test_on_a_terminal_it_is_drawn_again_until_ctrl_c(fleet: Fleet) -> None:
    terminal = fleet.terminal("top", "--every", "100ms")
    terminal.read_until(r"2 workers, 0 busy")

    fleet.submit("etl.py", "drawn")
    terminal.read_until(r"drawn\s+etl\s+completed\s+4/4")
    terminal.type("\x03")

    assert terminal.end() == 0


def test_without_a_terminal_there_is_one_picture(fleet: Fleet) -> None:
    assert "2 workers" in fleet("top").out


# --- doctor ------------------------------------------------------------------------------


def findings(fleet: Fleet, *arguments: str, status: int = 0, **environment: str) -> dict[str, list[str]]:
    """What is not ok, by what it is about."""
    told = json.loads(fleet("doctor", *arguments, "--json", status=status, **environment).out)
    found: dict[str, list[str]] = {}
    for finding in told:
        if finding["verdict"] != "ok":
            found.setdefault(finding["what"], []).append(f"{finding['verdict']}: {finding['found']}")
    return found


def test_a_healthy_fleet_has_a_server_a_key_and_workers(fleet: Fleet) -> None:
    told = fleet("doctor", "--url", fleet.url).out

    for what in ("settings", "fleet key", "server", "rq", "workers"):
        assert f"\n{what} " in told
    assert "2 workers on default" in told
    found = findings(fleet, "--url", fleet.url)
    assert list(found) == ["server"], found
    assert "appendonly no" in found["server"][0]


def test_without_url_the_fleet_comes_after_this_machine(fleet: Fleet) -> None:
    lines = fleet("doctor").out.splitlines()

    names = [line.split("  ")[0] for line in lines]
    assert names.index("python") < names.index("key") < names.index("server")


def test_work_that_nobody_serves_is_bad(fleet: Fleet) -> None:
    program("gpu.py", ETL.replace("    @task\n", '    @task(queue="gpu")\n', 1))
    fleet.submit("gpu.py", "waits")

    found = findings(fleet, "--url", fleet.url, status=1)

    assert found["queues"] == ["bad: 1 task in queue gpu, which no worker serves"]
    fleet("cancel", "waits")


def test_no_key_a_strange_variable_and_a_wrong_setting_are_told(fleet: Fleet) -> None:
    found = findings(fleet, "--url", fleet.url, status=1, GRAFLOW_CKPT_KEY="", GRAFLOW_CKPT_QUEUE="a")
    assert found["fleet key"][0].startswith("bad: none is set")
    assert found["settings"] == ["warning: GRAFLOW_CKPT_QUEUE is set, and nothing reads it"]

    found = findings(fleet, "--url", fleet.url, status=1, GRAFLOW_CKPT_WORKERS="many")
    assert "GRAFLOW_CKPT_WORKERS is 'many'" in found["settings"][0]


def test_a_server_that_drops_keys_and_one_that_is_gone_are_bad(
    fleet: Fleet, own_redis: Callable[..., Server]
) -> None:
    server = own_redis({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    found = findings(fleet, "--url", server.url, status=1)
    assert any("drops keys" in one for one in found["server"])
    assert found["workers"] == ["warning: no worker gives a sign of life: graflow-ckpt worker"]

    server.kill()
    assert "cannot be reached" in findings(fleet, "--url", server.url, status=1)["server"][0]
