"""The child's side of an attempt, run in this process over real pipes."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graflow_ckpt.core.errors import WorkflowCancelled
from graflow_ckpt.core.facts import Claim, Live, TaskSpec
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine import child
from graflow_ckpt.engine.children import FromChannel, Pipe


@pytest.fixture(autouse=True)
def outlives_its_parent() -> Iterator[None]:
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 0)


class Box:
    """A live value."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)


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
    pipe.send((list(sys.path), os.getcwd(), "s", "s", claim, True))
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


def test_a_coroutine_is_run() -> None:
    async def body() -> str:
        return "x"

    assert attempted(body, context=None)[0][1] == b"\xa1x"


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


def test_a_failure_comes_back_as_the_exception() -> None:
    def body() -> None:
        raise LookupError("x")

    (kind, error), _ = attempted(body, context=None)

    assert kind == "failed"
    assert repr(error) == "LookupError('x')"


def test_a_cancellation_comes_back_also_if_it_was_swallowed() -> None:
    def raises(context) -> None:
        context.cancel_workflow("enough")

    def swallows(context) -> None:
        try:
            context.cancel_workflow("enough")
        except WorkflowCancelled:
            return

    for body in (raises, swallows):
        (kind, error), _ = attempted(body)
        assert kind == "cancelled"
        assert error.message == "enough"


def test_what_cannot_be_pickled_comes_back_as_words() -> None:
    class Locked(Exception):
        def __init__(self) -> None:
            super().__init__("locked")
            self.lock = threading.Lock()

    def body() -> None:
        raise Locked

    (kind, error), _ = attempted(body, context=None)

    assert kind == "failed"
    assert "Locked('locked')" in str(error)


def test_a_change_of_what_was_to_be_looked_at_is_found_in_the_child() -> None:
    def body(context) -> None:
        context.get_channel().get("box", readonly=True).items.append(2)

    (kind, error), _ = attempted(body, {}, {"read": (Live(Box(1)), 1, ())})

    assert kind == "failed"
    assert error.name == "box"


def test_a_context_counts_attempts_that_the_state_does_not_know_of() -> None:
    outcome, _ = attempted(lambda context: context.attempt, {}, {}, ("context", 4))

    assert outcome[1] == b"\x04"
