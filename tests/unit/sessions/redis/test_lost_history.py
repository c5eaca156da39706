"""A server that comes back with another history: nothing of the lost one is taken for part of the kept one.

A restore is what it is for a sender: all keys are as they were, and its connection is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from graflow_ckpt.core.errors import Fenced, SessionError, WriteConflict
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.fleet.handle import Changes
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis import sender as senders
from graflow_ckpt.sessions.redis.keys import CREATE, RENEW, START
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state, write_state
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.sessions.pair import SESSION, Plain
from tests.unit.sessions.redis.test_session import KEY, create, end, enqueue, join, state


@pytest.fixture
def link(server_link: RedisLink) -> RedisLink:
    server_link.client.flushall()
    return server_link


def kept(link: RedisLink) -> Callable[[], None]:
    """A snapshot; what it returns goes back to it."""
    keys = {key: link.client.dump(key) for key in link.client.keys("*")}

    def restore() -> None:
        link.client.flushall()
        for key, value in keys.items():
            link.client.restore(key, 0, value)
        link.client.client_kill_filter(_type="normal", skipme=True)

    return restore


def claimed(sender: RedisSession) -> Claim:
    (claim,) = sender.commit([("claim", 1)])
    return claim


def value(link: RedisLink, name: str) -> bytes:
    cell = state(link).values[name][0]
    assert isinstance(cell, bytes)
    return cell


# --- tokens and claims -----------------------------------------------------------------


def test_of_two_workers_with_the_first_token_of_a_history_the_lost_one_is_refused(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("b"))
    restore = kept(link)
    lost = join(link)
    theirs = claimed(lost)
    restore()
    rightful = join(link)
    ours = claimed(rightful)
    assert (theirs.spec, theirs.number) == (ours.spec, ours.number)
    assert lost.token != rightful.token

    with pytest.raises(Fenced):
        lost.commit([end(theirs, b"\x11"), ("claim", 1)])
    (second,) = rightful.commit([end(ours, b"\x07"), ("claim", 1)])

    assert value(link, "a.__result__") == b"\x07"
    assert second.spec.task_id == "b"


def test_a_token_from_before_is_that_of_who_began_on_it_in_the_kept_history(link: RedisLink) -> None:
    create(link, enqueue("a"))
    token = next(iter(link.client.zrange(KEY[:-1] + "tok", 0, -1)))
    restore = kept(link)
    senders = []
    for owner in ("lost", "rightful"):
        _, _, queue, began = link.script(START)([KEY], [token, owner, 15_000, "", new_nonce()])
        senders.append(
            RedisSession(link, SESSION, Plain(), token.decode(), began.decode(), queue=queue.decode())
        )
        if owner == "lost":
            restore()
    lost, rightful = senders

    with pytest.raises(Fenced):
        lost.commit([("claim", 1)])
    assert link.script(RENEW)([KEY], [token, lost.sender.name, 15_000]) == b"fenced"
    assert link.script(RENEW)([KEY], [token, rightful.sender.name, 15_000]) == b"running"
    assert claimed(rightful).spec.task_id == "a"


def test_who_has_heard_of_a_commit_that_is_lost_does_not_go_on_from_it(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("b"))
    owner = join(link)
    first = claimed(owner)
    restore = kept(link)
    (second,) = owner.commit([end(first), ("claim", 1)])
    restore()

    with pytest.raises(Fenced):
        owner.commit([end(second), ("claim", 1)])

    found = state(link)
    assert (found.steps, list(found.claimed)) == (0, [first.spec.key])


def test_a_commit_whose_reply_was_lost_is_answered_by_the_history_that_has_it(link: RedisLink) -> None:
    create(link, enqueue("a"), enqueue("b"))
    owner = join(link)
    first = claimed(owner)
    owner.commit([end(first), ("claim", 1)])
    with_it = kept(link)
    with_it()  # the same server once more: nothing is lost

    (second,) = owner.held.values()
    assert owner.commit([end(second), ("claim", 1)]) == []
    assert state(link).status == "completed"


# --- versions --------------------------------------------------------------------------


def test_a_value_read_in_the_lost_history_is_no_base_in_the_kept_one(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1), enqueue("a"))
    owner, other = join(link), join(link)
    claim = claimed(owner)
    restore = kept(link)
    other.commit([("put", "x", b"\x02", -1)])
    read = owner.reader(claim.spec.key).read("x")
    assert read is not None
    restore()
    join(link).commit([("put", "x", b"\x03", -1)])
    number = state(link).values["x"][1]
    assert isinstance(read[1], bytes)
    assert read[1].startswith(b"%d_" % number), "it is of the transition of the same number"

    with pytest.raises((WriteConflict, Fenced)):
        owner.commit([("put", "x", b"\x05", read[1]), end(claim), ("claim", 1)])
    with pytest.raises(WriteConflict):
        owner.commit([("put", "x", b"\x05", read[1])])

    assert value(link, "x") == b"\x03"


def test_what_was_made_of_a_value_of_the_lost_history_is_not_committed(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1), enqueue("a"))
    owner, other = join(link), join(link)
    claim = claimed(owner)
    restore = kept(link)
    other.commit([("put", "x", b"\x02", -1)])
    assert owner.reader(claim.spec.key).read("x") is not None
    restore()

    with pytest.raises(Fenced, match="'x'"):
        owner.commit([end(claim, b"\x22"), ("claim", 1)])

    assert owner.broken is None
    owner.commit([("release", claim.spec.key, 0), ("claim", 0)], mode="q")
    assert [spec.task_id for spec in state(link).pending()] == ["a"]


def test_what_was_read_before_a_restart_and_is_as_it_was_is_committed(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1), enqueue("a"))
    owner = join(link)
    claim = claimed(owner)
    reader = owner.reader(claim.spec.key)
    reader.prefetch(["x", "not there"])
    kept(link)()

    owner.commit([end(claim), ("claim", 1)])

    assert state(link).status == "completed"


def test_what_a_rewind_puts_back_has_versions_of_its_own(link: RedisLink) -> None:
    create(link, ("put", "x", b"\x01", -1))
    sender = join(link)
    before = sender.read("x")
    found = read_state(link, SESSION, Plain())
    link.client.delete(KEY[:-1] + "own", KEY[:-1] + "tok")
    write_state(link, found, Plain(), {}, verb="rewind")

    after = join(link).read("x")

    assert before is not None
    assert after is not None
    assert (before[0], before[1] == after[1]) == (after[0], False)


# --- somebody outside ------------------------------------------------------------------


def test_what_follows_a_lost_change_from_outside_is_refused_once_and_said(link: RedisLink) -> None:
    create(link)
    restore = kept(link)
    outside = RedisSession(link, SESSION, Plain())
    outside.commit([("put", "x", b"\x01", -1)])
    restore()

    with pytest.raises(SessionError, match="failover or the restore"):
        outside.commit([("put", "y", b"\x02", -1)])
    assert state(link).values == {}

    outside.commit([("put", "z", b"\x03", -1)])
    assert list(state(link).values) == ["z"]


def test_pages_of_a_submission_do_not_reach_the_session_of_another(link: RedisLink) -> None:
    lost, other = RedisSession(link, SESSION, Plain()), RedisSession(link, SESSION, Plain())
    line = "init|0|0|1|1|1|||f||"
    for sender in (lost, other):
        link.client.flushall()  # the first of them is lost
        assert link.script(CREATE)([KEY], [line, *sender.begins(), "epoch", "1"]) == b"created"

    other.commit([enqueue("theirs")])
    with pytest.raises(SessionError):
        lost.commit([enqueue("ours")])

    assert [spec.task_id for spec in state(link).pending()] == ["theirs"]


def test_who_was_stopped_within_a_retry_for_longer_than_is_remembered_does_it_once(
    redis_server: Server, link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(link)
    with Proxy(redis_server) as proxy, closing(open_link(proxy.url)) as far:
        outside = RedisSession(far, SESSION, Plain())
        before, calls = senders.time(), []

        def clock() -> float:
            calls.append(1)
            if len(calls) == 1:
                return before
            link.client.delete(f"{KEY[:-1]}x:{outside.token}")  # as it does after ten minutes
            return before + 601

        monkeypatch.setattr(senders, "time", clock)
        proxy.drop_next_reply(b"append-once")

        with pytest.raises(SessionError, match="may be committed, or not"):
            outside.commit([("append", "append-once", b"\x01")])

        assert state(link).appended == {"append-once": [b"\x01"]}
        outside.close()


# --- users -----------------------------------------------------------------------------


def test_a_user_without_channels_commits_and_follows(
    own_redis: Callable[..., Server],
) -> None:
    server = own_redis()
    server.ask("ACL", "SETUSER", "worker", "on", ">hunter2", "~graflow:*", "resetchannels", "+@all")
    with closing(open_link(server.url.replace("redis://", "redis://worker:hunter2@"))) as link:
        create(link, enqueue("a"))
        worker = join(link)

        worker.commit([end(claimed(worker)), ("claim", 1)])

        assert state(link).status == "completed"
        assert len(list(Changes(link, SESSION, 0.2))) > 1
