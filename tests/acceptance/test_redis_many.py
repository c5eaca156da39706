"""A hundred sessions at once, by two workers: each comes to its own end, and none sees another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, TaskExecutionContext, task, workflow
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle
from tests.acceptance.elsewhere import Fleet

SESSIONS = 100
LONG = 60.0  # seconds: only a hang takes so long


@task(inject_context=True)
def start(context: TaskExecutionContext) -> str:
    channel = context.get_channel()
    channel.set("who", context.session_id)
    channel.append("path", "start")
    return context.session_id


def member(context: TaskExecutionContext, start: str) -> str:
    context.get_channel().append("path", context.task_id)
    if context.session_id.endswith("7") and context.task_id == "right" and context.attempt == 1:
        raise ConnectionError("once")
    return start


left = task(id="left", inject_context=True)(member)
right = task(id="right", inject_context=True, max_retries=1)(member)


@task(inject_context=True)
def end(context: TaskExecutionContext, left: str, right: str) -> list[str]:
    context.checkpoint({"who": context.session_id})
    if context.session_id.endswith("3") and context.cycle == 0:
        context.next_iteration()
    return [left, right, context.get_channel().get("who"), context.idempotency_key]


@pytest.fixture
def fleet(redis_url: str, key: str, own_folder: Path) -> Iterator[Fleet]:
    made = Fleet(redis_url, str(own_folder / "checkpoints"), workers=2, budget=2.0)
    yield made
    made.close()


def submitted(fleet: Fleet, session: str) -> Handle:
    with workflow("one of many", session) as flow:
        start >> left >> end
        start >> right >> end
    terms = Terms(session, store=fleet.store, ledger=True)
    return fleet.client.submit(flow.graph, flow.settings, (), {}, terms)


def work(fleet: Fleet, handles: list[Handle]) -> None:
    """Both workers at once, until all sessions have ended."""
    deadline = time.monotonic() + LONG

    def works(number: int) -> None:
        idle = 0
        while idle < 50 and time.monotonic() < deadline:
            token = fleet.token()
            if token is None:
                idle += 1
                time.sleep(0.002)
            else:
                idle = 0
                fleet.give(number, token)

    threads = [threading.Thread(target=works, args=(n,)) for n in range(len(fleet.workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {handle.status().status for handle in handles} == {"completed"}


@pytest.mark.timeout(120)
def test_a_hundred_sessions_come_to_their_own_ends(fleet: Fleet) -> None:
    names = [f"many-{number:02}" for number in range(SESSIONS)]
    handles = [submitted(fleet, name) for name in names]

    work(fleet, handles)

    for name, handle in zip(names, handles, strict=True):
        rounds = 2 if name.endswith("3") else 1
        assert handle.result(1) == [name, name, name, f"{name}/end/{rounds - 1}"]
        assert sorted(set(handle.value("path"))) == ["left", "right", "start"]
        assert len(handle.value("path")) == 3  # what a failed attempt has appended is not there
        ends = Counter((task, visit, how) for task, visit, how in fleet.ledger(name))
        assert max(ends.values()) == 1
        assert sum(how == "completed" for _, _, how in ends) == 3 + rounds
        status = handle.status()
        assert (status.tokens, status.running, status.ready) == (0, 0, 0)
    busy = {number for name in names for number in range(2) if fleet.ran[name, number]}
    assert busy == {0, 1}


@pytest.mark.timeout(120)
def test_each_session_has_checkpoints_of_its_own(fleet: Fleet) -> None:
    names = [f"many-{number:02}" for number in range(20)]
    handles = [submitted(fleet, name) for name in names]

    work(fleet, handles)

    for name in names:
        found = CheckpointManager.list_checkpoints(name, store=fleet.store)
        assert [m.user_metadata["who"] for m in found] == [name] * (2 if name.endswith("3") else 1)
        assert {m.session_id for m in found} == {name}
    assert len(CheckpointManager.list_checkpoints(store=fleet.store)) == 22
