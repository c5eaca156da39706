"""The server of docker-compose.yml keeps what it was told, and asks who is there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_compose import GIVEN, Composed, document
from tests.servers import ReplyError, Server

# For valkey-cli, which no package brings: one command, the password from the environment, always status 0.
CLIENT = """
import os, socket, sys

with socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))) as server:
    words = f"AUTH {os.environ['REDISCLI_AUTH']}\\r\\n{sys.argv[1]}\\r\\nQUIT\\r\\n"
    server.sendall(words.encode())
    print(server.makefile().read())
"""


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


def test_its_probe_fails_with_another_password_and_without_a_server(server: Composed, tmp_path: Path) -> None:
    redis = document(GIVEN)["services"]["redis"]
    kind, line = redis["healthcheck"]["test"]
    client = tmp_path / "valkey-cli"
    client.write_text(f"#!{sys.executable}\n{CLIENT}", encoding="utf-8")
    client.chmod(stat.S_IRWXU)
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PORT": str(server.port)}

    def status(**more: str) -> int:
        argv = ["/bin/sh", "-c", line]
        env = own | redis["environment"] | more
        return subprocess.run(argv, env=env, stderr=subprocess.DEVNULL, check=False).returncode

    assert kind == "CMD-SHELL"
    assert status() == 0
    assert status(REDISCLI_AUTH="wrong") != 0
    server.kill()
    assert status() != 0
