"""graflow-ckpt top and doctor: what goes on in a fleet, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.command_line import program
from tests.acceptance.fleet_line import ETL, Fleet, started
from tests.servers import Server
from tests.stretch import until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with started() as fleet, fleet.pool(workers=2, folder=tmp_path_factory.mktemp("pool")):
        yield fleet


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


def test_on_a_terminal_it_is_drawn_again_until_ctrl_c(
    fleet: Fleet, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", "")  # put back when the terminal has changed it
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", "")
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
