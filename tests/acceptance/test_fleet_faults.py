"""What happens to a fleet, one thing at a time: replies lost, scripts forgotten, a parent or a machine gone.

Each is held against the ledger of the commits and the executions written down outside of Redis.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graflow_ckpt import group
from graflow_ckpt.fleet.client import Terms
from tests.acceptance.fleet_tasks import ask, make, named, wait
from tests.acceptance.fleets import Fleet, fleet
from tests.chaos.model import draw, expected
from tests.chaos.records import check, lines, session_of, tokens_left
from tests.chaos.tasks import PACE, build
from tests.proxy import Proxy
from tests.stretch import comes, stretched

pytestmark = pytest.mark.crash

LEASE = 4.0
BY_TOKEN = b"\r\ne1t"
"""On the wire: a script that works on the session in the name of a token. It begins, commits or renews."""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


@contextmanager
def again_and_again(what: object, pause: float) -> Iterator[list[bool]]:
    """Something is done all the while, in a thread; what came of it each time. The pauses differ."""
    done: list[bool] = []
    over = threading.Event()

    def loop() -> None:
        while not over.wait(random.uniform(0.5, 1.5) * pause):
            done.append(what())  # type: ignore[operator]

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


# --- replies, scripts ------------------------------------------------------------------


def test_workers_whose_replies_get_lost_commit_each_task_once(mine: Fleet) -> None:
    """What a request did is not done again when it is sent again: a DAG with every kind of transition."""
    program = draw(seed=11, size=160)
    model = expected(program)
    flow = build(program, "one")

    with Proxy(mine.server) as proxy, mine.pool(url=proxy.url, n=2, environment={PACE: "0.2"}):

        def lose_one() -> bool:
            proxy.drop_next_reply(BY_TOKEN)
            return proxy.dropped(1.0)

        with again_and_again(lose_one, 0.08) as lost:
            handle = mine.client.submit(
                flow.graph, flow.settings, (program.start,), {}, Terms("one", ledger=True)
            )
            assert handle.wait(60).status == "completed", mine.said
        proxy.resume()
        rq = mine.client.carrier.connection
        comes(lambda: not tokens_left(mine.client.link, rq, "one"), 10.0)

    session = session_of(mine.client.link, rq, "one", mine.client.keyring)
    verdict = check(model, mine.ledger(), lines(mine.folder / "runs"), session)
    assert verdict.violations == []
    assert lost.count(True) > 10


def test_a_server_that_forgets_its_scripts_is_told_them_again(mine: Fleet) -> None:
    tasks = [named(f"t{n}", seconds=0.01) for n in range(60)]

    def forget() -> bool:
        return bool(mine.server.ask("SCRIPT", "FLUSH"))

    with mine.pool(n=2), again_and_again(forget, 0.02) as forgotten:
        mine.complete(group(*tasks) >> named("last"))

    assert len(forgotten) > 5
    assert Counter(mine.completed()) == Counter([*(f"t{n}" for n in range(60)), "last"])
    assert len(mine.lines("began")) == 61


def test_what_a_body_asks_while_the_server_is_away_is_answered_later(mine: Fleet) -> None:
    """No task fails for it: by what it reads, by a task that it makes, by a checkpoint that it asks for."""
    with mine.pool():
        handle = mine.submit(named("first", make, names=["made"], seconds=0.0) >> named("a", ask))
        mine.wait_for("began", "a")
        mine.server.kill()
        mine.open_gate()
        back = threading.Timer(0.5, mine.server.start)
        back.start()
        back.join()
        assert handle.wait(30).status == "completed", mine.said

    assert Counter(mine.completed()) == Counter(["first", "made", "a", "other"])
    assert len(mine.lines("began")) == 4


# --- processes -------------------------------------------------------------------------


def test_the_processes_of_a_pool_can_be_told_apart_in_ps(mine: Fleet) -> None:
    """Their command lines are the same: they are forks."""
    pool = mine.pool(n=2)
    with pool:
        named_so = ["steward", "worker-1", "worker-2"]
        assert comes(lambda: sorted(process.name() for process in pool.family()) == named_so)


# --- machines --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuse", "stall"])
def test_when_a_machine_is_gone_another_goes_on_and_its_late_commit_is_refused(mine: Fleet, how: str) -> None:
    """Cut off by the network, it goes on running; nobody can know that it does.

    refuse: its connections are reset, and there are no new ones. stall: nothing comes through, and what was
    sent meanwhile arrives in the end, as a late commit does.
    """
    with Proxy(mine.server) as proxy:
        cut_off = mine.pool("cut-off", url=proxy.url, lease=LEASE)
        with cut_off:
            handle = mine.submit(named("a", wait) >> named("b"))
            first = mine.wait_for("began", "a")
            with mine.pool("here", lease=LEASE):
                mine.ready(2)
                getattr(proxy, how)()
                cut = time.time()
                second = mine.wait_for("began", "a", 2)
                mine.open_gate()  # for both
                assert handle.wait(30).status == "completed", mine.said
                mine.wait_for("ended", "a", 2)
                proxy.resume()
                assert comes(lambda: "has lost the session's token" in cut_off.said, 15.0), mine.said

    print(f"taken over {second.at - cut:.2f} s after the cut, with a lease of {LEASE} s")
    assert second.at - cut < LEASE + 1.0
    assert second.pid != first.pid
    ledger = [commit for commit in mine.ledger() if commit.task == "a"]
    assert [commit.token for commit in ledger] == [second.token]
    assert mine.completed() == ["a", "b"]


def test_a_worker_that_was_stopped_for_longer_than_its_lease_is_refused(mine: Fleet) -> None:
    with mine.pool(lease=LEASE, n=2):
        handle = mine.submit(named("a", wait) >> named("b"))
        first = mine.wait_for("began", "a")
        os.kill(first.pid, signal.SIGSTOP)
        try:
            second = mine.wait_for("began", "a", 2)
            mine.open_gate()
            assert handle.wait(30).status == "completed", mine.said
        finally:
            os.kill(first.pid, signal.SIGCONT)
        mine.wait_for("ended", "a", 2)
        rq = mine.client.carrier.connection
        comes(lambda: not tokens_left(mine.client.link, rq, "one"), 5.0)
        assert tokens_left(mine.client.link, rq, "one") == {}, mine.said
        assert rq.zcard("rq:failed:graflow-default") == 0, mine.said  # for RQ it is no failure

    ledger = [commit for commit in mine.ledger() if commit.task == "a"]
    assert [commit.token for commit in ledger] == [second.token]
    assert second.pid != first.pid


def test_a_token_that_got_lost_on_its_way_is_posted_again_soon(mine: Fleet) -> None:
    """As when a worker dies between the commit that made it and RQ, or between RQ and its first script."""
    handle = mine.submit(named("a"))
    mine.server.ask("DEL", "rq:queue:graflow-default")
    lost = time.time()

    with mine.pool():
        assert handle.wait(30).status == "completed", mine.said

    assert mine.wait_for("began", "a").at - lost < stretched(3.5)
