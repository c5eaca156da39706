"""The servers that tests run against: ready when started, empty when asked for, gone with their process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import ReplyError, Sentinel, Server

ROOT = Path(__file__).parents[2]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_restarted_server_has_what_its_disk_has_kept(own_redis: Callable[..., Server]) -> None:
    kept, lost = own_redis({"appendonly": "yes", "appendfsync": "always"}), own_redis()
    for server in (kept, lost):
        server.ask("SET", "a", "1")

        port = server.port
        assert server.restart().port == port

    assert (kept.ask("GET", "a"), lost.ask("GET", "a")) == (b"1", None)


def test_each_test_finds_an_empty_server(redis_server: Server, request: pytest.FixtureRequest) -> None:
    redis_server.ask("SET", "a", "1")

    assert request.getfixturevalue("redis_url") == redis_server.url
    assert redis_server.ask("DBSIZE") == 0


def test_a_password_is_asked_for(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"requirepass": "a b#c"})

    assert server.ask("PING") == b"PONG"
    assert server.client().ping()
    server.config["requirepass"] = "other"
    with pytest.raises(ReplyError, match="WRONGPASS"):
        server.ask("PING")


def test_a_replica_follows_and_takes_no_writes(own_redis: Callable[..., Server]) -> None:
    master = own_redis()
    master.ask("SET", "a", "1")
    replica = own_redis(replica_of=master)

    assert replica.ask("GET", "a") == b"1"
    with pytest.raises(ReplyError, match="READONLY"):
        replica.ask("SET", "a", "2")


def test_a_sentinel_knows_the_master(own_redis: Callable[..., Server]) -> None:
    master = own_redis()
    with Sentinel(master) as sentinel:
        found = sentinel.ask("SENTINEL", "get-master-addr-by-name", "main")

    assert found == [b"127.0.0.1", str(master.port).encode()]


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(AssertionError, match="no-such-directive"):
        Server({"no-such-directive": "1"}).start()


def test_no_server_outlives_the_process_that_started_it() -> None:
    program = (
        "import os, signal; from tests.servers import Server; server = Server().start();"
        "print(server.pid, server.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    pid, folder = done.stdout.split()

    deadline = time.monotonic() + 10
    while not gone(int(pid)) or Path(folder).exists():
        assert time.monotonic() < deadline, f"server {pid} is alive, or {folder} is there"
        time.sleep(0.01)
