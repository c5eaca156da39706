"""What was running when its worker died, in Redis: by on_interrupted, here and on a fleet."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import ExecutionContext, Workflow, task, workflow
from graflow_ckpt.core.errors import InDoubt, SessionError, TaskError
from graflow_ckpt.fleet.client import Terms
from graflow_ckpt.fleet.handle import Handle, RemoteError
from graflow_ckpt.stores.keys import new_key
from tests.acceptance.elsewhere import Fleet, rob
from tests.acceptance.processes import run
from tests.servers import Server

# argv: port, on_interrupted, what the second task does; then answers
PROGRAM = """
import os, signal, sys
from dataclasses import replace
import redis
from graflow_ckpt import ExecutionContext, task, workflow

port, on, *DEADLY = sys.argv[1:4]  # a list: what a program is compared by are constants
answers = sys.argv[4:]

def body(name):
    with open("runs", "a") as runs:
        print(name, file=runs)
    if name in DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)

with workflow("w") as flow:
    @task
    def first():
        body("first")
        return 1

    @task(inject_context=True, on_interrupted=on)
    def second(context, first):
        context.get_channel().set("half", first)
        body("second")
        print("attempt", context.attempt, context.idempotency_key)
        return 2

    @task
    def third(second=None):
        body("third")
        return f"after {second}"

    first >> second >> third

settings = replace(flow.settings, in_doubt=tuple(tuple(a.split("=")) for a in answers))
context = ExecutionContext.create(
    flow.graph, "first", session_id="s", queue_backend="redis", channel_backend="redis",
    config={"redis_client": redis.Redis(port=int(port))}, settings=settings,
)
print("result:", context.execute())
"""

KILLED = -signal.SIGKILL


@pytest.fixture(autouse=True)
def key(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())


@pytest.fixture
def go(redis_server: Server, tmp_path: Path) -> Callable[..., str]:
    """Run the program; what it says."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return lambda *words, status=0: run(path, str(redis_server.port), *words, status=status)


def runs() -> list[str]:
    return Path("runs").read_text().split()


# --- in processes of their own -------------------------------------------------------------


def test_with_rerun_the_task_runs_again_and_no_completed_one_does(go: Callable[..., str]) -> None:
    go("rerun", "second", status=KILLED)

    said = go("rerun", "")

    assert runs() == ["first", "second", "second", "third"]
    assert "attempt 2 s/second/0" in said
    assert "result: after 2" in said


def test_with_skip_its_successors_go_on_without_it(go: Callable[..., str]) -> None:
    go("skip", "second", status=KILLED)

    assert "result: after None" in go("skip", "")
    assert runs() == ["first", "second", "third"]


def test_with_fail_the_session_fails_by_name_and_the_next_run_tries_again(go: Callable[..., str]) -> None:
    go("fail", "second", status=KILLED)

    said = go("fail", "", status=1)

    assert "second was running when its worker died" in said
    assert runs() == ["first", "second"]
    assert "result: after 2" in go("fail", "")


def test_with_ask_nothing_runs_until_there_is_an_answer(go: Callable[..., str]) -> None:
    go("ask", "second", status=KILLED)

    for _ in range(2):
        said = go("ask", "", status=1)

        assert "running when the process died: second" in said
        assert "--in-doubt" in said
    assert runs() == ["first", "second"]


@pytest.mark.parametrize("asked", [False, True], ids=["known before", "asked for"])
@pytest.mark.parametrize(
    ("answer", "result", "status"),
    [("rerun", "result: after 2", 0), ("skip", "result: after None", 0), ("fail", "second was running", 1)],
)
def test_an_answer_is_carried_out(
    go: Callable[..., str], answer: str, result: str, status: int, asked: bool
) -> None:
    go("ask", "second", status=KILLED)
    if asked:
        go("ask", "", status=1)

    assert result in go("ask", "", f"second={answer}", status=status)


def test_what_was_answered_with_fail_runs_at_the_next_resume(go: Callable[..., str]) -> None:
    go("ask", "second", status=KILLED)
    go("ask", "", "second=fail", status=1)

    assert "result: after 2" in go("ask", "")


def test_a_task_that_takes_its_process_down_three_times_is_set_aside(go: Callable[..., str]) -> None:
    for _ in range(3):
        go("rerun", "second", status=KILLED)

    said = go("rerun", "second", status=1)

    assert "'second' has taken its worker down 3 times" in said
    assert runs().count("second") == 3


# --- on a fleet ------------------------------------------------------------------------------

RAN: list[str] = []
fleet_of: list[Fleet] = []


@task
def before() -> int:
    RAN.append("before")
    return 1


def dying(name: str, on: Any) -> Any:
    """A task whose worker loses its token while it runs, the first time."""

    @task(id=name, on_interrupted=on)
    def body() -> str:
        return fall(name)

    return body


def fall(name: str) -> str:
    RAN.append(name)
    if RAN.count(name) == 1:
        fleet = fleet_of[0]
        handle = fleet.client.session("s")
        for token, queue in rob(fleet.client.link, handle._cells, "s"):
            fleet.client.post("s", token, queue)
    return name


asks, asks_too, skips, fails, reruns = (
    dying("asks", "ask"), dying("asks_too", "ask"), dying("skips", "skip"), dying("fails", "fail"),
    dying("reruns", "rerun"),
)  # fmt: skip


@task
def after() -> str:
    RAN.append("after")
    return "done"


@pytest.fixture
def fleet(redis_url: str, own_folder: Path) -> Iterator[Fleet]:
    RAN.clear()
    made = Fleet(redis_url, str(own_folder / "checkpoints"), budget=2.0)
    fleet_of[:] = [made]
    yield made
    made.close()


def submitted(fleet: Fleet, *members: Any) -> Handle:
    with workflow("doubt", "s", max_parallel=1) as flow:
        last: Any = before
        for member in members:
            last = last >> member
        last >> after
    return submit(fleet, flow)


def submit(fleet: Fleet, flow: Workflow) -> Handle:
    return fleet.client.submit(flow.graph, flow.settings, tuple(flow.graph.roots()), {}, Terms("s"))


@pytest.mark.parametrize(
    ("member", "ran"),
    [(reruns, ["before", "reruns", "reruns", "after"]), (skips, ["before", "skips", "after"])],
    ids=["rerun", "skip"],
)
def test_a_fleet_goes_by_the_task(fleet: Fleet, member: Any, ran: list[str]) -> None:
    handle = submitted(fleet, member)

    assert fleet.work(handle).status == "completed"
    assert ran == RAN


def test_a_fleet_fails_what_is_to_fail_and_runs_it_when_the_session_goes_on(fleet: Fleet) -> None:
    handle = submitted(fleet, fails)
    assert fleet.work(handle).status == "failed"
    with pytest.raises(RemoteError, match="fails was running when its worker died"):
        handle.result(1)

    handle.resume()

    assert fleet.work(handle).status == "completed"
    assert RAN == ["before", "fails", "fails", "after"]


@pytest.mark.parametrize(
    ("answer", "ran", "status"),
    [
        ("rerun", ["before", "asks", "asks", "after"], "completed"),
        ("skip", ["before", "asks", "after"], "completed"),
        ("fail", ["before", "asks"], "failed"),
    ],
)
def test_a_fleet_waits_for_an_answer_and_carries_it_out(
    fleet: Fleet, answer: str, ran: list[str], status: str
) -> None:
    handle = submitted(fleet, asks)
    paused = fleet.work(handle)
    assert (paused.status, paused.tokens, paused.failed) == ("paused", 0, 1)
    assert "asks was running when its worker died" in paused.reason

    handle.answer("asks", answer)

    assert fleet.work(handle).status == status
    assert ran == RAN


def test_a_session_goes_on_when_the_last_question_is_answered(fleet: Fleet) -> None:
    with workflow("doubt", "s", max_parallel=1) as flow:
        (asks | asks_too) >> after
    handle = submit(fleet, flow)
    assert fleet.work(handle).status == "paused"
    handle.answer("asks", "rerun")
    assert fleet.work(handle).status == "paused"  # the other one runs then, and dies as well
    assert RAN == ["asks", "asks", "asks_too"]

    with pytest.raises(InDoubt) as doubt:
        handle.resume()
    handle.answer("asks_too", "skip")

    assert doubt.value.tasks == ["asks_too"]
    assert fleet.work(handle).status == "completed"
    assert RAN == ["asks", "asks", "asks_too", "after"]


def test_an_answer_to_no_question_is_refused(fleet: Fleet) -> None:
    handle = submitted(fleet, asks)
    fleet.work(handle)

    with pytest.raises(SessionError, match="'before' of session s does not wait"):
        handle.answer("before", "skip")
    with pytest.raises(SessionError, match="'maybe' is no answer"):
        handle.answer("asks", "maybe")


def test_who_takes_part_in_a_session_that_waits_is_told_what_for(fleet: Fleet, redis_server: Server) -> None:
    handle = submitted(fleet, asks)
    fleet.work(handle)
    path = handle.checkpoint().path

    with pytest.raises(InDoubt, match="asks"):
        ExecutionContext.resume(path).execute()
    assert isinstance(handle.error(), SessionError)
    assert not isinstance(handle.error(), TaskError)
