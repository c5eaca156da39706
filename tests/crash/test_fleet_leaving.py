"""Signals: a pool that is told to stop finishes what runs, hands over the rest, loses and repeats nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash import fleet_tasks as tasks
from tests.crash.fleet import alive, begun, go, lines, noted, pool, ready_pool
from tests.stretch import until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]

FAR = {"lease": 300.0}


def test_a_drained_worker_finishes_its_task_and_the_next_owner_runs_at_once(
    redis_url: str, tmp_path: Path
) -> None:
    names = [f"t{n}" for n in range(200)]
    with ready_pool(redis_url, tmp_path / "one", n=1, budget=60.0, **FAR) as first:
        calls = [(str(tmp_path), name, 0.02) for name in names]
        handle = tasks.naps.submit_many(calls, url=redis_url)
        until(lambda: len(lines(tmp_path)) > 10)

        with pool(redis_url, tmp_path / "two", n=1, budget=60.0, **FAR) as second:
            second.ready_or_busy()
            old = set(first.family())  # the second may have been called for help already
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
        assert "killed" not in fleet.said()
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
        until(lambda: "draining" in fleet.said())
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
        until(lambda: "draining" in fleet.said())

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
        groups = {os.getpgid(pid) for pid in fleet.family()[1:]}

        assert os.getpgid(fleet.pid) not in groups
