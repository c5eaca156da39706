"""A fleet's sessions that are put back, copied, and moved: workers go on with the program that they have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskExecutionContext, Workflow, task, workflow
from graflow_ckpt.core.errors import SessionBusy, SessionError, SessionExists
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.lists import ACTIVE
from tests.acceptance.elsewhere import Fleet
from tests.acceptance.places import step
from tests.unit.fleet.played import Player

used: list[str] = []


@pytest.fixture
def fleet(redis_url: str, key: str, world: None) -> Iterator[Fleet]:
    used.clear()
    made = Fleet(redis_url, "", budget=2.0)
    yield made
    made.close()


@pytest.fixture
def other(own_redis: Any) -> Iterator[Fleet]:
    """Another fleet at another Redis."""
    made = Fleet(own_redis().url, "", budget=2.0)
    yield made
    made.close()


@task(inject_context=True)
def keyed(context: TaskExecutionContext) -> int:
    used.append(context.idempotency_key)
    context.get_channel().append("seen", context.cycle)
    if context.cycle < 3:
        context.next_iteration()
    return context.cycle


def submitted(fleet: Fleet, *tasks: Any, session: str = "one", steps: int | None = None) -> Handle:
    with workflow("moves", session, max_parallel=2) as flow:
        flow.add(*tasks)
    return submit(fleet, flow, session, steps)


def submit(fleet: Fleet, flow: Workflow, session: str, steps: int | None = None) -> Handle:
    terms = Terms(session, max_steps=steps, ledger=True)
    return fleet.client.submit(flow.graph, flow.settings, tuple(flow.graph.roots()), {}, terms)


def go_on(fleet: Fleet, handle: Handle) -> Any:
    handle.resume(max_steps=99)
    assert fleet.work(handle).status == "completed"
    return handle.result(1)


def test_a_handle_puts_its_session_back_and_workers_go_on(fleet: Fleet) -> None:
    handle = submitted(fleet, keyed, steps=2)
    fleet.work(handle)
    path = handle.checkpoint({"why": "kept"}, portable=True).path
    assert go_on(fleet, handle) == 3

    handle.rewind(path)

    status, listed = handle.status(), fleet.client.link.client.zrange(ACTIVE, 0, -1, withscores=True)
    assert (fleet.client.sessions(), listed) == (["one"], [(b"one", 0.0)])
    assert (status.status, status.steps, status.cap, status.tokens) == ("stopped", 2, 2, 0)
    assert handle.value("seen") == [0, 1]
    assert go_on(fleet, handle) == 3
    assert used == [f"one/keyed/{cycle}" for cycle in (0, 1, 2, 3, 2, 3)]
    assert CheckpointManager.list_checkpoints("one", store=fleet.client.link.address)[0].cause == "rewind"


def test_a_fork_of_a_session_that_runs_runs_at_once(fleet: Fleet) -> None:
    handle = submitted(fleet, keyed, step)

    fork = handle.fork("two")

    assert (fork.session, fork.status().status, fork.status().tokens) == ("two", "running", 1)
    assert set(fleet.client.sessions()) == {"one", "two"}
    assert fleet.work(fork).status == "completed"
    assert handle.status().status == "completed"
    assert sorted(used) == [f"{session}/keyed/{cycle}" for session in ("one", "two") for cycle in range(4)]
    assert [how for _, _, how in fleet.ledger("two")] == ["completed"] * 7


def test_a_rewind_is_refused_while_a_worker_has_a_task(fleet: Fleet) -> None:
    handle = submitted(fleet, keyed)
    path = handle.checkpoint(portable=True).path
    worker = Player(fleet.client, "one")
    claim = worker.claim()

    with pytest.raises(SessionBusy, match="Session one is not put back: process"):
        handle.rewind(path)
    worker.session.commit([("release", claim.spec.key, 0), ("claim", 0)], mode="q")
    worker.close()
    handle.rewind(path)

    assert fleet.work(handle).status == "completed"


def test_what_a_worker_still_holds_of_the_time_before_a_rewind_is_void(fleet: Fleet) -> None:
    """It was stopped for longer than its lease, and wakes up."""
    handle = submitted(fleet, keyed)
    path = handle.checkpoint(portable=True).path
    zombie = Player(fleet.client, "one", lease=0.001)
    claim = zombie.claim()

    handle.rewind(path)

    with pytest.raises(SessionError, match="lost the session's token"):
        zombie.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01")])
    zombie.close()
    assert fleet.work(handle).steps == 4


def test_a_checkpoint_of_another_session_is_refused(fleet: Fleet) -> None:
    handle = submitted(fleet, keyed)
    path = submitted(fleet, step, session="two").checkpoint(portable=True).path

    with pytest.raises(SessionError, match="is of session two, not of one"):
        handle.rewind(path)
    with pytest.raises(SessionExists):
        handle.fork("two")


def test_a_session_moves_to_another_fleet_with_its_program(fleet: Fleet, other: Fleet) -> None:
    handle = submitted(fleet, keyed, steps=2)
    fleet.work(handle)
    path = handle.checkpoint(portable=True).path
    handle.purge()

    moved = other.client.rewind(path)

    assert go_on(other, moved) == 3
    assert moved.value("seen") == [0, 1, 2, 3]
    assert used == [f"one/keyed/{cycle}" for cycle in range(4)]


def test_a_fleets_session_goes_on_in_memory_and_in_this_process(fleet: Fleet) -> None:
    handle = submitted(fleet, keyed, steps=2)
    fleet.work(handle)
    portable, live = handle.checkpoint(portable=True).path, handle.checkpoint().path

    here = ExecutionContext.resume(portable)
    beside = ExecutionContext.resume(live)

    assert here.execute(max_steps=99) == 3
    assert handle.status().steps == 2
    assert beside.execute(max_steps=99) == 3
    assert (handle.status().status, handle.result(1)) == ("completed", 3)


def test_calls_of_a_bag_are_forked_too(fleet: Fleet) -> None:
    handle = fleet.client.submit_calls(square, [((n,), {}) for n in range(5)], Terms("bag"))
    path = handle.checkpoint(portable=True).path
    fork = fleet.client.fork(path, "copy")

    fleet.work(fork)

    assert (handle.results(1), fork.results(1)) == ([0, 1, 4, 9, 16],) * 2


@task
def square(n: int) -> int:
    return n * n
