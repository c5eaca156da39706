"""Junk and wrong types under the keys of a fleet: each costs at most its own session, and is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS
from graflow_ckpt.links.redis import open_link
from tests.crash import fleet_tasks as tasks
from tests.crash.fleet import go, killed, noted, pool, until
from tests.crash.poisons import WRONG_TYPES, junk, wrong_types

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]


@pytest.mark.parametrize("poison", [wrong_types, junk])
def test_poisoned_keys_stop_no_takeover_and_are_named(
    redis_url: str, tmp_path: Path, poison: Callable[[Any], None]
) -> None:
    link = open_link(redis_url)
    poison(link.client)
    with pool(redis_url, tmp_path / "one", n=1, lease=3.0) as first:
        held = tasks.call(tasks.held, redis_url, tmp_path, "held")
        noted(tmp_path, "held")
        with pool(redis_url, tmp_path / "two", n=1, lease=3.0) as second:
            killed(first.pid)
            noted(tmp_path, "held", 2)
            go(tmp_path)
            assert held.result(30) == "held"
            named = WRONG_TYPES[:1] if poison is wrong_types else (ACTIVE,)
            until(lambda: all(name in second.said() for name in named))
            until(lambda: poison is wrong_types or link.client.zscore(SESSIONS, b"\xff") is None)
            text = first.said() + second.said()
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
        assert "Traceback" not in fleet.said()
    link.close()
