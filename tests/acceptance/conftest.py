"""Sessions of these tests leave their checkpoints in a folder of their own; some run in Redis as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from graflow_ckpt import EveryN
from graflow_ckpt import workflow as in_memory
from graflow_ckpt.stores.around.keys import new_key
from tests.acceptance import fleet_line, fleets
from tests.acceptance.command_line import COUNT, KILLED, checkpoints, program, run_count
from tests.acceptance.places import LOG, WORLD, Make, in_redis
from tests.loops import chain
from tests.servers import Server


@pytest.fixture(autouse=True)
def own_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    if request.path.name.startswith(("test_cli_", "test_retention")):
        Path("checkpoints").mkdir(0o700)  # where there is one, the command line takes it
    if request.path.name.startswith("test_cli_fleet_"):
        for name, text in {"etl.py": fleet_line.ETL, "slow.py": fleet_line.SLOW, "count.py": COUNT}.items():
            program(name, text)
    return tmp_path


@pytest.fixture(scope="session")
def one_redis() -> Iterator[Server]:
    """One server, of whichever kind, for all tests of this process that have a choice of places."""
    with Server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def workflow(request: pytest.FixtureRequest) -> Make:
    """`workflow(...)`, for tests that hold wherever a session lives."""
    if request.param == "memory":
        return in_memory
    server: Server = request.getfixturevalue("one_redis")
    server.ask("FLUSHALL")
    request.getfixturevalue("key")
    return in_redis(server.client())


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """One for stores that several machines share; it is in the environment."""
    made = new_key()
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", made)
    return made


@pytest.fixture
def client(redis_url: str, redis_server: Server, key: str) -> redis.Redis:
    """Of an empty server."""
    return redis_server.client()


@pytest.fixture
def world() -> None:
    """The state machine of places.py has not run, and what it calls is not down."""
    LOG.clear()
    WORLD["down"] = False


@pytest.fixture
def killed() -> list[str]:
    """The two checkpoints of session `s` of COUNT, which was killed in its fifth step."""
    run_count("--session", "s", "--every", "2", "--", "4", status=KILLED)
    return checkpoints("s")


@pytest.fixture
def counted() -> list[str]:
    """Those of one that has counted to its end, without a program that could continue it."""

    def count(context: Any, data: int = 0) -> int:
        if data < 5:
            context.next_iteration(data + 1)
        return data

    chain(count, workflow="count", session_id="s", checkpoint=EveryN(2)).execute()
    return checkpoints("s")


@pytest.fixture
def checkpoints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session has is in its checkpoints: no journal, and none that nobody asked for."""
    monkeypatch.setenv("GRAFLOW_CKPT_DURABILITY", "checkpoint")


# --- fleets ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[fleet_line.Fleet]:
    """A fleet for commands, on which nobody works, for all tests of a file."""
    with fleet_line.started() as fleet:
        yield fleet


@pytest.fixture
def fleet(server: fleet_line.Fleet) -> fleet_line.Fleet:
    """The same, empty."""
    server.server.ask("FLUSHALL")
    return server


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fleet_line.Fleet]:
    """One with a worker, for all tests of a file."""
    with fleet_line.started() as fleet, fleet.pool(folder=tmp_path_factory.mktemp("pool")):
        yield fleet


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[fleets.Fleet]:
    """A fleet of one test's own, whose pools are yet to be started."""
    with fleets.fleet(tmp_path, appendonly="no") as made:
        yield made
