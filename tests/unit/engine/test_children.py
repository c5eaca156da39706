"""Attempts in child processes: what crosses, what is killed, and what a death means."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, Event, task, workflow
from graflow_ckpt.core.errors import UnknownTask, WorkerDied, WorkflowCancelled
from graflow_ckpt.core.facts import Claim, Live, TaskSpec
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.child import __main__ as child
from graflow_ckpt.engine.child.process import FromChannel, Pipe
from tests.acceptance.command_line import LONG, gone
from tests.acceptance.places import Box
from tests.loops import chain


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


# --- what crosses ----------------------------------------------------------------------


def test_a_body_runs_in_another_process_and_its_result_comes_back() -> None:
    with workflow("w") as flow:

        @task(isolation="process")
        def a() -> int:
            return os.getpid()

        @task(isolation="process")
        def b(a: int) -> list[int]:
            return [a, os.getpid()]

        a >> b
        first, second = flow.execute()

    assert len({first, second, os.getpid()}) == 3
    assert gone(first, 5)
    assert gone(second, 5)


def test_all_that_a_context_offers_works_across_the_pipe() -> None:
    seen: list[Event] = []

    with workflow("w", session_id="s", observers=[seen.append]) as flow:
        flow.get_channel().set("list", [1])
        flow.get_channel().set("box", Box(1))

        @task(isolation="process", inject_context=True, max_retries=1)
        def a(context) -> dict[str, object]:
            if context.attempt == 1:
                raise OSError
            channel = context.get_channel()
            channel.get("list").append(2)
            channel.get("box").items.append(2)
            channel.set("new", Box("n"))
            channel.append("log", 1)
            context.progress(1, 2)
            path, _ = context.checkpoint({"mine": 1})
            context.next_task("c", data=5)
            return {
                "keys": channel.keys(),
                "cancelled": context.cancelled,
                "attempt": context.attempt,
                "session": context.session_id,
                "key": context.idempotency_key,
                "path": Path(path).name.split("_")[:4],
                "read": channel.get("box", readonly=True).items,
                "no execution context": context.execution_context,
            }

        @task
        def c(data: int) -> int:
            return data

        flow.add(c)
        flow.execute("a")

    context, channel = flow.execution_context, flow.get_channel()
    assert context.get_result("a") == {
        "keys": ["list", "box", "new", "log"],
        "cancelled": False,
        "attempt": 2,
        "session": "s",
        "key": "s/a/0",
        "path": ["session", "s", "step", "1"],
        "read": [1, 2],
        "no execution context": None,
    }
    assert channel.get("list") == [1, 2]
    assert channel.get("box").items == [1, 2]
    assert channel.get("new").items == ["n"]
    assert channel.get("log") == [1]
    assert context.get_result("c") == 5
    assert [e.facts["done"] for e in seen if e.kind == "task_progress"] == [1]
    (first,) = [cut for cut in CheckpointManager.list_checkpoints("s") if cut.cause == "request"]
    assert first.user_metadata["mine"] == 1
    assert first.steps == 1


def test_a_parameter_from_the_channel_that_is_changed_in_place_counts_as_set() -> None:
    def a(items: list[int], box: Box) -> None:
        items.append(2)
        box.items.append(2)

    flow = chain(a, isolation="process")
    flow.get_channel().set("items", [1])
    flow.get_channel().set("box", Box(1))
    flow.execute()

    assert flow.get_channel().get("items") == [1, 2]
    assert flow.get_channel().get("box").items == [1, 2]


def test_a_live_value_that_was_only_read_in_the_child_stays_the_same_object() -> None:
    def a(context) -> list[object]:
        return context.get_channel().get("box").items

    flow = chain(a, isolation="process")
    box = Box(1)
    flow.get_channel().set("box", box)
    assert flow.execute() == [1]

    assert flow.get_channel().get("box") is box


def test_the_exception_of_a_body_comes_back_as_itself() -> None:
    def a() -> None:
        raise LookupError("not here", 3)

    with pytest.raises(LookupError, match="not here") as error:
        chain(a, isolation="process").execute()

    assert error.value.args == ("not here", 3)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def test_an_exception_that_cannot_cross_is_told_by_its_name() -> None:
    def a() -> None:
        raise Unpicklable

    with pytest.raises(RuntimeError, match=r"Unpicklable\('holds a lock'\)"):
        chain(a, isolation="process").execute()


@pytest.mark.parametrize("swallowed", [(), Exception], ids=["works", "cannot be swallowed"])
def test_cancel_workflow_from_a_child(swallowed: Any) -> None:
    def a(context) -> None:
        context.get_channel().set("x", 1)
        with suppress(swallowed):
            context.cancel_workflow("no more")

    flow = chain(a, isolation="process")
    with pytest.raises(WorkflowCancelled, match="no more"):
        flow.execute()

    assert flow.get_channel().keys() == []


def test_a_task_made_in_a_child_runs() -> None:
    with workflow("w") as flow:

        @task
        def made(data: int) -> int:
            return data * 2

        @task(isolation="process", inject_context=True)
        def a(context) -> None:
            try:
                context.next_task("nowhere")
            except UnknownTask:
                context.next_task("made", data=21)

        flow.execute("a")

    assert flow.execution_context.get_result("made") == 42


def test_async_bodies_run_in_children_too() -> None:
    async def a() -> int:
        return os.getpid()

    assert chain(a, isolation="process").execute() != os.getpid()


def test_a_child_sees_the_folder_and_the_path_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/somewhere/else")

    flow = chain(a=lambda: [os.getcwd(), sys.path[0]], isolation="process")
    assert flow.execute() == [os.getcwd(), "/somewhere/else"]


# --- what a death means ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "how", "code"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "by SIGKILL", -signal.SIGKILL),
        (lambda: os._exit(3), "with status 3", 3),
    ],
    ids=["killed", "left"],
)
def test_a_body_that_takes_its_process_down_has_a_crash_budget_and_is_then_named(
    end: Callable[[], None], how: str, code: int, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"

    def a() -> None:
        with open(runs, "a") as out:
            print("run", file=out)
        end()

    with pytest.raises(WorkerDied, match=f"The process of task 'a' ended {how}") as died:
        chain(a, isolation="process").execute()

    assert runs.read_text().split() == ["run"] * 3
    assert died.value.code == code


def test_a_crash_is_made_good_by_a_later_attempt_and_counted_in_the_context(tmp_path: Path) -> None:
    def a(context, box: Box) -> int:
        if context.attempt < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        context.checkpoint()
        return context.attempt

    flow = chain(a, isolation="process")
    flow.get_channel().set("box", Box(1))
    assert flow.execute() == 3

    assert flow.execution_context.last_checkpoint_path is not None


def test_a_death_is_noticed_although_a_forked_grandchild_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "pids"

    def a(context) -> str:
        if context.attempt > 1:
            return "made good"
        loader = os.fork()
        if not loader:
            while True:
                signal.pause()
        file.write_text(str(loader))
        os._exit(1)

    assert chain(a, isolation="process").execute() == "made good"

    assert all(gone(pid, 1) for pid in pids_in(file))


def test_a_child_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\n"
        "from graflow_ckpt import task, workflow\n"
        "with workflow('w') as flow:\n"
        "    @task(isolation='process')\n"
        "    def a():\n"
        f"        open({str(file)!r}, 'w').write(str(os.getpid()))\n"
        "        time.sleep(60)\n"
        "    flow.execute()\n"
    )
    with subprocess.Popen([sys.executable, str(program)]) as parent:
        deadline = time.monotonic() + LONG
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            select.select([], [], [], 0.02)
        parent.kill()

    assert gone(pids_in(file)[0], 2)


NAMED_MAIN = """
from graflow_ckpt import task, workflow

@task(isolation="process")
def main():
    return "the program's"

if __name__ == "__main__":
    with workflow("w") as ctx:
        ctx.add(main)
        print(ctx.execute())
"""


def test_a_body_with_a_name_that_the_childs_own_program_has_is_still_the_body(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NAMED_MAIN)

    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stdout == "the program's\n", done.stderr


# --- within a child ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def outlives_its_parent() -> Iterator[None]:
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 0)


def made() -> None: ...


def attempted(
    body: Callable[..., Any],
    arguments: dict[str, Any] | None = None,
    answers: dict[str, Any] | None = None,
    context: tuple[str, int] | None = ("context", 1),
) -> tuple[Any, list[tuple[Any, ...]]]:
    """The outcome of a body, and what was asked on the way."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    pipe = Pipe(ours_in, ours_out)
    claim = Claim(TaskSpec("t", key=1), 1)
    thread = threading.Thread(target=child.main, args=(theirs_in, theirs_out, os.getppid()))
    thread.start()
    pipe.send((list(sys.path), os.getcwd(), "s", "s", claim, True, True))
    pipe.send((body, arguments or {}, context, {}))
    asked = []
    while True:
        kind, *rest = pipe.receive()
        if kind == "outcome":
            thread.join()
            pipe.close()
            return rest[0], asked
        asked.append((kind, *rest))
        answer = (answers or {})[kind]
        said = answer(*rest) if callable(answer) else answer
        pipe.send(({rest[0]: said} if said else {}) if kind == "read" else said)


def test_a_plain_body_is_done_with_its_cell() -> None:
    outcome, asked = attempted(lambda: 5, context=None)

    assert outcome[:2] == ("done", b"\x05")
    assert outcome[2].ops == ()
    assert asked == []


def test_values_are_asked_for_and_changes_go_back() -> None:
    values = {"list": (b"\x91\x01", 3, ()), "box": (Live(Box(1)), 4, ()), "same": (Live(Box(2)), 5, ())}

    def body(context, items: list[int], missing: Any = None) -> None:
        items.append(2)
        channel = context.get_channel()
        channel.get("box").items.append(2)
        channel.get("same")
        channel.append("log", 1)

    outcome, asked = attempted(body, {"items": FromChannel("list")}, {"read": values.get})

    puts = {op[1]: op for op in outcome[2].ops if op[0] == "put"}
    assert set(puts) == {"list", "box"}
    assert puts["list"] == ("put", "list", b"\x92\x01\x02", 3)
    assert puts["box"][2].value.items == [1, 2]
    assert {name for kind, name in asked if kind == "read"} >= {"list", "box", "same"}


def test_everything_else_that_a_context_asks_goes_over_the_pipe() -> None:
    prepared = {"user_metadata": {}}

    def body(context) -> Any:
        context.progress(1, 2)
        path, _ = context.checkpoint({"a": 1})
        known = Task("made", made)
        context.next_task(known)
        return [context.get_channel().keys(), context.cancelled, path]

    answers = {
        "progress": None,
        "reserve": ("path.pkl", prepared),
        "task_of": None,
        "is_made": False,
        "successors_of": [],
        "code_of": b"code",
        "names": ["x"],
        "stopping": True,
    }
    outcome, asked = attempted(body, {}, answers)

    assert outcome[0] == "done"
    assert outcome[2].request.metadata["a"] == 1
    assert outcome[2].request.handle is None
    assert [spawned.record for spawned in outcome[2].spawned] == [b"code"]
    assert {kind for kind, *_ in asked} >= {"progress", "reserve", "task_of", "code_of", "names", "stopping"}


def test_a_task_made_in_a_loop_is_asked_for() -> None:
    def body(context) -> None:
        context.next_task(Task("made", made))

    answers = {"task_of": Task("made", attempted), "is_made": True, "successors_of": [], "code_of": b"code"}

    outcome, asked = attempted(body, {}, answers)

    assert outcome[0] == "done"
    assert ("is_made", "made") in asked


def test_a_context_counts_attempts_that_the_state_does_not_know_of() -> None:
    outcome, _ = attempted(lambda context: context.attempt, {}, {}, ("context", 4))

    assert outcome[1] == b"\x04"
