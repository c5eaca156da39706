"""A session in Redis of tomorrow's format, beside today's code: it is refused by name and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.engine.reaping import release_the_dead
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS, host_key, place
from graflow_ckpt.fleet.reaping import OPAQUE, Hands
from graflow_ckpt.fleet.status import read_all
from graflow_ckpt.fleet.steward import FleetRepair
from graflow_ckpt.sessions.redis.keys import FORMAT, OLDEST, START, keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import frozen, read_paged, read_state
from tests.acceptance.fleet_tasks import named
from tests.acceptance.fleets import Fleet
from tests.chaos.pools import pools, until

REFUSED = rf"Session tomorrow .* has format {FORMAT + 1}, which this graflow-ckpt does not know"


def of_tomorrow(mine: Fleet, **tables: dict[str, str]) -> dict[str, Any]:
    """Submit a session and give it tomorrow's format; all that is kept of it."""
    mine.submit(named("a"), session="tomorrow")
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", FORMAT + 1)
    return kept(mine)


def kept(mine: Fleet) -> dict[str, Any]:
    """Every key of the session, as the server dumps it; and that it is listed."""
    client: Any = mine.client.link.client
    found = {key: client.dump(key) for key in client.scan_iter(match=f"{keys_of('tomorrow')}*")}
    return {**found, "listed": client.zscore(SESSIONS, "tomorrow")}


def begun_on(mine: Fleet) -> None:
    """A slice that this machine lists; its process is gone, and its lease is over."""
    client: Any = mine.client.link.client
    prefix = keys_of("tomorrow")
    (token,) = (name.decode() for name in client.zrange(f"{prefix}tok", 0, -1))
    client.hset(f"{prefix}own", token, "{}\x1e*")
    client.zadd(f"{prefix}tok", {token: 0})
    client.hset(host_key(place()), f"tomorrow {token}", "{}")


def sweep(client: Client) -> None:
    sweeper = FleetRepair(Hands(client.link, client.carrier), place())
    sweeper.here()
    sweeper.round()
    sweeper.tidy()


ASKED: dict[str, Callable[[Client], object]] = {
    "status": lambda c: c.session("tomorrow").status(),
    "pause": lambda c: c.session("tomorrow").pause(),
    "cancel": lambda c: c.session("tomorrow").cancel(),
    "resume": lambda c: c.session("tomorrow").resume(),
    "purge": lambda c: c.session("tomorrow").purge(),
    "value": lambda c: c.session("tomorrow").value("a.__result__"),
    "pending": lambda c: c.session("tomorrow").pending(),
    "checkpoint": lambda c: c.session("tomorrow").checkpoint(),
    "declined": lambda c: c.session("tomorrow").declined(),
    "state": lambda c: read_state(c.link, "tomorrow", OPAQUE),
    "pages": lambda c: read_paged(c.link, "tomorrow", OPAQUE),
    "freeze": lambda c: frozen(c.link, "tomorrow").__enter__(),
    "commit": lambda c: RedisSession(c.link, "tomorrow", OPAQUE).commit([("claim", 0)]),
    "start": lambda c: c.link.script(START)([f"{keys_of('tomorrow')}c"], ["", "o", 1000, ""]),
    "reap": lambda c: release_the_dead(c.link, "tomorrow", OPAQUE),
}


@pytest.mark.parametrize("what", ASKED)
def test_whoever_asks_is_refused_by_name_and_nothing_is_changed(mine: Fleet, what: str) -> None:
    of_tomorrow(mine)
    begun_on(mine)
    before = kept(mine)

    with pytest.raises(SchemaUnsupported, match=REFUSED) as refused:
        ASKED[what](mine.client)

    assert "Upgrade graflow-ckpt here" in refused.value.hint
    assert (refused.value.session, refused.value.version) == ("tomorrow", str(FORMAT + 1))
    assert kept(mine) == before


def test_a_session_whose_counters_are_elsewhere_is_refused_too(mine: Fleet) -> None:
    of_tomorrow(mine)
    mine.client.link.client.hdel(f"{keys_of('tomorrow')}c", "c")
    before = kept(mine)

    with pytest.raises(SchemaUnsupported, match=REFUSED):
        mine.client.session("tomorrow").status()
    sweep(mine.client)

    assert kept(mine) == before


def test_it_is_listed_beside_the_others(mine: Fleet) -> None:
    of_tomorrow(mine)
    mine.submit(named("b"), session="today")

    listed = {
        status.session: (status.status, status.reason)
        for status in read_all(mine.client.link, mine.client.sessions())
    }

    assert listed["today"][0] == "running"
    assert listed["tomorrow"][0] == "unknown"
    assert f"has format {FORMAT + 1}" in listed["tomorrow"][1]


def test_a_steward_leaves_it_to_those_that_know_it(mine: Fleet) -> None:
    of_tomorrow(mine)
    begun_on(mine)
    before, listed = kept(mine), mine.client.link.client.hgetall(host_key(place()))

    sweep(mine.client)

    assert kept(mine) == before
    assert mine.client.link.client.hgetall(host_key(place())) == listed
    assert mine.client.link.client.zscore(ACTIVE, "tomorrow") is not None


def number(mine: Fleet, session: str) -> bytes:
    client: Any = mine.client.link.client
    found: bytes = client.hget(f"{keys_of(session)}c", "format")
    return found


def test_a_new_session_is_of_the_format_whose_workers_note_what_they_make(mine: Fleet) -> None:
    mine.submit(named("a"), session="today")

    assert number(mine, "today") == b"3" == b"%d" % FORMAT


def test_a_session_of_the_oldest_format_is_worked_at_and_stays_one(mine: Fleet) -> None:
    session = mine.submit(named("a"), session="yesterday")
    mine.client.link.client.hset(f"{keys_of('yesterday')}c", "format", OLDEST)

    with pools(mine.pool(workers="1")):
        assert session.wait(30).status == "completed", mine.said

    assert number(mine, "yesterday") == b"2"


@pytest.mark.parametrize("said", ["1", "02", "2.0", "", "3 ", "x"])
def test_another_format_is_refused_by_scripts_and_readers_alike(mine: Fleet, said: str) -> None:
    of_tomorrow(mine)
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", said)

    for what in ("commit", "status", "pages"):
        with pytest.raises(SchemaUnsupported, match="which this graflow-ckpt does not know"):
            ASKED[what](mine.client)


def test_a_worker_declines_it_by_name_and_runs_the_others(mine: Fleet) -> None:
    before = of_tomorrow(mine)
    today = mine.submit(named("b"), session="today")

    with pools(mine.pool(workers="2")):
        assert today.wait(30).status == "completed", mine.said
        assert until(lambda: "session tomorrow is left to other workers" in mine.said), mine.said

    assert "Traceback" not in mine.said
    assert kept(mine) == before
    mine.client.link.client.hset(f"{keys_of('tomorrow')}c", "format", FORMAT)
    with pools(mine.pool(workers="1")):
        assert mine.client.session("tomorrow").wait(30).status == "completed", mine.said
