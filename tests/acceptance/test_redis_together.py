"""Processes that work on one session in Redis: side by side, killed, stopped, signalled; and on a hundred."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from graflow_ckpt import CheckpointManager, TaskExecutionContext, task, workflow
from graflow_ckpt.engine import shared
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.testing.drivers import at_once
from tests.acceptance.command_line import LONG, Started, run, started, written
from tests.acceptance.elsewhere import Fleet
from tests.acceptance.places import session_in_redis
from tests.loops import of
from tests.servers import Server
from tests.stretch import until

pytestmark = pytest.mark.usefixtures("redis_url", "key")

# Twelve tasks that can all run at once, then one that adds up. argv: port, whether to wait in the first
# task, how it is run
PROGRAM = """
import asyncio, os, select, sys, time
from dataclasses import replace
import redis
from graflow_ckpt import ExecutionContext, WorkflowEngine, task, workflow

port, how = int(sys.argv[1]), sys.argv[3]
waits = ["waits"] * (sys.argv[2] == "waits")  # a list: what a program is compared by are constants
begun = []

def say(text):
    print(text, flush=True)

def note(name):
    with open("runs", "a") as runs:
        print(name, os.getpid(), file=runs)
    if waits and not begun:
        begun.append(name)
        say(f"at work on {name}")
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            pass
        sys.stdin.readline()
        say("told")
    time.sleep(0.1)

with workflow("w") as flow:
    def member(context):
        note(context.task_id)
        return 1

    async def other(context):
        await asyncio.to_thread(note, context.task_id)
        return 1

    members = [
        task(id=f"t{n}", inject_context=True)(other if how == "async" and n % 2 else member)
        for n in range(12)
    ]

    @task(inject_context=True)
    def total(context):
        note("total")
        return sum(context.get_result(f"t{n}") for n in range(12))

    for one in members:
        one >> total

context = ExecutionContext.create(
    flow.graph, session_id="s", queue_backend="redis", channel_backend="redis",
    config={"redis_client": redis.Redis(port=port)}, settings=flow.settings,
)
context.settings = replace(flow.settings, max_parallel=1 if waits else 2)  # here; the session has no limit
if os.path.exists("gate"):
    say("at the gate")
    while os.path.exists("gate"):
        time.sleep(0.005)
if how == "async":
    result = asyncio.run(WorkflowEngine().aexecute(context))
else:
    result = context.execute()
say(f"result: {result}")
"""


@pytest.fixture
def programs(redis_server: Server, tmp_path: Path) -> Iterator[Any]:
    """Starts the program: `programs("waits")` or `programs("works")`."""
    path = written(PROGRAM)
    with ExitStack() as stack:
        yield lambda waits, how="sync": stack.enter_context(started(path, str(redis_server.port), waits, how))


def runs() -> Counter[str]:
    return Counter(line.split()[0] for line in Path("runs").read_text().splitlines())


def by() -> set[str]:
    return {line.split()[1] for line in Path("runs").read_text().splitlines()}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_processes_share_the_tasks_and_all_get_the_result(programs: Any, how: str) -> None:
    Path("gate").touch()
    workers: list[Started] = [programs("works", how) for _ in range(3)]
    for worker in workers:
        worker.hear("at the gate")
    Path("gate").unlink()

    assert [worker.wait() for worker in workers] == [0, 0, 0], [worker.text for worker in workers]

    assert all("result: 12" in worker.text for worker in workers)
    assert set(runs().values()) == {1}
    assert len(by()) > 1


def test_what_a_killed_process_held_is_taken_by_one_that_waits(programs: Any) -> None:
    """Nobody else looks: there is no fleet."""
    victim = programs("waits")
    victim.hear("at work on t0")
    worker = programs("works")
    until(lambda: Path("runs").exists() and len(runs()) == 12)  # all but what the other one holds

    victim.signal(signal.SIGKILL)
    worker.hear("result: 12")

    assert worker.wait() == 0
    assert runs()["t0"] == 2
    assert sum(runs().values()) == 14


def test_after_an_outage_longer_than_a_lease_processes_of_a_session_take_nothing_from_each_other(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are threads here; each has a client, a token and a keeper of its own."""
    monkeypatch.setattr(shared, "LEASE", 0.5)
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    ran: list[str] = []
    meeting, outage = threading.Barrier(4), threading.Event()

    def held(context: TaskExecutionContext) -> int:
        ran.append(context.task_id)
        meeting.wait(LONG)
        assert outage.wait(LONG)
        return 1

    def works() -> None:
        flow = workflow("w", max_parallel=3).add(*(of(held, f"t{n}") for n in range(3)))
        context = session_in_redis(server.client(), flow.graph, session_id="s", settings=flow.settings)
        context.settings = replace(flow.settings, max_parallel=1)
        context.execute()

    def are_back() -> bool:
        redis: Any = server.client()
        leases = [lease for _, lease in redis.zrange(f"{keys_of('s')}tok", 0, -1, withscores=True)]
        return len(leases) < 3 or all(lease > time.time() * 1000 and lease % 1 == 0 for lease in leases)

    def breaks() -> None:
        meeting.wait(LONG)
        server.kill()
        threading.Event().wait(1.5)  # three leases
        server.start()
        until(are_back)  # each has renewed its lease, and has looked around
        outage.set()

    at_once([works, works, works, breaks])

    assert sorted(ran) == ["t0", "t1", "t2"]


def test_who_was_stopped_for_longer_than_its_lease_commits_nothing(
    programs: Any, redis_server: Server
) -> None:
    zombie = programs("waits")
    zombie.hear("at work on t0")
    zombie.signal(signal.SIGSTOP)
    client: redis.Redis = redis_server.client()
    (token,) = client.hkeys(f"{keys_of('s')}own")
    client.zadd(f"{keys_of('s')}tok", {token: 1})  # the lease is over

    assert "result: 12" in programs("works").hear("result")
    zombie.signal(signal.SIGCONT)
    zombie.tell()

    assert zombie.wait() == 0
    assert "what it did is not committed" in zombie.text
    assert "result: 12" in zombie.text
    assert client.zcard(f"{keys_of('s')}done") == 13
    assert runs()["t0"] == 2


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_signal_lets_the_task_finish_and_the_session_goes_on_elsewhere(
    programs: Any, redis_server: Server, tmp_path: Path, how: str
) -> None:
    worker = programs("waits", how)
    worker.hear("at work on t0")

    worker.signal(signal.SIGTERM)
    worker.tell()

    assert worker.wait() == 75
    assert "session s stopped; it goes on with: graflow-ckpt resume s" in worker.text
    client: redis.Redis = redis_server.client()
    assert client.zrange(f"{keys_of('s')}done", 0, -1) == [b"t0"]
    assert client.hlen(f"{keys_of('s')}own") == 0  # its token was given back
    assert "result: 12" in run(tmp_path / "program.py", str(redis_server.port), "works", how)
    assert set(runs().values()) == {1}


def test_a_server_that_is_restarted_is_waited_for(own_redis: Any) -> None:
    server = own_redis({"appendonly": "yes", "appendfsync": "always"})
    path = written(PROGRAM)

    with started(path, str(server.port), "waits", "sync") as worker:
        worker.hear("at work on t0")
        server.kill()
        worker.tell()
        worker.hear("told")
        server.start()

        worker.hear("result: 12")
        assert worker.wait() == 0

    assert set(runs().values()) == {1}


# --- a hundred sessions at once, by two workers -----------------------------------------


SESSIONS = 100


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
    flow = workflow("one of many", session).add(start >> left >> end, start >> right >> end)
    terms = Terms(session, store=fleet.store, ledger=True)
    return fleet.client.submit(flow.graph, flow.settings, (), {}, terms)


def work(fleet: Fleet, handles: list[Handle]) -> None:
    """Both workers at once, until all sessions have ended."""
    deadline = time.monotonic() + 2 * LONG

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

    at_once([partial(works, n) for n in range(len(fleet.workers))])
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
        found = CheckpointManager.list_checkpoints(name, store=fleet.store)
        assert [(m.user_metadata["who"], m.session_id) for m in found] == [(name, name)] * rounds
    assert len(CheckpointManager.list_checkpoints(store=fleet.store)) == SESSIONS + SESSIONS // 10
    busy = {number for name in names for number in range(2) if fleet.ran[name, number]}
    assert busy == {0, 1}
