"""Loops of rounds on a fleet: whoever works on them, each round is committed once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import SchemaUnsupported
from graflow_ckpt.sessions.redis.keys import FORMAT, ROUNDS, keys_of
from tests.acceptance.fleet_tasks import named, train
from tests.acceptance.fleets import Fleet, fleet
from tests.stretch import comes

pytestmark = pytest.mark.crash


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


def rounds_of(fleet: Fleet) -> list[int]:
    return [int(line.what.partition("-")[2]) for line in fleet.lines() if line.what.startswith("round")]


def pid_of(fleet: Fleet, what: str) -> int:
    assert comes(lambda: any(line.what == what for line in fleet.lines())), fleet.said
    return next(line.pid for line in fleet.lines() if line.what == what)


def test_another_worker_continues_at_the_round_in_which_one_was_killed(mine: Fleet) -> None:
    with mine.pool(n=2):
        handle = mine.submit(named("train", train))
        os.kill(pid_of(mine, "round-10"), signal.SIGKILL)
        mine.open_gate()

        assert handle.wait(60).status == "completed", mine.said

    assert rounds_of(mine) == [*range(11), *range(10, 20)]
    noise, count, same = handle.result()
    assert (count, same) == (20, True)
    assert 0 < noise < 1
    assert Counter(mine.completed())["train"] == 1


def test_a_pool_that_drains_finishes_the_round_and_another_one_continues(mine: Fleet) -> None:
    with mine.pool(n=1) as pool:
        handle = mine.submit(named("train", train))
        pid_of(mine, "round-3")
        pool.end()
    begun = rounds_of(mine)
    mine.open_gate()
    with mine.pool(n=1):
        assert handle.wait(60).status == "completed", mine.said

    assert begun == [*range(len(begun))]
    assert len(begun) < 11
    assert rounds_of(mine) == [*range(20)]
    client: Any = mine.client.link.client
    assert not any(b"__rounds__" in name for name in client.hkeys(f"{keys_of('one')}v"))


def test_a_paused_session_stops_between_two_rounds(mine: Fleet) -> None:
    with mine.pool(n=1):
        handle = mine.submit(named("train", train))
        pid_of(mine, "round-3")
        handle.pause()
        assert comes(lambda: not handle.status().running), mine.said
        begun = rounds_of(mine)
        mine.open_gate()
        handle.resume()

        assert handle.wait(60).status == "completed", mine.said

    assert begun == [*range(len(begun))]
    assert rounds_of(mine) == [*range(20)]


def test_the_session_has_a_format_of_its_own_from_the_first_round_on(mine: Fleet) -> None:
    client: Any = mine.client.link.client
    handle = mine.submit(named("train", train, rounds=12))
    counters = f"{keys_of('one')}c"
    assert client.hget(counters, "format") == b"%d" % FORMAT
    with mine.pool(n=1):
        pid_of(mine, "round-10")

        assert client.hget(counters, "format") == b"%d" % ROUNDS
        client.hset(counters, "format", "99")
        with pytest.raises(SchemaUnsupported, match="99"):
            handle.status()
        client.hset(counters, "format", str(ROUNDS))
        mine.open_gate()

        assert handle.wait(60).status == "completed", mine.said
