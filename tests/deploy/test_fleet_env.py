"""`make fleet-env`: a key and a password of one's own, once, for nobody else to read."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.stores.around.keys import Keyring
from tests.deploy.files import environment
from tests.deploy.test_compose import GIVEN, ROOT, Composed, document, refusal
from tests.servers import ReplyError, Server


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile, and its environment made of the one that the tests run in."""
    folder = tmp_path / "clone"
    (folder / ".venv-demo").mkdir(parents=True)
    (folder / ".venv-demo" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "pyproject.toml").touch()
    (folder / ".venv-demo" / ".stamp").touch()
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def fleet_env(clone: Path, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    # a make that runs these tests must not pass its own flags on
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-s", "fleet-env"], cwd=clone, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def made_by(clone: Path) -> dict[str, str]:
    fleet_env(clone)
    return environment((clone / ".env").read_text(encoding="utf-8"))


def test_it_writes_what_compose_asks_for(clone: Path, tmp_path: Path) -> None:
    made = made_by(clone)

    assert refusal((ROOT / "docker-compose.yml").read_text(encoding="utf-8"), made, tmp_path) == ""
    assert Keyring.load(made, local=False).ids == (made["GRAFLOW_CKPT_KEY"].partition(":")[0],)


def test_the_password_is_no_word_and_needs_no_escape(clone: Path) -> None:
    made = made_by(clone)

    assert re.fullmatch(r"[0-9a-f]{64}", made["GRAFLOW_CKPT_REDIS_PASSWORD"])
    assert made["GRAFLOW_CKPT_REDIS_PASSWORD"] not in made["GRAFLOW_CKPT_KEY"]


def test_programs_of_this_machine_find_the_server_of_compose(clone: Path) -> None:
    made = made_by(clone)

    (port,) = document(made)["services"]["redis"]["ports"]
    where = port.rpartition(":")[0]
    assert made["GRAFLOW_CKPT_REDIS_URL"] == f"redis://:{made['GRAFLOW_CKPT_REDIS_PASSWORD']}@{where}/0"
    command = "set -a; . ./.env; set +a; env"
    done = subprocess.run(["sh", "-c", command], cwd=clone, capture_output=True, text=True, check=True)
    assert set(made.items()) <= set(environment(done.stdout).items())


def test_nobody_else_can_read_it_and_nothing_shows_it(clone: Path) -> None:
    done = fleet_env(clone)

    assert stat.S_IMODE((clone / ".env").stat().st_mode) == 0o600
    for value in environment((clone / ".env").read_text(encoding="utf-8")).values():
        assert value not in done.stdout + done.stderr


def test_each_is_fresh(clone: Path) -> None:
    first = made_by(clone)
    (clone / ".env").unlink()

    assert not set(first.values()) & set(made_by(clone).values())


def test_one_that_exists_is_left_alone_and_it_says_what_to_do(clone: Path) -> None:
    (clone / ".env").write_text("MINE=1\n", encoding="utf-8")

    done = fleet_env(clone, status=2)

    assert (clone / ".env").read_text(encoding="utf-8") == "MINE=1\n"
    assert "nothing was changed" in done.stderr
    assert "rm .env" in done.stderr


def test_a_link_is_not_written_through(clone: Path, tmp_path: Path) -> None:
    (clone / ".env").symlink_to(tmp_path / "elsewhere")

    done = fleet_env(clone, status=2)

    assert not (tmp_path / "elsewhere").exists()
    assert "nothing was changed" in done.stderr


def test_without_a_key_there_is_no_file(clone: Path) -> None:
    (clone / ".venv-demo" / "bin").unlink()
    broken = clone / ".venv-demo" / "bin" / "graflow-ckpt"
    broken.parent.mkdir()
    (clone / ".venv-demo" / "bin" / "python").symlink_to(sys.executable)
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)

    fleet_env(clone, status=2)

    assert not (clone / ".env").exists()


def test_git_does_not_see_it() -> None:
    assert "/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


# --- the server of docker-compose.yml keeps what it was told, and asks who is there -----


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
