"""The servers that tests run against: ready when started, empty when asked for, gone with their process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.command_line import gone
from tests.proxy import Proxy
from tests.servers import ReplyError, Sentinel, Server
from tests.stretch import until

ROOT = Path(__file__).parents[2]


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

    until(lambda: gone(int(pid), 1) and not Path(folder).exists())


# --- the proxy --------------------------------------------------------------------------


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def ask(connection: socket.socket, line: bytes) -> bytes:
    connection.sendall(line + b"\r\n")
    return connection.recv(100)


def test_it_passes_on_what_comes_also_much(proxy: Proxy, redis_server: Server) -> None:
    large = b"x" * (8 << 20)
    with connected(proxy) as connection:
        assert ask(connection, b"PING") == b"+PONG\r\n"
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n%b\r\n" % (len(large), large))

        assert connection.recv(100) == b"+OK\r\n"
    assert redis_server.ask("GET", "a") == large


def test_a_lost_reply_is_that_of_a_request_that_was_carried_out(proxy: Proxy, redis_server: Server) -> None:
    with connected(proxy) as other, connected(proxy) as connection:
        proxy.drop_next_reply(b"INCR a")

        assert ask(other, b"PING") == b"+PONG\r\n"
        with pytest.raises(ConnectionError):
            ask(connection, b"INCR a")
        assert proxy.dropped()
        assert ask(other, b"PING") == b"+PONG\r\n"

    assert redis_server.ask("GET", "a") == b"1"


def test_a_held_reply_is_that_of_a_request_that_was_carried_out(proxy: Proxy, redis_server: Server) -> None:
    with connected(proxy) as connection:
        proxy.hold_next_reply(b"INCR a")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            ask(connection, b"INCR a")
        assert redis_server.ask("GET", "a") == b"1"

        proxy.resume()

        connection.settimeout(10)
        assert connection.recv(100) == b":1\r\n"


def test_a_cut_resets_every_connection_and_new_ones_are_passed_on(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        ask(connection, b"PING")
        proxy.cut()

        with pytest.raises(ConnectionError):
            ask(connection, b"PING")
    with connected(proxy) as connection:
        assert ask(connection, b"PING") == b"+PONG\r\n"
    assert proxy.connections == 2


def test_a_stall_answers_nothing_until_it_is_over(proxy: Proxy) -> None:
    with connected(proxy) as old:
        ask(old, b"PING")
        proxy.stall()
        with connected(proxy) as new:
            for connection in (old, new):
                connection.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    ask(connection, b"PING")

            proxy.resume()

            for connection in (old, new):
                connection.settimeout(10)
                assert connection.recv(100) == b"+PONG\r\n"


def test_refusing_is_a_port_that_nobody_listens_at(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)

    proxy.resume()

    with connected(proxy) as connection:
        assert ask(connection, b"PING") == b"+PONG\r\n"


def test_a_counted_message_is_not_passed_on_and_those_before_it_are(
    proxy: Proxy, redis_server: Server
) -> None:
    called: list[str] = []
    for at, there in ((3, b"1"), (4, b"2")):  # a request is odd, an answer even
        redis_server.ask("SET", "a", "0")
        with connected(proxy) as connection:
            ask(connection, b"PING")
            proxy.at_message(at, lambda: called.append("now"))

            assert ask(connection, b"INCR a") == b":1\r\n"
            with pytest.raises(ConnectionError):
                ask(connection, b"INCR a")

        assert redis_server.ask("GET", "a") == there
        with connected(proxy) as connection:
            assert ask(connection, b"PING") == b"+PONG\r\n"
    assert called == ["now", "now"]


def test_a_message_in_pieces_counts_once_and_nobody_need_listen_afterwards(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.at_message(3, lambda: None, refuse=True)
        for piece in (b"*2\r\n$4\r\n", b"PING\r\n", b"$1\r\na\r\n"):
            connection.sendall(piece)
        assert connection.recv(100) == b"$1\r\na\r\n"
        with pytest.raises(ConnectionError):
            ask(connection, b"PING")

    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    proxy.resume()
    connected(proxy).close()


def test_nothing_of_it_stays(redis_server: Server) -> None:
    before = threading.active_count()
    with Proxy(redis_server) as proxy:
        connection = connected(proxy)
        assert threading.active_count() == before + 1

    assert threading.active_count() == before
    with connection, pytest.raises(ConnectionError):
        ask(connection, b"PING")
