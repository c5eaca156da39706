"""Workers, parents and stewards are killed: others go on at once, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.fleet.client import client_at
from graflow_ckpt.fleet.handle import Handle
from tests.crash import fleet_tasks as tasks
from tests.crash.fleet import alive, begun, go, killed, noted, pool, ready_pool
from tests.crash.fleet_poison import innocent
from tests.crash.takeover import said, takeovers
from tests.stretch import stretched, until

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("fleet_key")]

FAR = {"lease": 300.0}  # nothing here is found by a lease that ran out


def claims(handle: Handle) -> int:
    return handle.status().running


def test_what_a_killed_process_ran_is_gone_on_with_at_once(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        handle = tasks.call(tasks.held, redis_url, tmp_path, "a")
        _, victim, _ = noted(tmp_path, "a")[0]

        at = killed(victim)

        _, other, began = noted(tmp_path, "a", 2)[1]
        go(tmp_path)
        assert handle.result(10) == "a"
        assert other != victim
        assert began - at < stretched(1.0)
        fleet.ready()  # all seats are taken again
        assert [word for word, _, _ in noted(tmp_path, "a-over")] == ["a-over"]


def rq_info(url: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "-u", url], capture_output=True, text=True, check=True
    ).stdout


def test_rq_shows_no_ghosts_of_workers_that_were_killed(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        for pid in fleet.ready() and fleet.workers():
            killed(pid)
        until(lambda: fleet.facts().restarts == 2)  # type: ignore[union-attr]
        fleet.ready()

        until(lambda: "2 workers" in rq_info(redis_url))


def test_all_die_with_their_parent_and_another_pool_of_the_machine_goes_on(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path / "one", n=2, **FAR) as first:
        handle = begun(tasks.deaf, redis_url, tmp_path, "a")
        family = first.family()
        assert len(family) >= 4

        with ready_pool(redis_url, tmp_path / "two", n=1, **FAR) as second:
            at = killed(first.pid)

            first.process.wait()
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
        first.process.wait()

    with pool(redis_url, tmp_path / "two", n=1, **FAR):
        noted(tmp_path, "a", 2)
        go(tmp_path)
        assert handle.result(10) == "a"


def test_a_steward_is_started_again_and_sweeps(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=1, lease=1.0) as fleet:
        steward = fleet.ready().steward.pid

        killed(steward)

        until(lambda: fleet.facts() is not None and fleet.facts().steward.pid != steward)  # type: ignore[union-attr]
        handle = tasks.call(tasks.quick, redis_url, tmp_path, "a", delay=0.3)
        assert handle.result(10) == "a"


def test_a_worker_that_was_stopped_for_longer_than_its_lease_is_refused(
    redis_url: str, tmp_path: Path
) -> None:
    with ready_pool(redis_url, tmp_path, n=2, lease=1.0) as fleet:
        handle = tasks.call(tasks.held, redis_url, tmp_path, "a")
        _, zombie, _ = noted(tmp_path, "a")[0]
        os.kill(zombie, signal.SIGSTOP)
        _, other, _ = noted(tmp_path, "a", 2)[1]
        assert alive(zombie)
        assert other != zombie

        go(tmp_path)
        assert handle.result(10) == "a"
        os.kill(zombie, signal.SIGCONT)

        noted(tmp_path, "a-over", 2)  # it goes on to the end of its body, and commits nothing
        fleet.ready()
        assert handle.status().steps == 1
        assert claims(handle) == 0


def test_a_worker_that_was_stopped_for_a_moment_goes_on(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        handle = tasks.call(tasks.held, redis_url, tmp_path, "a")
        _, worker, _ = noted(tmp_path, "a")[0]
        os.kill(worker, signal.SIGSTOP)
        sweeps: Any = fleet.facts()
        until(lambda: fleet.facts().age < sweeps.age or fleet.facts() != sweeps)  # type: ignore[union-attr]
        os.kill(worker, signal.SIGCONT)
        go(tmp_path)

        assert handle.result(10) == "a"
        assert len(noted(tmp_path, "a")) == 1


def test_a_task_that_kills_its_worker_is_set_aside_and_others_go_on(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=2, **FAR) as fleet:
        bad = tasks.call(tasks.poison, redis_url, tmp_path, "bad")
        good = tasks.naps.submit_many([(str(tmp_path), f"g{n}") for n in range(50)], url=redis_url)

        status = bad.wait(20)

        assert good.wait(20).status == "completed"
        assert status.status == "paused"
        assert len(noted(tmp_path, "bad")) == 3
        for fact in ("'poison'", "3 times", "SIGKILL", "peak memory", "MB"):
            assert fact in status.reason, status.reason
        fleet.ready()


def test_a_task_that_ends_the_interpreter_is_set_aside_too(redis_url: str, tmp_path: Path) -> None:
    with pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        workers = fleet.ready() and fleet.workers()
        bad = tasks.call(tasks.quits, redis_url, tmp_path, "bad")

        status = bad.wait(20)

        assert status.status == "paused"
        assert "SystemExit: 3" in status.reason
        assert len(noted(tmp_path, "bad")) == 3
        assert fleet.workers() == workers  # nobody had to die for it


def test_a_task_that_ends_its_process_with_status_0_is_set_aside_too(redis_url: str, tmp_path: Path) -> None:
    with ready_pool(redis_url, tmp_path, n=1, **FAR) as fleet:
        bad = tasks.call(tasks.vanishes, redis_url, tmp_path, "bad")

        status = bad.wait(20)

        assert status.status == "paused"
        assert "status 0" in status.reason
        assert len(noted(tmp_path, "bad")) == 3
        fleet.ready()


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
        queue = client_at(redis_url).carrier.queue("default")
        redis = client_at(redis_url).link.client
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


def test_others_go_on_within_half_a_second(redis_url: str, tmp_path: Path) -> None:
    """`python -m tests.crash.takeover worker` does the same 200 times and says how long it took."""
    with ready_pool(redis_url, tmp_path, n=2, **FAR):
        found = takeovers(redis_url, tmp_path, 20)

    print(said(found))
    assert sorted(found)[-2] <= 0.5
