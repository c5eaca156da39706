"""Opening a link: what leads where, who is refused, and what is shown of it."""

from __future__ import annotations

import logging
import pickle
import socket
import socketserver
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fakeredis
import pytest
import redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel as SentinelClient

from graflow_ckpt.core.errors import (
    BadAddress,
    KeyTaken,
    NoSession,
    ServerError,
    ServerGone,
    ServerRefuses,
    ServerTooOld,
)
from graflow_ckpt.links.addresses import parse
from graflow_ckpt.links.redis import Finding, RedisLink, client_to, examine, open_link
from graflow_ckpt.links.wire import Step
from tests.proxy import Proxy
from tests.servers import Sentinel, Server, free_port

ROOT = Path(__file__).parents[3]
ECHO = "return {KEYS[1], ARGV[1]}"


def works(link: RedisLink) -> bool:
    script = link.script(ECHO)
    replies = [script(["k"], ["v"]), link.connection().call(script, ["k"], ["v"])]
    return replies == [[b"k", b"v"]] * 2


@contextmanager
def answering(replies: dict[bytes, bytes], otherwise: bytes = b"+OK\r\n") -> Iterator[int]:
    """A port at which a request gets the reply to a word that it holds. For servers that cannot be had."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(4096):
                self.request.sendall(next((replies[word] for word in replies if word in request), otherwise))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def bulk(text: str) -> bytes:
    return f"${len(text)}\r\n{text}\r\n".encode()


# --- what leads where ------------------------------------------------------------------


def test_a_url_leads_to_its_database(redis_server: Server, redis_url: str) -> None:
    link = open_link(redis_url.removesuffix("0") + "3")

    link.client.set("a", "1")

    assert works(link)
    assert link.address == f"redis://127.0.0.1:{redis_server.port}/3"
    assert link.connection().ask("GET", "a") == b"1"
    assert redis_server.ask("GET", "a") is None


def test_a_unix_socket_leads_to_a_server_too(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"requirepass": "hunter2"})

    link = open_link(server.unix_url)

    assert works(link)
    assert link.address == f"unix://{server.folder}/socket"


def test_sentinels_lead_to_the_master_also_when_it_is_another_one(own_redis: Callable[..., Server]) -> None:
    first = own_redis({"requirepass": "hunter2"})
    second = own_redis({"requirepass": "hunter2", "masterauth": "hunter2"}, replica_of=first)
    with Sentinel(first) as sentinel:
        link = open_link(f"redis+sentinel://:hunter2@127.0.0.1:{sentinel.port}/main/0")
        wire = link.connection()
        assert works(link)
        assert wire.ask("CONFIG", "GET", "port") == [b"port", str(first.port).encode()]

        second.ask("REPLICAOF", "NO", "ONE")
        first.ask("REPLICAOF", second.host, second.port)
        sentinel.ask("SENTINEL", "REMOVE", "main")
        sentinel.ask("SENTINEL", "MONITOR", "main", second.host, second.port, 1)
        sentinel.ask("SENTINEL", "SET", "main", "auth-pass", "hunter2")

        with pytest.raises(ServerGone, match="previous master"):
            wire.ask("SET", "a", "1")
        wire.reconnect()
        assert wire.ask("SET", "a", "1") == b"OK"
        assert second.ask("GET", "a") == b"1"
        link.close()


def test_sentinels_that_are_gone_or_know_no_such_master_are_named(own_redis: Callable[..., Server]) -> None:
    with Sentinel(own_redis()) as sentinel:
        for address in (
            f"redis+sentinel://:hunter2@127.0.0.1:{sentinel.port}/other",
            f"redis+sentinel://:hunter2@127.0.0.1:{free_port()}/main",
        ):
            with pytest.raises(ServerGone, match=r"no sentinel that answers and knows its master") as gone:
                open_link(address)
            assert "hunter2" not in str(gone.value)


def test_a_cluster_is_refused_by_name_however_it_is_named(own_redis: Callable[..., Server]) -> None:
    settings = {"cluster-enabled": "yes", "cluster-port": str(free_port()), "requirepass": "hunter2"}
    node = own_redis(settings)
    node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    live = RedisCluster(host=node.host, port=node.port, password="hunter2", protocol=2)

    for where in (node.url, node.url.replace("redis://", "redis+cluster://"), live, node.client()):
        with pytest.raises(BadAddress, match=r"is a Redis Cluster.*redis\+sentinel://") as refused:
            open_link(where)
        assert "hunter2" not in str(refused.value)
    live.close()


def test_a_live_client_leads_to_its_server_and_is_left_alone(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"requirepass": "hunter2"})
    strings = server.client(decode_responses=True, protocol=3)
    for client in (server.client(), strings, redis.Redis.from_url(server.unix_url, protocol=2)):
        link = open_link(client)

        assert works(link)
        assert "hunter2" not in f"{link!r} {link.address}"
        link.close()
        assert client.ping()
        client.close()
    assert strings.set("a", "1")
    assert strings.get("a") == "1"


def test_a_live_client_of_sentinels_follows_the_master_too(own_redis: Callable[..., Server]) -> None:
    master = own_redis()
    with Sentinel(master) as sentinel:
        client = SentinelClient([("127.0.0.1", sentinel.port)], protocol=2).master_for("main")
        link = open_link(client)

        assert works(link)
        assert link.address == f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0"
        link.close()
        client.close()


def test_a_server_in_memory_that_tests_of_users_use_will_do() -> None:
    link = open_link(fakeredis.FakeRedis())

    assert works(link)


def test_a_link_is_returned_as_it_is(link: RedisLink) -> None:
    assert open_link(link) is link


def test_an_address_that_was_stored_is_opened_with_the_password_that_was_given(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis({"requirepass": "hunter2"})
    stored = f"redis://127.0.0.1:{server.port}/5"
    with pytest.raises(ServerRefuses):
        open_link(server.url.replace("hunter2", "wrong"))
    with pytest.raises(ServerRefuses):
        open_link(stored)

    monkeypatch.setenv("GRAFLOW_CKPT_REDIS_URL", server.url)
    assert works(open_link(stored))
    monkeypatch.delenv("GRAFLOW_CKPT_REDIS_URL")
    open_link(server.url)

    assert works(open_link(stored))


# --- who is refused --------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_nobody_there_is_gone_at_once(host: str) -> None:
    with pytest.raises(ServerGone, match=rf"{host}:\d+/0 cannot be reached"):
        open_link(f"redis://:hunter2@{host}:{free_port()}/0")


def test_a_machine_that_says_nothing_is_gone_in_time(redis_server: Server) -> None:
    with Proxy(redis_server) as proxy:
        proxy.stall()

        with pytest.raises(ServerGone, match="Timeout"):
            open_link(proxy.url, timeout=0.1)


@pytest.mark.parametrize("credentials", ["", ":hunter3@", "prey:hunter2@"])
def test_a_wrong_password_is_refused_without_showing_it(
    own_redis: Callable[..., Server], credentials: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = own_redis({"requirepass": "hunter2"})

    with pytest.raises(ServerRefuses) as refused:
        open_link(f"redis://{credentials}127.0.0.1:{server.port}/0")

    told = "".join(traceback.format_exception(refused.value)) + caplog.text
    assert not any(secret in told for secret in ("hunter", "prey"))
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.address, str(again)) == (refused.value.address, str(refused.value))


def test_an_old_server_is_refused_by_its_version() -> None:
    about = {b"INFO": bulk("redis_version:4.0.14\r\nredis_mode:standalone\r\n")}

    with answering(about) as port, pytest.raises(ServerTooOld, match=r"Redis 4\.0\.14; 5\.0") as old:
        open_link(f"redis://127.0.0.1:{port}/0")

    assert old.value.version == "4.0.14"


def test_a_server_that_does_not_say_what_it_is_will_do() -> None:
    refused = b"-NOPERM this user has no permissions to run the 'info' command\r\n"

    with answering({b"INFO\r": refused, b"PING": b"+PONG\r\n"}) as port:
        link = open_link(f"redis://127.0.0.1:{port}/0")

        assert link.connection().ask("PING") == b"PONG"
        link.close()


def test_something_else_behind_the_port_is_told_as_such() -> None:
    http = b"HTTP/1.1 400 Bad Request\r\n\r\n"

    with answering({}, http) as port, pytest.raises(ServerError, match="does not speak the protocol"):
        open_link(f"redis://127.0.0.1:{port}/0")


@pytest.mark.parametrize("option", ["socket_timeout=soon", "no_such_option=hunter2"])
def test_an_option_that_cannot_be_used_is_refused_without_its_value(redis_url: str, option: str) -> None:
    with pytest.raises(BadAddress, match="An option of the address") as refused:
        open_link(f"{redis_url}?{option}")

    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_options_that_would_change_what_is_read_are_not_taken(redis_url: str) -> None:
    link = open_link(f"{redis_url}?decode_responses=True&protocol=3&socket_timeout=7&health_check_interval=1")

    link.client.set("a", "é")
    settings = link.client.connection_pool.connection_kwargs
    assert link.client.get("a") == "é".encode()
    assert (settings["socket_timeout"], settings["health_check_interval"]) == (7.0, 0)


# --- processes -------------------------------------------------------------------------


def test_a_link_goes_on_in_a_forked_child_with_connections_of_its_own(redis_url: str) -> None:
    program = """
import os, sys
from graflow_ckpt.links.redis import open_link

link = open_link(sys.argv[1])
script = link.script("return redis.call('incr', KEYS[1])")
ids = [link.client.client_id()]
script(["n"])
read, write = os.pipe()
if os.fork() == 0:
    for _ in range(100):
        script(["n"])
    os.write(write, b"%d" % link.client.client_id())
    os._exit(0)
for _ in range(100):
    script(["n"])
ids.append(int(os.read(read, 100)))
os.wait()
print(len(set(ids)), link.client.get("n"), link.client.client_id() == ids[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, redis_url], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["2", "b'201'", "True"]


def test_every_client_is_made_without_retries_and_with_timeouts() -> None:
    for where in (
        "redis://h",
        "rediss://h",
        "unix:///s",
        "redis+sentinel://h/main",
        "rediss+sentinel://h/main",
    ):
        client = client_to(parse(where), 3.0)

        settings = client.connection_pool.connection_kwargs
        assert settings["retry"].get_retries() == 0, where
        assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (3.0, 3.0), where
        assert (settings["decode_responses"], settings["protocol"]) == (False, 2), where
        assert settings["health_check_interval"] == 0, where


def test_a_client_that_retries_gives_a_link_that_does_not(redis_server: Server, redis_url: str) -> None:
    link = open_link(redis_server.client())

    assert link.client.connection_pool.connection_kwargs["retry"].get_retries() == 0


def test_a_vanished_machine_is_noticed_on_a_connection_that_only_waits(link: RedisLink) -> None:
    connection = link.client.connection_pool.get_connection()
    opened = connection._sock

    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if "TCP_KEEPIDLE" in vars(socket):
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    link.client.connection_pool.release(connection)


def test_tls_is_spoken_where_the_address_says_so() -> None:
    for where in ("rediss://h", "rediss://h?ssl_cert_reqs=none"):
        pool = client_to(parse(where), 3.0).connection_pool

        assert issubclass(pool.connection_class, redis.SSLConnection)
    assert pool.connection_kwargs["ssl_cert_reqs"] == "none"
    assert pool.connection_class(**pool.connection_kwargs).host == "h"


def test_an_address_of_version_six_is_connected_to_without_its_brackets() -> None:
    assert client_to(parse("redis://[::1]:7"), 3.0).connection_pool.connection_kwargs["host"] == "::1"


# --- examination ------------------------------------------------------------------------


def findings(server: Server) -> list[Finding]:
    link = open_link(server.url)
    try:
        return examine(link)
    finally:
        link.close()


def said(server: Server, level: str) -> str:
    return " ".join(f"{found.what} {found.hint}" for found in findings(server) if found.level == level)


def test_a_server_that_keeps_everything_has_nothing_to_be_told(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always", "requirepass": "hunter2"})

    found = findings(server)

    assert {finding.level for finding in found} == {"ok"}
    assert "valkey" in found[0].what
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("config", "level", "what"),
    [
        ({}, "warning", "appendonly no"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warning", "appendfsync no"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "within a second"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "error", "allkeys-lru"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "warning", "volatile-ttl"),
        ({"maxmemory-policy": "allkeys-lru"}, "warning", "allkeys-lru"),
        ({"maxmemory": "1mb"}, "warning", "maxmemory"),
        ({"maxmemory": "100mb"}, "ok", "noeviction"),
    ],
)
def test_each_weakness_is_told(
    own_redis: Callable[..., Server], config: dict[str, str], level: str, what: str
) -> None:
    assert what in said(own_redis(config), level)


def test_a_replica_names_its_master(own_redis: Callable[..., Server]) -> None:
    master = own_redis()

    assert f"replica of 127.0.0.1:{master.port}" in said(own_redis(replica_of=master), "error")


def test_what_may_not_be_looked_at_is_a_warning(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes"})
    server.ask("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "+@all", "-config")
    link = open_link(server.url.replace("redis://", "redis://worker:hunter2@"))
    assert all(found.level == "ok" for found in examine(link))

    server.ask("ACL", "SETUSER", "worker", "-info")
    assert [found.level for found in examine(link)] == ["warning"]
    link.close()
    assert [found.level for found in examine(open_link(fakeredis.FakeRedis()))] == ["warning"]


# --- scripts ----------------------------------------------------------------------------


COUNT = "return redis.call('incr', KEYS[1])"


def test_a_script_that_is_not_known_travels_with_its_call(redis_server: Server, link: RedisLink) -> None:
    """Loaded first and called then, it could be forgotten in between, and the call would fail."""
    script, wire = link.script(COUNT), link.connection()
    for call in (script, lambda keys: wire.call(script, keys)):
        link.client.script_flush()
        redis_server.ask("CONFIG", "RESETSTAT")

        assert call(["n"]) > 0

        stats = redis_server.ask("INFO", "commandstats")
        assert b"cmdstat_eval:calls=1," in stats
        assert b"cmdstat_script|load" not in stats


@pytest.mark.parametrize(
    "ask",
    [
        lambda link, script: script(["n"]),
        lambda link, script: link.together([(None, (), ["PING"]), (script, ["n"], ())]),
    ],
    ids=["alone", "with others"],
)
def test_a_call_whose_reply_is_lost_is_sent_once(
    redis_server: Server, proxy: Proxy, ask: Callable[..., object]
) -> None:
    link = open_link(proxy.url)
    script = link.script(COUNT)
    script(["n"])
    proxy.drop_next_reply(b"EVALSHA")

    with pytest.raises(ServerGone):
        ask(link, script)

    assert redis_server.ask("GET", "n") == b"2"
    assert script(["n"]) == 3  # the pool opens another connection


def test_after_a_restart_the_next_call_finds_the_server(own_redis: Callable[..., Server]) -> None:
    server = own_redis()
    link = open_link(server.url)
    script = link.script("return 1")
    script([])

    server.restart()

    assert script([]) == 1  # the pool has seen that its connection was closed


def test_an_error_of_a_script_keeps_its_word(link: RedisLink) -> None:
    with pytest.raises(ServerError) as error:
        link.script("return redis.error_reply('OURS no')")([])

    assert error.value.code == "OURS"


def test_steps_that_go_together_are_run_again_with_a_script_that_was_not_known(link: RedisLink) -> None:
    script = link.script(COUNT)
    steps: list[Step] = [(None, (), ["SET", "x", b"1"]), (script, ["n"], ())]

    assert link.together(steps) == [b"OK", 1]
    link.client.script_flush()
    assert link.together([*steps, (script, ["n"], ())]) == [b"OK", 2, 3]


def test_what_is_wrong_with_one_step_is_in_its_place_and_the_others_are_run(link: RedisLink) -> None:
    link.client.set("text", b"x")
    counted = link.script("return redis.call('hincrby', KEYS[1], 'n', 1)", ["hash"])
    steps: list[Step] = [
        (None, (), ["NOSUCH", "x"]),
        (counted, ["text"], ()),
        (link.script(COUNT), ["n"], ()),
    ]

    unknown, wrong, done = link.together(steps)

    assert isinstance(unknown, ServerError)
    assert isinstance(wrong, KeyTaken)
    assert "is a string, not a hash" in str(wrong)
    assert done >= 1  # twice if one of the scripts was not known


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def ask() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return ask


def nowhere() -> RedisLink:
    return RedisLink(redis.Redis(), "redis://there")


@pytest.mark.parametrize(
    "error", [ServerGone("away"), redis.ConnectionError("away"), redis.BusyLoadingError()]
)
def test_a_server_that_is_away_is_asked_again(error: Exception) -> None:
    assert nowhere().patiently(failing(error, error), "s", 5.0) == "answer"


def test_after_its_time_it_is_gone() -> None:
    def ask() -> str:
        raise redis.ConnectionError("away")

    with pytest.raises(ServerGone, match="redis://there"):
        nowhere().patiently(ask, "s", 0.05)


def test_what_is_no_absence_is_not_asked_again() -> None:
    ask = failing(NoSession("none"), NoSession("none"))

    with pytest.raises(NoSession):
        nowhere().patiently(ask, "s", 5.0)
    with pytest.raises(NoSession):  # it was asked once
        nowhere().patiently(ask, "s", 5.0)
    assert ask() == "answer"
