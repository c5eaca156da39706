"""Fleets whose workers are killed, told to leave, or lose their server: nothing is lost or runs twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.fleet.client import Client, Terms, connect
from graflow_ckpt.fleet.lists import ACTIVE
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.crash import fleet as tasks
from tests.crash.fleet import begun, go, killed, lines, noted
from tests.crash.fleet_poison import innocent
from tests.crash.pools import alive, pool, ready_pool
from tests.crash.takeover import said, takeovers
from tests.servers import Server
from tests.stretch import stretched, until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]

FAR = {"lease": 300.0}  # nothing here is found by a lease that ran out


def rq_info(url: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "-u", url], capture_output=True, text=True, check=True
    ).stdout


def test_rq_shows_no_ghosts_of_workers_that_were_killed(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        for pid in fleet.ready() and fleet.workers():
            killed(pid)
        until(lambda: fleet.facts().restarts == 2)
        fleet.ready()

        until(lambda: "2 workers" in rq_info(redis_url))


def test_all_die_with_their_parent_and_another_pool_of_the_machine_goes_on(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "one", n=2, **FAR) as first:
        handle = begun(tasks.deaf, redis_url, tmp_path, "a")
        assert len(first.family()) >= 3

        with ready_pool(redis_url, tmp_path / "two", n=1, **FAR) as second:
            at = killed(first.pid)

            first.wait()
            assert first.nobody_is_left(1.0)
            _, other, began = noted(tmp_path, "a", 2)[1]
            assert other in second.workers()
            assert began - at < stretched(1.5)
            go(tmp_path)
            handle.result(10)


def test_a_pool_that_is_started_again_finds_what_the_one_before_it_ran(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "one", n=1, **FAR) as first:
        handle = begun(tasks.held, redis_url, tmp_path, "a")
        killed(first.pid)
        first.wait()

    with pool(redis_url, tmp_path / "two", n=1, **FAR):
        noted(tmp_path, "a", 2)
        go(tmp_path)
        assert handle.result(10) == "a"


def test_a_steward_is_started_again_and_sweeps(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=1, lease=1.0) as fleet:
        steward = fleet.ready().steward.pid

        killed(steward)

        until(lambda: fleet.facts() is not None and fleet.facts().steward.pid != steward)
        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a", delay=0.3)
        assert handle.result(10) == "a"


def test_a_worker_that_was_stopped_for_a_moment_goes_on(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        handle = tasks.call(tasks.held, redis_url, tmp_path, "a")
        _, worker, _ = noted(tmp_path, "a")[0]
        os.kill(worker, signal.SIGSTOP)
        sweeps: Any = fleet.facts()
        until(lambda: fleet.facts().age < sweeps.age or fleet.facts() != sweeps)
        os.kill(worker, signal.SIGCONT)
        go(tmp_path)

        assert handle.result(10) == "a"
        assert len(noted(tmp_path, "a")) == 1


@pytest.mark.parametrize(
    ("body", "dies", "told"),
    [
        (tasks.poison, True, ("'poison'", "3 times", "SIGKILL", "peak memory", "MB")),
        (tasks.quits, False, ("SystemExit: 3",)),
        (tasks.vanishes, True, ("status 0",)),
    ],
    ids=["it kills its worker", "it ends the interpreter", "it ends its process with status 0"],
)
def test_a_task_that_takes_its_process_down_is_set_aside_and_others_go_on(
    redis_url: str, tmp_path: Path, body: Any, dies: bool, told: tuple[str, ...]
) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        bad = tasks.call(body, redis_url, tmp_path, "bad")
        good = tasks.naps.submit_many([(str(tmp_path), f"g{n}") for n in range(50)], url=redis_url)
        status = bad.wait(20)
        assert good.wait(20).status == "completed"
        assert status.status == "paused"
        assert len(noted(tmp_path, "bad")) == 3
        assert [fact for fact in told if fact not in status.reason] == [], status.reason
        fleet.ready()
        until(lambda: (fleet.facts().restarts > 0) == dies)


def test_a_module_that_kills_whoever_imports_it_pauses_its_session_and_no_other(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path, {"FLEET_POISON": "1"}, n=1, **FAR):
        bad = tasks.call(innocent, redis_url, tmp_path, "bad")

        status = bad.wait(20)

        assert status.status == "paused"
        assert "its program" in status.reason
        assert "SIGSEGV" in status.reason
        good = tasks.call(tasks.quick, redis_url, tmp_path, "good")
        assert good.result(10) == "good"


def test_a_token_that_an_idle_worker_took_with_it_is_given_to_another_at_once(
    redis_url: str, tmp_path: Path
) -> None:
    with pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        (worker,) = fleet.ready() and fleet.workers()
        os.kill(worker, signal.SIGSTOP)
        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a")
        client = connect(redis_url).client
        queue, redis = client.carrier.queue("default"), client.link.client
        # what BLMOVE has done for it, a moment before it died
        until(lambda: redis.llen(queue.key) or redis.llen(queue.intermediate_queue_key))
        redis.lmove(queue.key, queue.intermediate_queue_key)
        at = killed(worker)

        assert handle.result(10) == "a"
        assert noted(tmp_path, "a")[0][2] - at < 2.0  # its first look at waiting tokens comes after 5 s


def test_a_task_that_must_not_run_twice_fails_when_its_worker_dies(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR):
        handle = tasks.call(tasks.once_only, redis_url, tmp_path, "a")
        killed(noted(tmp_path, "a")[0][1])

        assert handle.wait(10).status == "failed"
        assert len(noted(tmp_path, "a")) == 1


def test_a_task_that_does_not_end_has_its_worker_replaced(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        worker = (fleet.ready() and fleet.workers())[0]
        handle = tasks.call(tasks.never_ends, redis_url, tmp_path, "a")

        assert handle.wait(10).status == "failed"

        until(lambda: not alive(worker))
        other = tasks.call(tasks.quick, redis_url, tmp_path, "b")
        assert other.result(10) == "b"


def test_what_killed_workers_ran_is_gone_on_with_within_half_a_second(redis_url: str, tmp_path: Path) -> None:
    """`python -m tests.crash.takeover worker` does the same 200 times and says how long it took."""
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        found = takeovers(redis_url, tmp_path, 20)
        fleet.ready()  # all seats are taken again
    print(said(found))
    assert sorted(found)[-2] <= 0.5
    assert max(found) < stretched(1.0)


def test_a_list_that_the_server_forgot_is_written_anew(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1):
        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a", delay=1.0)
        redis = connect(redis_url).client.link.client
        redis.delete(ACTIVE)  # as if it had come back from an older log

        assert handle.result(20) == "a"
        assert redis.exists(f"{keys_of(handle.session)}c")


# --- signals ----------------------------------------------------------------------------


def test_a_drained_worker_finishes_its_task_and_the_next_owner_runs_at_once(
    redis_url: str, tmp_path: Path
) -> None:
    names = [f"t{n}" for n in range(200)]
    with ready_pool(redis_url, tmp_path / "one", n=1, budget=60.0, **FAR) as first:
        calls = [(str(tmp_path), name, 0.02) for name in names]
        handle = tasks.naps.submit_many(calls, url=redis_url)
        until(lambda: len(lines(tmp_path)) > 10)

        with pool(redis_url, tmp_path / "two", n=1, budget=60.0, **FAR) as second:
            until(second.facts)
            old = first.pids()  # the second may have been called for help already
            first.signal(signal.SIGTERM)

            assert first.wait() == 0
            assert first.nobody_is_left(1.0)
            assert handle.results(30) == names

    ran = lines(tmp_path)
    assert sorted(word for word, _, _ in ran) == sorted(names)  # none of them twice
    last = max(at for _, pid, at in ran if pid in old)
    following = min((at for _, pid, at in ran if pid not in old and at > last), default=None)
    assert following is not None
    assert following - last < 0.5


def test_an_idle_pool_leaves_at_once(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        fleet.signal(signal.SIGTERM)

        assert fleet.wait(3) == 0
        assert fleet.facts() is None


def test_what_does_not_finish_in_time_is_given_back_after_a_checkpoint(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "one", n=1, grace=0.3, **FAR) as first:
        handle = begun(tasks.deaf, redis_url, tmp_path, "a")

        first.signal(signal.SIGTERM)

        assert first.wait(10) == 0
        status = handle.status()
        assert (status.ready, status.running) == (1, 0)
        assert status.checkpoint is not None
        assert handle.pending()[0]["crashes"] == 0

    with pool(redis_url, tmp_path / "two", n=1, **FAR):
        noted(tmp_path, "a", 2)
        go(tmp_path)
        assert handle.result(10) == "a"


def test_a_body_in_c_is_given_back_in_time_too(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, grace=0.3, **FAR) as fleet:
        handle = begun(tasks.computes, redis_url, tmp_path, "a")

        fleet.signal(signal.SIGTERM)

        assert fleet.wait(5) == 0
        assert "killed" not in fleet.said
        assert handle.status().checkpoint is not None
        assert handle.pending()[0]["crashes"] == 0


def test_a_body_that_is_given_up_may_put_its_things_in_order(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, grace=0.2, **FAR) as fleet:
        begun(tasks.tidy, redis_url, tmp_path, "a")

        fleet.signal(signal.SIGTERM)
        fleet.wait(10)

        noted(tmp_path, "a-unwound")


def test_a_second_signal_leaves_at_once_and_counts_no_crash(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        handles = [tasks.call(tasks.deaf, redis_url, tmp_path, name) for name in "ab"]
        for name in "ab":
            noted(tmp_path, name)
        fleet.signal(signal.SIGINT)
        until(lambda: "draining" in fleet.said)
        assert all(handle.status().running == 1 for handle in handles)

        fleet.signal(signal.SIGINT)

        assert fleet.wait(6) == 130
        for handle in handles:
            assert handle.status().ready == 1
            assert handle.pending()[0]["crashes"] == 0


def test_a_task_that_must_not_run_twice_is_in_doubt_when_it_was_given_up(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "one", n=1, grace=0.1, **FAR) as first:
        handle = begun(tasks.once_only, redis_url, tmp_path, "a")
        first.signal(signal.SIGTERM)
        first.wait(10)

    with pool(redis_url, tmp_path / "two", n=1, **FAR):
        assert handle.wait(10).status == "failed"
        assert len(noted(tmp_path, "a")) == 1


def test_a_task_that_keeps_the_interpreter_to_itself_is_killed_and_given_back(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path, n=1, grace=0.1, **FAR) as fleet:
        handle = begun(tasks.hogs, redis_url, tmp_path, "a")
        fleet.signal(signal.SIGTERM)
        until(lambda: "draining" in fleet.said)

        fleet.signal(signal.SIGTERM)

        assert fleet.wait(10) == 143
        assert handle.status().ready == 1
        assert handle.pending()[0]["crashes"] == 0


def test_a_hangup_renews_the_workers_one_by_one(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        before = set(fleet.ready() and fleet.workers())
        handle = tasks.naps.submit_many([(str(tmp_path), f"t{n}", 0.01) for n in range(300)], url=redis_url)
        until(lambda: len(lines(tmp_path)) > 10)

        fleet.signal(signal.SIGHUP)

        until(lambda: not any(alive(pid) for pid in before))
        assert handle.wait(30).status == "completed"
        fleet.ready()
        assert len(set(fleet.workers()) - before) == 2
    assert len(lines(tmp_path)) == 300


def test_a_second_hangup_renews_all_workers_once_more(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        before, folders = fleet.workers(), {}
        for name in ("a", "b"):  # one task in each worker
            (tmp_path / name).mkdir()
            begun(tasks.held, redis_url, tmp_path / name, name)
            folders[noted(tmp_path / name, name)[0][1]] = tmp_path / name
        fleet.signal(signal.SIGHUP)
        go(folders[before[0]])
        until(lambda: fleet.facts().workers[0].state == "idle" and fleet.workers()[0] != before[0])
        renewed = fleet.workers()[0]
        assert alive(before[1])  # it drains

        fleet.signal(signal.SIGHUP)
        until(lambda: fleet.said.count("one by one") == 2)
        go(folders[before[1]])

        until(lambda: not alive(renewed))
        fleet.ready()
        assert not {renewed, *before} & set(fleet.workers())


def test_a_worker_that_is_told_to_stop_by_hand_drains_and_is_replaced(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        (worker,) = fleet.ready() and fleet.workers()
        handle = begun(tasks.held, redis_url, tmp_path, "a")
        for _ in range(3):  # as often as somebody likes: only the parent can make it leave
            os.kill(worker, signal.SIGTERM)
        go(tmp_path)

        assert handle.result(10) == "a"
        until(lambda: not alive(worker))
        fleet.ready()
        assert len(noted(tmp_path, "a")) == 1


def test_a_hard_cancel_ends_the_code(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, **FAR):
        handle = tasks.call(tasks.deaf, redis_url, tmp_path, "a")
        _, worker, _ = noted(tmp_path, "a")[0]

        handle.cancel(hard=True)

        until(lambda: not alive(worker), 10)
        other = tasks.call(tasks.quick, redis_url, tmp_path, "b")
        assert other.result(10) == "b"
        assert handle.status().status == "cancelled"


def test_what_a_task_has_started_ends_when_it_is_told_to(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, **FAR):
        handle = tasks.call(tasks.has_children, redis_url, tmp_path, "a")

        assert handle.result(20) == [-signal.SIGTERM, -signal.SIGINT]


def test_ctrl_c_at_a_terminal_reaches_the_parent_alone(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        groups = {os.getpgid(pid) for pid in fleet.pids()}

        assert os.getpgid(fleet.pid) not in groups


# --- the server dies, hangs, forgets and comes back while a pool works ------------------


Servers = Callable[..., Server]


@pytest.fixture
def kept(own_redis: Servers) -> Server:
    """A server that keeps what it was told."""
    return own_redis({"appendonly": "yes", "appendfsync": "always"})


def test_a_server_that_is_killed_in_mid_run_is_waited_for(kept: Server, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(400)]
    with ready_pool(kept.url, tmp_path, n=2) as fleet:
        calls = [(str(tmp_path), name, 0.005) for name in names]
        handle = tasks.naps.submit_many(calls, url=kept.url)
        for round_ in range(1, 4):
            until(lambda mark=round_ * 60: len(lines(tmp_path)) > mark)
            kept.restart()

        assert handle.results(30) == names
        fleet.ready()
        assert handle.status().steps == len(names)
    ran = [word for word, _, _ in lines(tmp_path)]
    assert set(ran) == set(names)
    assert len(ran) - len(names) <= 3 * 2  # what ran when the server died, at most


@pytest.mark.parametrize("how", ["away", "full"])
def test_a_server_that_is_away_or_full_for_longer_than_a_lease_takes_nothing_from_the_living(
    kept: Server, tmp_path: Path, how: str
) -> None:
    with ready_pool(kept.url, tmp_path, n=2, lease=0.5) as fleet:
        handle = begun(tasks.held, kept.url, tmp_path, "a")
        kept.kill() if how == "away" else kept.ask("CONFIG", "SET", "maxmemory", "1")
        outage = threading.Event()
        outage.wait(1.5)  # three leases
        kept.start() if how == "away" else kept.ask("CONFIG", "SET", "maxmemory", "0")
        until(lambda: fleet.facts() is not None)
        go(tmp_path)

        assert handle.result(10) == "a"
    assert [word for word, _, _ in lines(tmp_path)] == ["a", "a-over"]


def test_all_that_rq_knew_may_be_lost(redis_url: str, own_redis: Servers, tmp_path: Path) -> None:
    rq = own_redis()
    with ready_pool(redis_url, tmp_path, rq_url=rq.url, n=1):
        client = Client(open_link(redis_url), open_link(rq.url))
        handles = [
            client.submit_calls(tasks.held, None, Terms(), ((str(tmp_path), name), {})) for name in ("a", "b")
        ]
        noted(tmp_path, "a")

        rq.ask("FLUSHALL")
        go(tmp_path)

        assert [handle.result(20) for handle in handles] == ["a", "b"]
