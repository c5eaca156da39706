"""A session in whose tables something else has written is named wherever it is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.errors import CheckpointError, GraphError, KeyTaken, SessionDamaged, SessionError
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.engine.resuming import Written
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.sessions.redis.facts import RedisFacts
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.tables import read_paged, read_state
from tests.unit.fleet.played import Player, bag

SESSION = "s"
PREFIX = keys_of(SESSION)


@pytest.fixture
def handle(client: Client) -> Handle:
    """A session with something in every table."""
    found = bag(client, SESSION, 5)
    player = Player(client, SESSION)
    for how in (["completed", b"\x01"], ["failed", "", "ValueError: no"], ["retry", 9e9, "once more"]):
        (claim,) = player.session.commit([("claim", 1)])
        player.session.commit([("end", claim.spec.key, claim.number, *how), ("claim", 0)])
    player.session.commit([("put", "x", b"\x01", -1), ("append", "y", b"\x02"), ("claim", 1)])
    return found


READERS: dict[str, Callable[[Handle, Client], object]] = {
    "status": lambda handle, client: handle.status(),
    "facts": lambda handle, client: handle.facts(),
    "pending": lambda handle, client: handle.pending(),
    "failures": lambda handle, client: handle.failures(),
    "declined": lambda handle, client: handle.declined(),
    "results": lambda handle, client: handle.results(0),
    "events": lambda handle, client: list(islice(handle.events(0), 3)),
    "value": lambda handle, client: handle.value("x"),
    "doubts": lambda handle, client: handle.answer("t9", "skip"),
    "checkpoint": lambda handle, client: handle.checkpoint(),
    "held": lambda handle, client: RedisFacts(client.link, SESSION).held(
        "e1t1", SealedCells(SESSION, client.keyring)
    ),
    "paged": lambda handle, client: read_paged(client.link, SESSION, SealedCells(SESSION, client.keyring)),
    "state": lambda handle, client: read_state(client.link, SESSION, SealedCells(SESSION, client.keyring)),
}

ODD = [b"", b"-1", b"1e400", b"9" * 30, b"[" * 5000, b"nan"]
JUNK = st.one_of(st.binary(max_size=8), st.sampled_from(ODD))
TABLES = ("c", "h", "dead", "g", "sk", "pa", "er", "n", "t", "v", "own", "qt")


def refusal(read: Callable[[Handle, Client], object], handle: Handle, client: Client) -> str:
    try:
        read(handle, client)
    except (CheckpointError, SessionError, KeyTaken) as error:
        return str(error)
    except TimeoutError:
        pass
    return ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(TABLES), st.integers(0, 30), st.integers(0, 200), JUNK, st.booleans())
def test_whatever_stands_in_a_field_the_session_is_named(
    handle: Handle, client: Client, redis: Any, table: str, which: int, at: int, junk: bytes, whole: bool
) -> None:
    key = PREFIX + table
    fields = sorted(redis.hgetall(key).items()) or [(b"task", b"1 2 3")]
    field, before = fields[which % len(fields)]
    if field == b"format":
        return  # of a format that is not known here: tested elsewhere
    known = redis.hexists(key, field)
    redis.hset(key, field, junk if whole else before[: at % (len(before) + 1)] + junk)

    try:
        for read in READERS.values():
            said = refusal(read, handle, client)
            assert not said or SESSION in said
    finally:
        redis.hset(key, field, before) if known else redis.hdel(key, field)


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), 1e300])
@pytest.mark.parametrize(
    "member", [b"\xff", b"", b"1\x1fa\x1f", b"x\x1fa\x1f0\x1f0\x1f0\x1fdirect\x1f0\x1f0\x1fq\x1f0\x1f"]
)
@pytest.mark.parametrize("table", ["q:default", "dl"])
def test_a_spec_that_is_none_is_damage(
    handle: Handle, client: Client, table: str, member: bytes, score: float, redis: Any
) -> None:
    redis.zadd(PREFIX + table, {member: score})

    for name in ("pending", "checkpoint", "paged", "state"):
        with pytest.raises(SessionDamaged, match=r"Session s at .* cannot be read"):
            READERS[name](handle, client)


def test_more_calls_than_memory_holds_are_damage(handle: Handle, client: Client, redis: Any) -> None:
    redis.hset(PREFIX + "h", mapping={"calls": str(10**17), "workflow": "w"})
    line = redis.hget(PREFIX + "c", "c")
    redis.hset(PREFIX + "c", "c", line.replace(b"running", b"completed"))

    with pytest.raises(SessionDamaged, match="it says that it has 100000000000000000 calls"):
        handle.results(0)


MANY = b"[" + b"[]," * 12_000_000 + b"[]]"


@pytest.mark.parametrize(("field", "readers"), [
    (b"starts", ("facts", "state", "paged")), (b"io", ("reap",)), (b"trace", ("trace",)),
])  # fmt: skip
def test_json_that_takes_more_memory_than_its_bytes_justify_is_damage(
    handle: Handle, client: Client, field: bytes, readers: tuple[str, ...], redis: Any
) -> None:
    cells = SealedCells(SESSION, client.keyring)
    home = SharedHome(client.link, SESSION, cells, "", None, Written())
    more: dict[str, Callable[[Handle, Client], object]] = {
        **READERS,
        "reap": lambda handle, client: release(client.link, SESSION, cells, "e1t1", "", forced=True),
        "trace": lambda handle, client: home.join_trace(),
    }
    redis.hset(PREFIX + "h", field, MANY)

    for name in readers:
        with pytest.raises(SessionDamaged, match=f"{field.decode()} has 36.0 MB of JSON with too many"):
            more[name](handle, client)


def test_a_count_of_made_tasks_that_is_none_is_damage(client: Client, redis: Any) -> None:
    bag(client, SESSION, 1)
    player = Player(client, SESSION)
    player.session.commit([("task", "m", b"\x01"), ("claim", 0)])
    redis.hset(PREFIX + "h", "makes", "many")

    with pytest.raises(SessionDamaged, match=r"Session s at .* cannot be read"):
        player.session.commit([("claim", 1)])

    redis.hset(PREFIX + "h", "makes", "1")


@pytest.mark.parametrize("record", [b"", b"1\x1f!x", b"1\x1fe1t1\x1fno\x1fa", b"\xff"])
def test_a_claim_that_is_none_is_damage(handle: Handle, client: Client, record: bytes, redis: Any) -> None:
    redis.hset(PREFIX + "c", "999", record)

    for name in ("pending", "held"):
        with pytest.raises(SessionDamaged, match=r"Session s at .* cannot be read"):
            READERS[name](handle, client)


def test_a_spec_that_cannot_be_read_is_set_aside(client: Client, redis: Any) -> None:
    bag(client, SESSION, 1)
    player = Player(client, SESSION)
    redis.zadd(PREFIX + "q:default", {b"7\x1fa\x1fmany" + b"\x1f0" * 9: -(2.0**60)})

    claims = player.session.commit([("claim", 2)])

    assert [claim.spec.task_id for claim in claims] == ["t0"]
    assert redis.hkeys(PREFIX + "dead") == [b"7"]


def test_a_spec_without_a_key_is_damage_to_a_worker(client: Client, redis: Any) -> None:
    bag(client, SESSION, 1)
    player = Player(client, SESSION)
    redis.zadd(PREFIX + "q:default", {b"\xff\x1f\x1f\x1f": -(2.0**60)})

    with pytest.raises(SessionDamaged, match=r"Session s at"):
        player.session.commit([("claim", 2)])


@pytest.mark.parametrize("steps", [0, -1, 10**12, 10**400, "5"])
def test_a_number_of_steps_that_would_be_damage_is_refused(handle: Handle, steps: Any) -> None:
    with pytest.raises(GraphError, match=r"max_steps: .* is not "):
        handle.resume(steps)
    assert handle.status().max_steps is None
