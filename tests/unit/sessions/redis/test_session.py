"""The session in Redis as a worker sees it: a server that is away, lost replies, and what is refused."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from graflow_ckpt.core.errors import (
    Fenced,
    KeyTaken,
    NoSession,
    ServerFull,
    ServerGone,
    SessionBusy,
    SessionError,
    UnsafeCheckpoint,
    WriteConflict,
)
from graflow_ckpt.core.facts import RESULT, Cell, Claim, Op, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import frozen, read_state, write_state
from graflow_ckpt.sessions.redis.values import AttemptReader
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.sessions.pair import SESSION, Plain, facts

KEY = keys_of(SESSION) + "c"


def enqueue(task: str = "a", data: bytes | None = None, queue: str = "default") -> Op:
    return ("enqueue", task, data, 0, 0, queue, "direct")


def create(link: RedisLink, *ops: Op) -> None:
    write_state(link, SessionState(SESSION), Plain(), {}, verb="create", flags="f")
    with closing(RedisSession(link, SESSION, Plain())) as outside:
        outside.commit(ops)


def join(link: RedisLink, **options: bool) -> RedisSession:
    """A sender with a token of its own."""
    _, token, _, began = link.script(START)([KEY], ["", "me", 15_000, "", new_nonce()])
    return RedisSession(link, SESSION, Plain(), token.decode(), began.decode(), queue="default", **options)


def values_of(reader: AttemptReader, *names: str) -> list[tuple[Cell, ...]]:
    """Each value with what was appended to it; no versions."""
    found = [reader.read(name) for name in names]
    return [() if one is None else (one[0], *one[2]) for one in found]


def end(claim: Claim, result: bytes = b"\x01") -> Op:
    return ("end", claim.spec.key, claim.number, "completed", result)


def state(link: RedisLink) -> SessionState:
    return read_state(link, SESSION, Plain())


@pytest.fixture
def far(proxy: Proxy) -> Iterator[RedisLink]:
    """A link through the proxy."""
    with closing(open_link(proxy.url, timeout=1.0)) as link:
        yield link


# --- what is lost on the way -----------------------------------------------------------


def test_a_lost_reply_is_answered_again(far: RedisLink, proxy: Proxy) -> None:
    create(far, enqueue("a"), enqueue("b"))
    session = join(far)
    (first,) = session.commit([("claim", 1)])
    before = state(far).sequence
    proxy.drop_next_reply(b"EVALSHA")

    (second,) = session.commit([end(first), ("claim", 1)])

    assert proxy.dropped()
    found = state(far)
    assert (found.sequence, found.steps) == (before + 1, 1)
    assert found.claimed == {second.spec.key: second.number}
    session.commit([end(second), ("claim", 1)])
    assert state(far).status == "completed"


def test_a_lost_reply_to_a_refusal_is_a_refusal(far: RedisLink, proxy: Proxy) -> None:
    create(far, enqueue())
    session = join(far)
    proxy.drop_next_reply(b"EVALSHA")

    with pytest.raises(Fenced):
        session.commit([("end", 1, 9, "completed", b"\x01"), ("claim", 1)])

    assert proxy.dropped()
    assert len(session.commit([("claim", 1)])) == 1  # the claim was void, not the token


def test_a_token_whose_retirement_was_not_heard_of_is_retired_once(far: RedisLink, proxy: Proxy) -> None:
    create(far, enqueue("a", queue="gpu"))
    session = join(far, retires=True)
    proxy.drop_next_reply(b"EVALSHA")

    assert session.commit([("claim", 1)]) == []

    assert proxy.dropped()
    assert session.retired
    assert len(session.emitted) <= 1


def test_a_request_that_was_held_up_and_sent_again_is_done_once(redis_server: Server, redis_url: str) -> None:
    with closing(open_link(redis_url, timeout=0.3)) as link:
        create(link, enqueue("a"), enqueue("b"), enqueue("c"))
        session = join(link)
        redis_server.freeze()
        with ThreadPoolExecutor(
            1
        ) as threads:  # the first request waits in the server's socket, and is given up
            claimed = threads.submit(session.commit, [("claim", 1)])
            with pytest.raises(TimeoutError):
                claimed.result(0.8)
            redis_server.thaw()
            (first,) = claimed.result(10)

        (second,) = session.commit([end(first), ("claim", 1)])

        assert state(link).claimed == {second.spec.key: second.number}


@pytest.mark.parametrize("mark", ["", "!"])
def test_a_token_is_taken_also_if_the_request_has_to_be_sent_again(
    far: RedisLink, proxy: Proxy, mark: str
) -> None:
    create(far, enqueue())
    session = join(far)
    session.commit([("claim", 1)])
    if not mark:
        far.client.zadd(f"{keys_of(SESSION)}tok", {session.token: 1})  # its lease is over
    reaper = RedisSession(far, SESSION, Plain())
    reaper.read("x")  # on the connection that breaks
    proxy.at_message(1, lambda: None)

    reaper.commit([("release", 1, 1), ("claim", 0)], mode=f"T{session.token}{mark}")

    assert (reaper.sender.tries, state(far).claimed) == (2, {})
    with pytest.raises(Fenced):
        session.commit([("claim", 1)])
    reaper.close()


@pytest.mark.parametrize("how", ["cut", "flush"])
def test_a_connection_that_is_cut_and_scripts_that_are_forgotten_are_no_matter(
    far: RedisLink, proxy: Proxy, how: str
) -> None:
    create(far, enqueue("a"), enqueue("b"))
    session = join(far)
    (first,) = session.commit([("claim", 1)])
    proxy.cut() if how == "cut" else proxy.server.ask("SCRIPT", "FLUSH")

    (second,) = session.commit([end(first), ("claim", 1)])

    assert second.spec.task_id == "b"


def test_a_server_that_is_away_for_a_while_is_waited_for(own_redis: Callable[..., Server]) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    with closing(open_link(server.url)) as link:
        create(link, enqueue("a"), enqueue("b"), enqueue("c"))
        session = join(link)
        (first,) = session.commit([("claim", 1)])
        server.kill()
        back = threading.Timer(0.7, server.start)
        back.start()

        (second,) = session.commit([end(first), ("claim", 1)])  # its scripts are gone, what it held is not

        back.join()
        assert (first.spec.task_id, second.spec.task_id) == ("a", "b")
        assert state(link).steps == 1
        assert state(link).claimed == {second.spec.key: second.number}


def test_a_server_that_stays_away_is_given_up_and_nothing_more_is_committed(
    far: RedisLink, proxy: Proxy
) -> None:
    create(far, enqueue())
    session = join(far)
    session.sender.patience = 0
    proxy.refuse()

    with pytest.raises(ServerGone):
        session.commit([("claim", 1)])
    proxy.resume()
    with pytest.raises(SessionError, match="not known"):
        session.commit([("claim", 1)])


def test_after_an_interrupt_nothing_more_is_committed(
    link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(link, enqueue())
    session = join(link)
    session.commit([])
    wire = session.sender._wire
    assert wire is not None

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(wire), "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.commit([("claim", 1)])
    monkeypatch.undo()

    with pytest.raises(SessionError, match="KeyboardInterrupt"):
        session.commit([("claim", 1)])


def test_a_server_without_room_does_all_of_a_commit_or_nothing(
    redis_server: Server, server_link: RedisLink, redis_url: str
) -> None:
    create(server_link, enqueue("a"), enqueue("b"))
    session = join(server_link)
    session.sender.patience = 0
    (first,) = session.commit([("claim", 1)])
    before = facts(state(server_link))
    redis_server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        for op in (enqueue("c"), ("put", "x", b"\x01", -1), ("append", "x", b"\x01")):
            with pytest.raises(ServerFull):
                session.commit([op, end(first), ("claim", 1)])
            assert facts(state(server_link)) == before

        (second,) = session.commit([end(first), ("claim", 1)])  # what is done makes room
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")

    found = state(server_link)
    assert (found.steps, len(found.ready), list(found.claimed)) == (1, 0, [second.spec.key])


def test_after_a_body_that_took_its_time_it_is_known_whether_more_is_ready(
    server_link: RedisLink, redis_url: str
) -> None:
    create(server_link, *(enqueue(f"t{n}") for n in range(5)))
    session = join(server_link)
    session.quick = math.inf
    (claim,) = session.commit([("claim", 1)])
    (claim,) = session.commit([end(claim), ("claim", 1)])
    assert session.ready == -1  # nobody has looked

    session.quick = 0.0
    session.commit([end(claim), ("claim", 1)])

    assert session.ready == 2


# --- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"), [("c", "hash"), ("q:default", "zset"), ("v", "hash"), ("done", "zset"), ("tok", "zset")]
)
def test_a_key_that_something_else_uses_is_named(link: RedisLink, name: str, kind: str) -> None:
    create(link, enqueue())
    session = join(link)
    claims = session.commit([("claim", 1)])
    link.client.delete(keys_of(SESSION) + name)
    link.client.set(keys_of(SESSION) + name, "mine")

    with pytest.raises(KeyTaken) as caught:
        session.commit([*map(end, claims), ("claim", 1)], mode="q")

    assert caught.value.ids["keys"] == {keys_of(SESSION) + name: "string"}
    assert f"not a {kind}" in str(caught.value)


def test_a_value_that_another_has_changed_is_a_conflict(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1))
    one, other = join(link), join(link)
    found = one.read("x")
    assert found is not None
    other.commit([("put", "x", b"\x02", found[1])])

    with pytest.raises(WriteConflict, match="'x'"):
        one.commit([("put", "x", b"\x03", found[1])])

    found = one.read("x")
    assert found is not None
    assert found[0] == b"\x02"
    one.commit([("put", "x", b"\x03", -1)])


def test_a_session_that_is_not_there_is_said_so(link: RedisLink) -> None:
    session = RedisSession(link, SESSION, Plain())

    for ask in (lambda: session.commit([]), lambda: session.read("x"), lambda: state(link)):
        with pytest.raises(NoSession, match=SESSION):
            ask()


def test_a_late_result_of_an_attempt_that_is_over_costs_the_token_nothing(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("b"))
    session = join(link)
    (first,) = session.commit([("claim", 1)])
    session.commit([("end", first.spec.key, first.number, "lost", "TimeoutError"), ("claim", 1)])

    with pytest.raises(Fenced):
        session.commit([end(first), ("claim", 0)])

    (second,) = session.held.values()
    session.commit([end(second), ("claim", 1)])
    assert list(state(link).completed) == ["b"]


def test_a_frozen_session_is_waited_for(server_link: RedisLink, redis_url: str) -> None:
    create(server_link, enqueue())
    session, hasty = join(server_link), RedisSession(server_link, SESSION, Plain())
    hasty.sender.patience = 0
    with ThreadPoolExecutor(1) as threads:
        with frozen(server_link, SESSION):
            with pytest.raises(SessionBusy):
                hasty.commit([("claim", 0)])
            with pytest.raises(SessionBusy), frozen(server_link, SESSION):
                pass
            before = state(server_link).sequence
            claimed = threads.submit(session.commit, [("claim", 1)])
            with pytest.raises(TimeoutError):
                claimed.result(0.2)
            assert state(server_link).sequence == before

        assert len(claimed.result(10)) == 1

    hasty.commit([("claim", 0)])  # it was refused, and is not broken


def test_waiting_for_a_thaw_takes_nothing_off_the_patience_for_a_server(
    far: RedisLink, proxy: Proxy, server_link: RedisLink
) -> None:
    create(server_link, enqueue())
    session = join(far)
    session.sender.patience = 0.3
    session.read("x")  # opens its wire

    def cut_and_wait() -> None:
        made = proxy.connections
        proxy.cut()
        deadline = time.monotonic() + 10
        while proxy.connections == made and not claimed.done():
            assert time.monotonic() < deadline

    with ThreadPoolExecutor(1) as threads:
        with frozen(server_link, SESSION):
            claimed = threads.submit(session.commit, [("claim", 1)])
            cut_and_wait()
            with pytest.raises(TimeoutError):
                claimed.result(0.6)
            cut_and_wait()

        assert len(claimed.result(10)) == 1


def test_a_freeze_whose_maker_has_died_is_over_in_its_time(link: RedisLink) -> None:
    create(link, enqueue())
    session = join(link)
    session.sender.patience = 0
    session.sender.stamp = "1000000000.0"
    with frozen(link, SESSION, 5.0):
        until = float(link.client.hget(keys_of(SESSION) + "h", "frozen") or 0)
        with pytest.raises(SessionBusy):
            session.commit([("claim", 1)])
        session.sender.stamp = repr(until + 1)

        assert len(session.commit([("claim", 1)])) == 1

    session.sender.stamp = repr(until - 1)
    session.commit([("claim", 0)])


# --- what a worker sees ----------------------------------------------------------------


def test_after_its_time_a_slice_claims_nothing(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("b"))
    session = join(link, retires=True)
    (first,) = session.commit([("claim", 1)])
    session.until = 0.0

    assert session.commit([end(first), ("claim", 1)]) == []

    assert session.over
    assert not session.retired  # it has to leave by itself
    session.commit([("claim", 0)], mode="q")
    assert session.retired


def test_values_are_read_as_of_one_moment_and_once_per_attempt(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1), ("append", "y", b"\x02"), ("append", "y", b"\x03"))
    session = join(link)
    reader = session.reader()

    reader.prefetch(["x", "y", "z"])
    session.commit([("put", "x", b"\x09", -1)])

    assert values_of(reader, "x", "y") == [(b"\x01",), (b"\x90", b"\x02", b"\x03")]
    assert reader.read("z") is None
    assert sorted(reader.names()) == ["x", "y"]
    assert values_of(session.reader(), "x") == [(b"\x09",)]

    assert reader.read("later") is None
    session.commit([("put", "later", b"\x01", -1), ("skipped", "b")])
    assert reader.read("later") is None
    assert reader.gave_nothing("b") is True
    assert session.reader().read("later") is not None


def test_a_result_of_an_earlier_round_is_there_and_counts_for_nothing(link: RedisLink) -> None:
    create(link, enqueue())
    session = join(link)
    (first,) = session.commit([("claim", 1)])
    session.commit([end(first)])
    assert session.reader().gave_nothing("a") is False

    session.commit([("skipped", "a")])

    reader = session.reader()
    assert reader.gave_nothing("a") is True
    found = reader.read("a" + RESULT)
    assert found is not None
    assert found[0] == b"\x01"
    assert reader.gave_nothing("b") is False


def test_time_is_the_servers(link: RedisLink) -> None:
    create(link)
    session = join(link)
    seconds, micros = link.client.time()

    assert abs(session.clock() - (seconds + micros / 1e6)) < 5


class Picky(Plain):
    """Somebody without the key for one value."""

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell:
        if data == b"sealed":
            raise UnsafeCheckpoint(f"{name} is not opened: its seal does not hold.")
        return data


def test_a_spec_that_cannot_be_opened_is_set_aside_and_the_session_pauses(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("bad", b"sealed"), enqueue("c"))
    session = join(link)
    picky = RedisSession(link, SESSION, Picky(), session.token, session.sender.follows, queue="default")

    claims = picky.commit([("claim", 3)])

    assert [claim.spec.task_id for claim in claims] == ["a", "c"]
    found = state(link)
    assert found.status == picky.status == "paused"
    assert "seal does not hold" in found.reason
    assert [found.specs[key].task_id for key in found.dead] == ["bad"]
    assert set(found.claimed) == set(picky.held) == {claim.spec.key for claim in claims}


def test_a_reason_that_cannot_be_sent_as_it_is_is_shown(link: RedisLink) -> None:
    create(link, enqueue())
    session = join(link)
    (claim,) = session.commit([("claim", 1)])

    session.commit([end(claim), ("status", "closing", "caf\udce9 is closed"), ("claim", 1)])

    assert state(link).status == "completed"
    assert state(link).reason == "caf\\udce9 is closed"


def test_a_claim_is_what_was_enqueued(link: RedisLink) -> None:
    data = b"\x1f\x1e\x00\xff|,"
    create(link, ("enqueue", "größe ☂", data, -3, 7, "default", "pass"))
    session = join(link)

    (claim,) = session.commit([("claim", 1)])

    assert claim == Claim(
        TaskSpec("größe ☂", data, "pending", -3, 0, 7, "pass", 0, 0.0, "default", 1, 0), claim.number
    )
