"""Junk and wrong types under the keys of a fleet: each costs at most its own session, and is named.

Jobs that a user without the key plants in RQ's part of Redis: none runs code or opens a connection. Sixty:
five ways in which a job can name code or an address, in twelve places from which RQ reads jobs. The worker
starts with them in place, runs a session, is killed while it runs another one, and starts again. Another
version of RQ is tried with `pip install --target FOLDER rq==2.9.1` and PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rq.exceptions import DequeueTimeout
from rq.serializers import JSONSerializer

from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS
from graflow_ckpt.fleet.worker import Tokens
from graflow_ckpt.links.redis import open_link
from tests.crash import fleet as tasks
from tests.crash.fleet import begun, go, killed, noted
from tests.crash.poisons import WRONG_TYPES, junk, wrong_types
from tests.crash.pools import pool
from tests.stretch import until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]


def test_who_does_not_wait_gets_nothing_from_a_queue_that_is_no_list(redis_url: str) -> None:
    """A timeout would be answered by asking again, at once and for ever: so RQ does in its burst mode."""
    link = open_link(redis_url)
    queue = Tokens("here", connection=link.client, serializer=JSONSerializer)
    link.client.set(queue.key, "no list")

    assert Tokens.dequeue_any([queue], None, link.client) is None
    with pytest.raises(DequeueTimeout):
        Tokens.dequeue_any([queue], 1, link.client)
    link.close()


@pytest.mark.parametrize("poison", [wrong_types, junk])
def test_poisoned_keys_stop_no_takeover_and_are_named(
    redis_url: str, tmp_path: Path, poison: Callable[[Any], None]
) -> None:
    link = open_link(redis_url)
    poison(link.client)
    with pool(redis_url, tmp_path / "one", n=1, lease=3.0) as first:
        held = begun(tasks.held, redis_url, tmp_path, "held")
        with pool(redis_url, tmp_path / "two", n=1, lease=3.0) as second:
            killed(first.pid)
            noted(tmp_path, "held", 2)
            go(tmp_path)
            assert held.result(30) == "held"
            named = WRONG_TYPES[:1] if poison is wrong_types else (ACTIVE,)
            until(lambda: all(name in first.said + second.said for name in named))  # by who removes it
            until(lambda: poison is wrong_types or link.client.zscore(SESSIONS, b"\xff") is None)
            text = first.said + second.said
    link.close()

    assert "Traceback" not in text
    assert "\x1b" not in text
    assert not re.search(r"worker-\d \(process \d+\) is gone", text)


@pytest.mark.parametrize("junk", [b"junk", {"a": "hash"}])
def test_a_program_that_is_junk_pauses_its_own_sessions_and_names_the_key(
    redis_url: str, tmp_path: Path, junk: Any
) -> None:
    link = open_link(redis_url)
    redis: Any = link.client
    bad = tasks.call(tasks.quick, redis_url, tmp_path, "bad")
    (key,) = redis.keys("graflow:code:*")
    redis.delete(key)
    if isinstance(junk, bytes):
        redis.set(key, junk)
    else:
        redis.hset(key, mapping=junk)
    with pool(redis_url, tmp_path, n=1, lease=300.0, code_patience=0.5) as fleet:
        good = tasks.call(tasks.held, redis_url, tmp_path, "good")
        go(tmp_path)

        assert good.result(30) == "good"
        found = bad.wait(30)

        assert found.status == "paused"
        assert "Traceback" not in fleet.said


# --- planted jobs -----------------------------------------------------------------------


QUEUE, LONG_AGO = "graflow-default", 1_000_000_000.0
WAYS = ("func", "success_callback", "failure_callback", "stopped_callback", "webhooks")
PLACES = (
    "queue", "queue, named like a token", "intermediate", "intermediate, named like a token",
    "wip", "wip, named like a token", "finished", "failed", "deferred", "scheduled", "dependents",
    "executions",
)  # fmt: skip
TRAP = """
import os
open(os.path.join(os.path.dirname(__file__), "sprung"), "a").write(__name__ + "\\n")
def called(*args, **options): open(os.path.join(os.path.dirname(__file__), "sprung"), "a").write("called\\n")
"""


@contextmanager
def listener() -> Iterator[tuple[int, list[Any]]]:
    """A port, and who has connected to it."""
    found: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, peer = server.accept()
                    found.append(peer)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], found
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def job(way: str, port: int, status: str) -> dict[str, str]:
    """The hash of a job, as RQ would write it."""
    stamp = "2001-09-09T01:46:40.000000Z"
    func = "trap.called" if way == "func" else "graflow_ckpt.fleet.slice.run_slice"
    known = {
        "data": json.dumps([func, None, ["s", "e1t1"], {}]), "origin": QUEUE, "status": status,
        "timeout": "-1",
        "created_at": stamp, "enqueued_at": stamp, "started_at": stamp, "last_heartbeat": stamp,
        "worker_name": "gone", "result_ttl": "0", "description": "",
    }  # fmt: skip
    if way.endswith("callback"):
        known |= {f"{way}_name": "trap.called", f"{way}_timeout": "60"}
    if way == "webhooks":
        hooks = [{"url": f"http://127.0.0.1:{port}/", "job_status": s} for s in ("failed", "finished")]
        known["webhooks"] = json.dumps(hooks)
    return known


def plant(redis: Any, place: str, way: str, number: int, port: int) -> None:
    where, _, token = place.partition(", ")
    name = f"evil-e1t{number}" if token else f"evil{number}"
    status = {"queue": "queued", "intermediate": "queued", "wip": "started"}.get(where, where)
    status = status if where not in ("dependents", "executions") else "started"
    redis.hset(f"rq:job:{name}", mapping=job(way, port, status))
    redis.sadd("rq:queues", f"rq:queue:{QUEUE}")
    queue = f"rq:queue:{QUEUE}"
    match where:
        case "queue":
            redis.rpush(queue, name)
        case "intermediate":
            redis.rpush(f"{queue}:intermediate", name)
            redis.set(f"{queue}:intermediate:first_seen:{name}", LONG_AGO)
        case "wip":
            redis.zadd(f"rq:wip:{QUEUE}", {f"{name}:execution": 1.0})
        case "finished" | "failed" | "deferred" | "scheduled":
            redis.zadd(f"rq:scheduler:jobs:{QUEUE}", {name: 1.0})
            redis.zadd(f"rq:{where}:{QUEUE}", {name: 1.0})
        case "dependents":  # of a token that the worker will take
            redis.sadd("rq:job:s-e1t1:dependents", name)
            redis.rpush(queue, "s-e1t1")
        case "executions":
            redis.zadd(f"rq:executions:{name}", {"execution": 1.0})
            known = {"id": "execution", "created_at": 1, "last_heartbeat": 1}
            redis.hset(f"rq:execution:{name}:execution", mapping=known)
            redis.zadd(f"rq:wip:{QUEUE}", {f"{name}:execution": 1.0})


def test_sixty_planted_jobs_run_no_code_and_open_no_connection(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(TRAP)
    link = open_link(redis_url)
    with listener() as (port, connected):
        plants = [(place, way) for place in PLACES for way in WAYS]
        for number, (place, way) in enumerate(plants):
            plant(link.client, place, way, number, port)
        with pool(redis_url, tmp_path, n=1, lease=300.0) as fleet:
            assert tasks.call(tasks.quick, redis_url, tmp_path, "first").result(30) == "first"
            held = tasks.call(tasks.held, redis_url, tmp_path, "held")
            killed(noted(tmp_path, "held")[0][1])  # the next worker tidies up at its start, as RQ would
            noted(tmp_path, "held", 2)
            go(tmp_path)
            assert held.result(30) == "held"
            said = fleet.said

    assert len(plants) == 60
    assert not (tmp_path / "sprung").exists(), (tmp_path / "sprung").read_text()
    assert connected == []
    assert "Traceback" not in said
    assert link.client.llen(f"rq:queue:{QUEUE}") == 0
