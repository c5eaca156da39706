"""A wire: calls, halves of calls, and every way in which it can fail."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import sleep
from types import FrameType

import pytest
import redis
from redis.connection import DefaultParser
from redis.sentinel import MasterNotFoundError

from graflow_ckpt.core.errors import (
    KeyTaken,
    ServerError,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    ServerRefuses,
)
from graflow_ckpt.links import wire as wires
from graflow_ckpt.links.complaints import code_of, in_our_words, taken, translated
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.testing.drivers import at_once
from tests.proxy import Proxy
from tests.servers import Server

ROOT = Path(__file__).parents[3]
ECHO = "return {KEYS[1], ARGV[1]}"
COUNT = "return redis.call('incr', KEYS[1])"


def test_a_call_returns_what_the_script_returns_in_bytes(link: RedisLink) -> None:
    wire = link.connection()

    assert wire.call(link.script(ECHO), ["k"], [b"\xff\0"]) == [b"k", b"\xff\0"]
    assert wire.call(link.script("return ARGV"), [], ["é", 7, 0.5]) == ["é".encode(), b"7", b"0.5"]
    assert wire.call(link.script("return false"), []) is None


@pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc")])
def test_any_buffer_can_be_sent(link: RedisLink, data: memoryview) -> None:
    assert link.connection().call(link.script(ECHO), ["k"], [data]) == [b"k", b"abc"]


@pytest.fixture(params=["bare", "slow"])
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the C half of redis-py."""
    if request.param == "slow":
        monkeypatch.setattr(wires, "hiredis", None)


LARGE = wires._CHUNK


@pytest.mark.usefixtures("line")
@pytest.mark.parametrize("size", [0, 1, LARGE - 8, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE, 5_000_000])
def test_a_text_of_any_size_comes_whole(link: RedisLink, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    link.client.set("text", data[:size])

    for most in (size, size - 1, 1 << 30):
        assert link.ask_text(most, "GETRANGE", "text", 0, -1) == data[:size]
    assert link.ask("STRLEN", "text") == size  # and nothing is left of it


@pytest.mark.usefixtures("line")
def test_what_is_no_text_is_answered_as_ever(link: RedisLink) -> None:
    link.client.hset("hash", "a", 1)

    assert link.ask_text(LARGE, "GET", "none") is None
    assert link.ask_text(LARGE, "HLEN", "hash") == 1
    with pytest.raises(ServerError, match="WRONGTYPE"):
        link.ask_text(LARGE, "GET", "hash")
    assert link.ask("PING") == b"PONG"


@pytest.mark.parametrize("cut", [1, 4, 9, 70_000, 200_000 + 10])
def test_a_text_that_comes_in_pieces_is_whole_and_one_that_ends_in_the_middle_is_lost(cut: int) -> None:
    data = b"$200000\r\n" + b"x" * 200_000 + b"\r\n"
    for rest in (data[cut:], b""):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender = threading.Thread(target=_in_two, args=(theirs, data[:cut], rest))
            sender.start()
            if rest:
                assert wires.BareLine(ours, None).read_text(200_000) == b"x" * 200_000
            else:
                with pytest.raises(redis.ConnectionError):
                    wires.BareLine(ours, None).read_text(200_000)
            sender.join()


def _in_two(sock: socket.socket, first: bytes, rest: bytes) -> None:
    sock.sendall(first)
    sleep(0.01)
    sock.sendall(rest)
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.usefixtures("line")
@pytest.mark.parametrize("sizes", [(0, 0), (20, 100), (20, LARGE + 1), (LARGE + 1, LARGE + 1)])
def test_a_word_may_be_in_pieces(link: RedisLink, sizes: tuple[int, int]) -> None:
    first, rest = b"a" * sizes[0], bytearray(b"b" * sizes[1])
    script = link.script(ECHO)
    steps: list[wires.Step] = [
        (None, (), ("SET", "text", (first, rest), "EX", 100)),
        (script, ["k"], ["v"]),
        (None, (), ("GET", "text")),
    ]

    assert link.together(steps) == [b"OK", [b"k", b"v"], first + rest]


@pytest.mark.usefixtures("line")
def test_nothing_is_sent_of_commands_one_of_which_cannot_be(link: RedisLink) -> None:
    steps: list[wires.Step] = [(None, (), ("SET", "n", 1)), (None, (), ("SET", "n", "caf\udce9"))]

    with pytest.raises(redis.DataError):
        link.together(steps)

    assert link.ask("GET", "n") is None


@pytest.mark.parametrize("word", [object(), "caf\udce9"])
def test_what_cannot_be_sent_leaves_the_wire_as_it_was(link: RedisLink, word: str) -> None:
    wire = link.connection()

    with pytest.raises(redis.DataError):
        wire.call(link.script(ECHO), ["k"], [word])

    assert wire.call(link.script(ECHO), ["k"], ["v"]) == [b"k", b"v"]


def test_between_the_halves_of_a_call_something_else_can_be_done(link: RedisLink) -> None:
    wire = link.connection()

    wire.send(link.script(COUNT), ["n"])
    assert link.client.get("other") is None

    assert wire.receive() == 1


def test_a_script_that_the_server_has_forgotten_is_loaded_and_the_same_call_sent_again(
    link: RedisLink,
) -> None:
    wire, script = link.connection(), link.script(COUNT)
    assert wire.call(script, ["n"]) == 1

    link.client.script_flush()

    assert wire.call(script, ["n"]) == 2
    link.client.script_flush()
    wire.send(script, ["n"])
    assert wire.receive() == 3


def test_a_restarted_server_is_gone_once_and_knows_the_script_after_a_reconnect(
    own_redis: Callable[..., Server],
) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    link = open_link(server.url)
    wire, script = link.connection(), link.script(COUNT)
    wire.call(script, ["n"])

    server.restart()

    with pytest.raises(ServerGone, match="lost"):
        wire.call(script, ["n"])
    with pytest.raises(ServerGone, match="is closed"):  # never by itself: who calls has to know
        wire.call(script, ["n"])
    wire.reconnect()
    assert wire.call(script, ["n"]) == 2


def test_a_server_that_stays_away_is_gone_at_the_reconnect_too(own_redis: Callable[..., Server]) -> None:
    server = own_redis()
    wire = open_link(server.url).connection()
    server.kill()

    for attempt in (lambda: wire.ask("PING"), wire.reconnect, wire.reconnect):
        with pytest.raises(ServerGone):
            attempt()
    server.start()

    wire.reconnect()
    assert wire.ask("PING") == b"PONG"


def test_a_lost_reply_is_not_asked_for_again_by_itself(proxy: Proxy, redis_server: Server) -> None:
    link = open_link(proxy.url)
    wire, script = link.connection(), link.script(COUNT)
    wire.call(script, ["n"])
    proxy.drop_next_reply(b"EVALSHA")

    with pytest.raises(ServerGone):
        wire.call(script, ["n"])

    assert redis_server.ask("GET", "n") == b"2"  # carried out, and once
    wire.reconnect()
    assert wire.call(script, ["n"]) == 3


def test_a_machine_that_vanished_is_noticed_in_time(proxy: Proxy) -> None:
    wire = open_link(proxy.url, timeout=0.1).connection()
    proxy.stall()

    with pytest.raises(ServerGone, match="Timeout"):
        wire.ask("PING")

    proxy.resume()
    wire.reconnect()
    assert wire.ask("PING") == b"PONG"


def test_an_interrupted_call_never_gives_its_reply_to_the_next_one(link: RedisLink) -> None:
    wire, script = link.connection(), link.script(ECHO)
    wire.send(script, ["k"], ["old"])  # and Ctrl-C before `receive`

    with pytest.raises(ServerGone, match="interrupted"):
        wire.call(script, ["k"], ["new"])

    wire.reconnect()
    assert wire.call(script, ["k"], ["new"]) == [b"k", b"new"]


class Interrupt(BaseException):
    """As a signal's handler raises it, wherever the main thread is."""


@pytest.mark.parametrize("word", [b"EVALSHA", b"EVAL\r\n", b"PING"])
def test_what_was_interrupted_is_not_kept_for_the_next_who_asks(proxy: Proxy, word: bytes) -> None:
    with closing(open_link(proxy.url)) as link:
        wire, old, new = link.connection(), link.script("return 'old'"), link.script("return 'new'")
        link.client.script_flush()
        if word == b"EVALSHA":
            wire.call(old, [])  # else the server does not know it, and is sent its text
        ask = partial(wire.ask, word) if word == b"PING" else partial(wire.call, old, [])
        proxy.hold_next_reply(word)

        with pytest.raises(Interrupt), interrupted_soon():
            ask()
        assert not wire.rests
        link.done_with(wire)
        proxy.resume()

        assert link.connection().call(new, []) == b"new"


@contextmanager
def interrupted_soon() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_reply_that_nobody_asked_for_is_not_waited_for(link: RedisLink) -> None:
    with pytest.raises(ServerGone, match="waits for no reply"):
        link.connection().receive()


def test_an_error_of_the_script_leaves_the_wire_open(link: RedisLink) -> None:
    wire = link.connection()

    with pytest.raises(ServerError, match="FENCED who are you") as error:
        wire.call(link.script("return redis.error_reply('FENCED who are you')"), [])

    assert error.value.code == "FENCED"
    assert wire.ask("PING") == b"PONG"


def test_a_key_of_another_type_is_named(link: RedisLink) -> None:
    link.client.set("graflow:{s}:h", "a string")
    link.client.zadd("graflow:{s}:q", {"a": 1})
    script = link.script("return redis.call('hset', KEYS[1], 'a', 'b')", types=["hash", "zset", "set"])
    wire = link.connection()

    for call in (wire.call, script.__call__):
        args = (script,) if call == wire.call else ()
        with pytest.raises(KeyTaken, match=r"graflow:{s}:h is a string, not a hash") as error:
            call(*args, ["graflow:{s}:h", "graflow:{s}:q", "graflow:{s}:done"])
        assert list(error.value.keys) == ["graflow:{s}:h"]
    assert wire.ask("PING") == b"PONG"


def test_a_full_server_says_so_and_changes_nothing(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"maxmemory": "1mb", "maxmemory-policy": "noeviction"})
    link = open_link(server.url)
    wire = link.connection()

    for call in (
        lambda: wire.call(link.script("return redis.call('set', KEYS[1], ARGV[1])"), ["a"], ["x"]),
        lambda: link.script("return redis.call('set', KEYS[1], ARGV[1])")(["a"], ["x"]),
    ):
        with pytest.raises(ServerFull, match="maxmemory"):
            call()
    assert wire.ask("GET", "a") is None


def test_after_a_failover_behind_an_address_only_the_first_call_meets_the_former_master(
    own_redis: Callable[..., Server],
) -> None:
    former, master = own_redis(), own_redis()
    with Proxy(former) as proxy:
        link = open_link(proxy.url)
        count = link.script(COUNT)
        assert count(["k"]) == 1
        former.ask("REPLICAOF", "127.0.0.1", 1)
        proxy.server = master  # new connections are led there, and nobody closes those that are open
        with pytest.raises(ServerReadOnly):
            count(["k"])

        assert count(["k"]) == 1
        link.close()


def test_a_replica_is_told_from_a_master(own_redis: Callable[..., Server]) -> None:
    replica = own_redis(replica_of=own_redis())
    link = open_link(replica.url)
    wire = link.connection()

    with pytest.raises(ServerReadOnly, match=r"Name its master"):
        wire.call(link.script(COUNT), ["n"])

    assert wire.ask("GET", "n") is None


def test_a_permission_that_was_taken_away_is_a_refusal(own_redis: Callable[..., Server]) -> None:
    server = own_redis()
    server.ask("ACL", "SETUSER", "worker", "on", ">hunter2", "~*", "+@all", "-incr")
    link = open_link(server.url.replace("redis://", "redis://worker:hunter2@"))
    wire = link.connection()

    with pytest.raises(ServerRefuses, match="ACL"):
        wire.ask("INCR", "n")

    assert wire.ask("PING") == b"PONG"


def test_a_busy_server_is_tried_again(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"lua-time-limit": "10"})
    link = open_link(server.url)
    wire, endless = link.connection(), link.connection()
    script, stuck = link.script("return 1"), link.script("while true do end")
    link.client.script_load(stuck.source)
    endless.send(stuck, [])

    def until_busy() -> None:
        for _ in range(1000):
            wire.call(script, [])

    with pytest.raises(ServerGone, match="busy"):
        until_busy()

    server.ask("SCRIPT", "KILL")
    for _ in range(1000):  # it is told, and ends a moment later
        wire.reconnect()
        with suppress(ServerGone):
            assert wire.call(script, []) == 1
            return
    raise AssertionError("still busy")


def test_a_forked_child_refuses_the_socket_of_its_parent_and_can_have_its_own() -> None:
    program = """
import os, sys
from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.links.redis import open_link
from tests.servers import Server

with Server() as server:
    link = open_link(server.url)
    wire, script = link.connection(), link.script("return {redis.call('incr', KEYS[1]), ARGV[1]}")
    wire.call(script, ["n"], ["parent"])
    wire.send(script, ["n"], ["parent"])
    while link.client.get("n") != b"2":
        pass
    child = os.fork()
    if child == 0:
        try:
            for call in (wire.receive, lambda: wire.ask("PING")):
                try:
                    call()
                except ServerGone as error:
                    print(error, flush=True)
            wire.reconnect()
            print(wire.call(script, ["n"], ["child"]), link.client.get("n"), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print(wire.receive(), wire.call(script, ["n"], ["parent"]), link.client.get("n"), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    refused, closed, child, parent = done.stdout.splitlines()
    assert "opened by another process" in refused
    assert "is closed" in closed or "opened by another process" in closed
    assert child == "[3, b'child'] b'3'"
    assert parent == "[2, b'parent'] [4, b'parent'] b'4'"


def test_wires_of_several_threads_do_not_meet(link: RedisLink) -> None:
    script, wrong = link.script(ECHO), []

    def work(name: str) -> None:
        wire = link.connection()
        wrong.extend(
            reply
            for n in range(200)
            if (reply := wire.call(script, [name], [n])) != [name.encode(), str(n).encode()]
        )
        wire.close()

    at_once([partial(work, f"k{n}") for n in range(4)])

    assert wrong == []


def test_a_wire_is_shown_without_a_password(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"requirepass": "hunter2"})
    wire = open_link(server.url).connection()

    assert repr(wire) == f"Wire(redis://127.0.0.1:{server.port}/0, open)"
    wire.close()
    assert repr(wire).endswith("closed)")


def test_a_kept_connection_that_the_server_has_closed_is_not_handed_out(redis_server: Server) -> None:
    with closing(open_link(redis_server.url)) as link:
        kept = link.connection()
        link.done_with(kept)
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        wire = link.connection()

        assert wire is not kept
        assert wire.ask("PING") == b"PONG"


def test_a_wire_that_nobody_closed_leaves_no_socket_open(redis_server: Server) -> None:
    with closing(open_link(redis_server.url)) as link:
        wire = link.connection()
        number = int(wire.ask("CLIENT", "ID"))
        ring: list[object] = [wire]
        ring.append(ring)  # the garbage collector gets it, in whatever order
        del wire, ring
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()

        known = redis_server.ask("CLIENT", "LIST").decode()
        assert f"id={number} " not in known


# --- complaints -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", ServerRefuses),
        ("NOAUTH Authentication required.", ServerRefuses),
        ("ERR invalid password", ServerRefuses),
        ("NOPERM User u has no permissions to run the 'evalsha' command", ServerRefuses),
        ("DENIED Redis is running in protected mode", ServerRefuses),
        ("READONLY You can't write against a read only replica.", ServerReadOnly),
        (
            "READONLY You can't write against a read only replica. script: 5ca, on @user_script:1.",
            ServerReadOnly,
        ),
        (
            "ERR Error running script (call to f_5ca): @user_script:1: -READONLY You can't write",
            ServerReadOnly,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", ServerFull),
        ("ERR Error running script (call to f_5ca): @user_script:1: -OOM command not allowed", ServerFull),
        ("MISCONF Redis is configured to save RDB snapshots, but it is unable to persist", ServerFull),
        ("LOADING Redis is loading the dataset in memory", ServerGone),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", ServerGone),
        ("NOREPLICAS Not enough good replicas to write.", ServerGone),
        ("MOVED 12182 127.0.0.1:7001", ServerRefuses),
        ("ASK 12182 127.0.0.1:7001", ServerRefuses),
        ("CLUSTERDOWN The cluster is down", ServerRefuses),
        ("CROSSSLOT Keys in request don't hash to the same slot", ServerRefuses),
        ("MASTERDOWN Link with MASTER is down", ServerGone),
        ("ERR max number of clients reached", ServerGone),
        ("ERR user_script:1: attempt to index a nil value script: 5ca", ServerError),
        ("OURS something that a script of ours says", ServerError),
    ],
)
def test_each_complaint_has_its_kind(reply: str, kind: type[ServerError]) -> None:
    error = DefaultParser.parse_error(reply)

    said = in_our_words(error, "redis://h:1/0")

    assert type(said) is kind
    assert said.address == "redis://h:1/0"
    assert str(said).startswith("redis://h:1/0 ")


def test_an_error_within_a_pipeline_keeps_its_word(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.set("text", "x")

    with pytest.raises(redis.ResponseError) as error:
        client.pipeline(transaction=False).hget("text", "f").execute()

    assert code_of(error.value) == "WRONGTYPE"


@pytest.mark.parametrize(
    "error",
    [redis.ConnectionError("Error 111 connecting"), redis.TimeoutError("Timeout reading from socket")],
)
def test_what_may_pass_is_a_lost_connection_of_python_too(error: Exception) -> None:
    with pytest.raises(ConnectionError), translated("redis://h:1/0"):
        raise error


def test_what_sentinels_clients_show_of_themselves_is_not_repeated() -> None:
    said = in_our_words(
        MasterNotFoundError("No master found: <Redis(password=hunter2)>"), "redis+sentinel://h"
    )

    assert isinstance(said, ServerGone)
    assert "hunter2" not in str(said)


def test_a_key_of_another_type_is_named_with_what_it_is() -> None:
    found = {b"g:h": b"string", b"g:q": b"zset", b"g:t": b"none", b"g:x": b"list"}

    kinds = dict(zip(found, ("hash", "zset", "hash", ""), strict=True))

    error = taken("redis://h:1/0", kinds, found.__getitem__)

    assert type(error) is KeyTaken
    assert error.keys == {"g:h": "string", "g:x": "list"}
    assert "g:h is a string, not a hash, g:x is a list" in str(error)
    assert "another database" in error.hint
