"""A session that is read page by page: all of it, as of one moment."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import NoSession, SessionBusy
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions import tables
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.redis import RedisSession
from graflow_ckpt.sessions.tables import read_paged, read_state, write_state
from tests.unit.sessions.moves import Drawn, transition
from tests.unit.sessions.pair import SESSION, Plain, facts


def written(link: RedisLink, specs: int = 10, values: int = 5) -> SessionState:
    state = SessionState(SESSION, ("a",))
    ops: list[Any] = [
        ("enqueue", f"t{n}", b"\x01", n % 3, 2, ("default", "gpu")[n % 2], "direct") for n in range(specs)
    ]
    ops += [("put", f"v{n}", b"\x02", -1) for n in range(values)]
    ops += [("append", "list", b"%c" % (n % 100)) for n in range(values)]
    apply(state, ops, 0.0)
    write_state(link, state, Plain(), {}, verb="create")
    return state


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data(), moves=st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=5, max_size=25))
def test_what_is_read_by_pages_is_what_is_read_at_once(
    server_link: RedisLink, data: st.DataObject, moves: list[float]
) -> None:
    server_link.client.flushall()
    state, now = SessionState(SESSION, ("a",)), 1000.0
    for later in moves:
        now += later
        apply(state, transition(Drawn(data), state, list(state.claimed), now), now)
    write_state(server_link, state, Plain(), {}, verb="create")

    by_pages = read_paged(server_link, SESSION, Plain(), page=2)

    assert facts(by_pages) == facts(read_state(server_link, SESSION, Plain()))


def test_large_tables_come_whole(server_link: RedisLink) -> None:
    server_link.client.flushall()
    written(server_link, specs=50_000, values=3000)

    found = read_paged(server_link, SESSION, Plain())

    assert (len(found.specs), len(found.ready), len(found.values)) == (50_000, 50_000, 3001)
    assert len(found.appended["list"]) == 3000
    assert facts(found) == facts(read_state(server_link, SESSION, Plain()))


def test_commits_wait_until_the_last_page_was_read(
    server_link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_link.client.flushall()
    written(server_link)
    sender = RedisSession(server_link, SESSION, Plain())
    began, over = threading.Event(), threading.Event()
    read = tables._lists

    def slow(*arguments: Any) -> Any:
        began.set()
        assert not over.wait(0.3)
        return read(*arguments)

    monkeypatch.setattr(tables, "_lists", slow)

    def commit() -> None:
        assert began.wait(20)
        sender.commit([("put", "v0", b"\x07", -1)])
        over.set()

    thread = threading.Thread(target=commit)
    thread.start()
    found = read_paged(server_link, SESSION, Plain())
    thread.join()
    sender.close()

    assert found.values["v0"][0] == b"\x02"
    assert read_state(server_link, SESSION, Plain()).values["v0"][0] == b"\x07"


def test_what_changed_meanwhile_is_not_taken_for_one_moment(
    server_link: RedisLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader was stopped for longer than others wait."""
    server_link.client.flushall()
    written(server_link)
    sender = RedisSession(server_link, SESSION, Plain())
    read = tables._lists

    def late(*arguments: Any) -> Any:
        sender.commit([("put", "v0", b"\x07", -1)])  # waits until the freeze is over
        return read(*arguments)

    monkeypatch.setattr(tables, "_lists", late)
    with pytest.raises(SessionBusy, match="changed while it was read"):
        read_paged(server_link, SESSION, Plain(), seconds=0.05)
    sender.close()


def test_a_session_that_is_not_there_is_named(server_link: RedisLink) -> None:
    server_link.client.flushall()

    with pytest.raises(NoSession, match=SESSION):
        read_paged(server_link, SESSION, Plain())
    assert server_link.client.keys(f"{keys_of(SESSION)}*") == []
