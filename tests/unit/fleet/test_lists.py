"""Who works where, and what is announced when a slice ends."""

from __future__ import annotations

import time
from typing import Any

from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.lists import ACTIVE, Presence, host_key, owner_text, place
from graflow_ckpt.links.processes import is_near, myself, owner_from
from tests.unit.fleet.played import bag, task_of


def test_a_place_is_where_a_pid_means_the_same_process() -> None:
    assert place() == place()
    assert myself().boot in place()
    assert set(place()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def test_an_owner_is_read_as_it_was_written_and_nonsense_is_nobody() -> None:
    me = myself()

    assert owner_from(owner_text(me)) == me
    assert is_near(me)
    for text in ("", "x", "{}", "[1]", '{"pid": 1}'):
        assert owner_from(text) is None


def test_a_slice_is_listed_while_it_runs(client: Client) -> None:
    redis: Any = client.link.client
    presence = Presence(client.link, "somebody")
    pipe = redis.pipeline(transaction=False)

    presence.begin("s", "e1t1", pipe)
    pipe.execute()
    during = redis.hgetall(host_key(place()))
    presence.end("s", "e1t1")

    assert during == {b"s e1t1": b"somebody"}
    assert redis.hgetall(host_key(place())) == {}


def test_what_is_due_before_the_next_round_is_announced(client: Client) -> None:
    redis: Any = client.link.client
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    client.submit_calls(task_of("late"), None, Terms("late", delay=30))
    bag(client, "none", tasks=1)
    for name in ("soon", "late", "none"):
        redis.zadd(ACTIVE, {name: 10**15})
        Presence(client.link, "somebody").end(name, "e1t1")

    looks = {name: redis.zscore(ACTIVE, name) for name in ("soon", "late", "none")}
    assert looks["late"] == looks["none"] == 10**15
    assert 0 < looks["soon"] / 1000 - time.time() <= 0.3


def test_a_session_that_has_left_the_rota_is_not_brought_back(client: Client) -> None:
    redis: Any = client.link.client
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    redis.zrem(ACTIVE, "soon")

    Presence(client.link, "somebody").end("soon", "e1t1")

    assert redis.zscore(ACTIVE, "soon") is None
