"""Junk and wrong types under the keys of a fleet, as a user who can write to its server might leave them."""

from __future__ import annotations

from typing import Any

from graflow_ckpt.fleet.lists import ACTIVE, POOLS, SESSIONS, host_key, place
from graflow_ckpt.sessions.redis.keys import FORMAT, keys_of

WRONG_TYPES = (
    "rq:queues", "rq:workers", "rq:workers:graflow-default", "rq:wip:graflow-default",
    "rq:queue:graflow-default:intermediate", "graflow:pools",
)  # fmt: skip
JUNK = (b"\xff", b"", b"a b", b"../x", b"x" * 65, b"\x1b[31m", "größe".encode())


def wrong_types(redis: Any) -> None:
    """Something else under the keys that the fleet shares, and under those of sessions of their own."""
    for key in WRONG_TYPES:
        redis.set(key, "junk")
    redis.set(host_key(place()), "junk")
    for name, part in (("bad-c", "c"), ("bad-tok", "tok"), ("bad-own", "own"), ("bad-h", "h")):
        prefix = keys_of(name)
        redis.hset(f"{prefix}c", mapping={"c": "running|1|1|1|1|1|||f|default|0|", "format": FORMAT})
        redis.delete(f"{prefix}{part}")
        redis.set(f"{prefix}{part}", "junk")
        redis.zadd(ACTIVE, {name: 1})
        redis.zadd(SESSIONS, {name: 1})


def junk(redis: Any) -> None:
    """Members and fields that nothing of ours has written."""
    for name in JUNK:
        redis.zadd(ACTIVE, {name: 1})
        redis.zadd(SESSIONS, {name: float("inf")})
        redis.zadd(POOLS, {name: 9e15})
        redis.hset(host_key(place()), name, name)
        redis.hset(host_key(place()), name + b" e1t1", b'{"pid": "../.."}')
        redis.rpush("rq:queue:graflow-default", name)
        redis.rpush("rq:queue:graflow-default:intermediate", name)
        redis.zadd("rq:wip:graflow-default", {name: 1, name + b":x": 1})
        redis.sadd("rq:queues", b"rq:queue:graflow-" + name)
        redis.sadd("rq:workers", name)
        redis.set(b"graflow:pool:" + name, b"[" * 5000)
    for n, line in enumerate((b"", b"junk", b"running|x|||||||f||", b"\xff|" * 12, b"running" + b"|" * 30)):
        redis.hset(f"{keys_of(f'odd-{n}')}c", mapping={"c": line, "format": FORMAT})
        redis.zadd(ACTIVE, {f"odd-{n}": 1})
        redis.zadd(SESSIONS, {f"odd-{n}": 1})
