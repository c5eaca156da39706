"""The server of docker-compose.yml, started with the flags and the file that stand there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.deploy.composed import GIVEN, document
from tests.servers import ReplyError, Server


class Composed(Server):
    """A server whose command line is that of the compose file; the port and folder are the tests'."""

    def __init__(self, env: Mapping[str, str]) -> None:
        filled = document(env)
        lines = filled["configs"]["redis"]["content"].splitlines()
        super().__init__(dict(line.split(" ", 1) for line in lines))
        self.flags: list[str] = filled["services"]["redis"]["command"][2:]
        for name in ("save", "appendonly"):  # what tests turn off by default
            del self.config[name]

    def _command(self) -> list[str]:
        return [*super()._command(), *self.flags]

    def setting(self, name: str) -> str:
        return str(self.ask("CONFIG", "GET", name)[1], "utf-8")


def fill(server: Server, megabytes: int) -> None:
    for number in range(megabytes):
        server.ask("SET", f"value {number}", bytes(1 << 20))


@pytest.fixture
def server() -> Iterator[Composed]:
    server = Composed(GIVEN | {"GRAFLOW_CKPT_REDIS_MEMORY": "20mb"})
    with server:
        yield server


def test_it_runs_with_what_its_command_line_says(server: Composed) -> None:
    told = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": str(20 << 20),
        "maxmemory-policy": "noeviction",
    }

    assert {name: server.setting(name) for name in told} == told


def test_it_asks_for_the_password(server: Composed) -> None:
    assert server.password == GIVEN["GRAFLOW_CKPT_REDIS_PASSWORD"]
    server.config["requirepass"] = ""

    with pytest.raises(ReplyError, match="NOAUTH"):
        server.ask("PING")


def test_what_it_was_told_outlives_a_kill(server: Composed) -> None:
    server.ask("SET", "session", "state")

    server.restart()

    assert server.ask("GET", "session") == b"state"


def test_full_it_refuses_and_throws_nothing_away(server: Composed) -> None:
    server.ask("SET", "session", "state")

    with pytest.raises(ReplyError, match="OOM"):
        fill(server, 30)

    assert server.ask("GET", "session") == b"state"
    assert int(server.info()["evicted_keys"]) == 0
