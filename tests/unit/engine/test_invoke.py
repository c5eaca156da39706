"""Invoking bodies: middleware, what comes back from where, and live values of failed attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from graflow_ckpt import EveryTask, task, workflow
from graflow_ckpt.checkpoint.values.codec import to_cell
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.facts import Claim, Done, Failed, Outcome, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.body.bind import SPREAD
from graflow_ckpt.engine.invoke import Bodies, Invoker, Threads, spread
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.sessions.memory import MemorySession
from tests.loops import chain
from tests.stretch import stretched

LONG = 20.0  # seconds: only a hang takes so long
COLOURS = ["inline", "thread", "async", "process"]


def of_colour(colour: str, body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The body as a task that runs inline, on a thread, on a loop or in a process."""
    if colour == "async":

        async def wrapped() -> Any:
            return body()

        return task(id="body", **options)(wrapped)
    if colour == "thread":
        options |= {"timeout": 60}
    return task(id="body", isolation="process" if colour == "process" else "thread", **options)(body)


# --- middleware ------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_middleware_stands_around_every_body_the_first_one_outermost(colour: str) -> None:
    calls: list[Any] = []

    def named(name: str) -> Callable[[Claim, Callable[[Claim], Outcome]], Outcome]:
        def middleware(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
            calls.append(f"{name} before {claim.spec.task_id}")
            outcome = call_next(claim)
            calls.append(f"{name} after {type(outcome).__name__}")
            return outcome

        return middleware

    with workflow("w", middleware=[named("outer"), named("inner")]) as flow:
        of_colour(colour, lambda: 5)
        assert flow.execute() == 5

    assert calls == ["outer before body", "inner before body", "inner after Done", "outer after Done"]


@pytest.mark.parametrize("colour", COLOURS)
def test_middleware_may_answer_for_the_body(colour: str) -> None:
    ran: list[int] = []

    def cached(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
        return Done(b"\x07")

    with workflow("w", middleware=[cached]) as flow:
        of_colour(colour, lambda: ran.append(1))
        assert flow.execute() == 7

    assert ran == []


@pytest.mark.parametrize("colour", COLOURS)
def test_middleware_that_fails_fails_the_task(colour: str) -> None:
    def broken(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
        raise PermissionError("no secrets today")

    with workflow("w", middleware=[broken]) as flow:
        of_colour(colour, lambda: 1)
        with pytest.raises(PermissionError, match="no secrets today"):
            flow.execute()

    assert flow.execution_context.status == "failed"


@pytest.mark.parametrize("colour", COLOURS)
def test_middleware_sees_failures_as_outcomes(colour: str) -> None:
    outcomes: list[Outcome] = []

    def watching(claim: Claim, call_next: Callable[[Claim], Outcome]) -> Outcome:
        outcomes.append(call_next(claim))
        return outcomes[-1]

    def body() -> None:
        raise LookupError("x")

    with workflow("w", middleware=[watching]) as flow:
        of_colour(colour, body, max_retries=1)
        with pytest.raises(LookupError, match="x"):
            flow.execute()

    assert [type(outcome) for outcome in outcomes] == [Failed, Failed]


# --- what comes back -------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_result_that_cannot_be_kept_fails_its_task_by_its_path(colour: str) -> None:
    with workflow("w") as flow:
        of_colour(colour, lambda: {"lock": threading.Lock()})
        with pytest.raises(NotStorable, match=r"body\.__result__\['lock'\]"):
            flow.execute()


class Demanding(Exception):
    """Cannot be made again from its args."""

    def __init__(self, first: int, *, second: int) -> None:
        super().__init__(first)
        self.second = second


def test_an_exception_that_cannot_be_made_again_is_told_in_words_and_kills_nothing() -> None:
    def body() -> None:
        raise Demanding(1, second=2)

    with workflow("w") as flow:
        of_colour("process", body)
        with pytest.raises(RuntimeError, match=r"Demanding\(1\)") as told:
            flow.execute()

    assert flow.execution_context.status == "failed"
    assert "in body" in told.value.__notes__[0]


def test_the_traceback_of_a_process_is_a_note_of_its_exception() -> None:
    def body() -> None:
        raise LookupError("x")

    with workflow("w") as flow:
        of_colour("process", body)
        with pytest.raises(LookupError) as raised:
            flow.execute()

    assert "in body" in raised.value.__notes__[0]


def test_a_body_that_cannot_cross_fails_its_task_by_the_path_to_what_cannot() -> None:
    lock = threading.Lock()

    with workflow("w") as flow:
        of_colour("process", lambda: lock.locked())
        with pytest.raises(NotStorable, match="lock"):
            flow.execute()


@pytest.mark.parametrize("colour", ["inline", "async", "process"])
def test_an_argument_that_cannot_be_made_fails_the_task_and_not_the_run(colour: str) -> None:
    with workflow("w", durability="none") as flow:
        flow.execution_context.session.commit([("put", "items", b"\x01", -1)])
        flow.execution_context.session.commit([("append", "items", b"\x01")])
        if colour == "async":

            @task
            async def body(items: Any) -> None: ...
        else:

            @task(id="body", isolation="process" if colour == "process" else "thread")
            def plain(items: Any) -> None: ...

        with pytest.raises(TypeError, match="only lists can be appended to"):
            flow.execute()

    assert flow.execution_context.status == "failed"


# --- live values of failed attempts ----------------------------------------------------


class Box:
    """A live value."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}


class Slow:
    """While it is pickled, whoever is asked to wait can change things."""

    def __init__(self) -> None:
        self.broken = False

    def __getstate__(self) -> dict[str, Any]:
        if self.broken:
            raise RuntimeError("dictionary changed size during iteration")
        return {"broken": False}


def test_a_value_that_is_being_changed_at_the_deadline_counts_as_torn() -> None:
    release = threading.Event()
    attempts = []

    def make(context) -> None:
        context.get_channel().set("slow", Slow())

    def use(context) -> bool:
        attempts.append(context.attempt)
        slow = context.get_channel().get("slow")
        if context.attempt == 1:
            slow.broken = True
            release.wait(LONG)
        return slow.broken

    flow = chain(make, use, timeout=stretched(0.1), max_retries=1, session_id="s", checkpoint=EveryTask())
    assert flow.execute() is False
    release.set()

    assert attempts == [1, 2]


def test_a_failed_attempt_that_made_its_value_unpicklable_takes_the_session_back() -> None:
    def make(context) -> None:
        context.get_channel().set("box", Box())

    def use(context) -> list[str]:
        box = context.get_channel().get("box")
        if context.attempt == 1:
            box.items["lock"] = threading.Lock()
            raise OSError
        return list(box.items)

    assert chain(make, use, max_retries=1, session_id="s", checkpoint=EveryTask()).execute() == []


def test_the_spread_of_delays_is_random_and_leaves_random_state_alone() -> None:
    import random

    before = random.getstate()

    found = {spread() for _ in range(10)}

    assert len(found) == 10
    assert all(0 <= value < 1 for value in found)
    assert random.getstate() == before


# --- threads ----------------------------------------------------------------------------


def named(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_jobs_run_side_by_side() -> None:
    threads = Threads("side")
    together = threading.Barrier(3, timeout=30)
    for _ in range(2):
        threads.submit(lambda: together.wait() and None)

    together.wait()

    threads.close()


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads("again")
    done = threading.Semaphore(0)
    for _ in range(50):
        threads.submit(done.release)
        assert done.acquire(timeout=30)
        while not threads._idle:  # the job is over a moment before its thread is idle
            threading.Event().wait(0.001)

    assert [thread.name for thread in named("again")] == ["again-1"]
    threads.close()


def test_a_thread_is_started_when_none_is_idle() -> None:
    threads = Threads("more")
    hold, begun = threading.Event(), threading.Semaphore(0)

    def body() -> None:
        begun.release()
        hold.wait(30)

    for _ in range(3):
        threads.submit(body)
        assert begun.acquire(timeout=30)

    assert sorted(thread.name for thread in named("more")) == ["more-1", "more-2", "more-3"]
    assert all(thread.daemon for thread in named("more"))
    hold.set()
    threads.close()


def test_idle_threads_end_with_the_run_and_busy_ones_after_their_job() -> None:
    threads = Threads("end")
    hold, begun, over = threading.Event(), threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        hold.wait(30)
        over.set()

    threads.submit(body)
    begun.wait(30)
    (thread,) = named("end")
    threads.close()
    assert thread.is_alive()

    hold.set()
    thread.join(30)

    assert over.is_set()
    assert not thread.is_alive()


# --- arguments -------------------------------------------------------------------------


NOBODY = cast(Any, None)  # whom no body here asks for anything


class Asked(MemorySession):
    """Notes which values are asked for: in Redis that is a script call."""

    shares = False

    def __init__(self) -> None:
        super().__init__(SessionState("s"))
        self.names: list[str] = []

    def prefetch(self, names: Sequence[str]) -> None:
        self.names += names

    def read(self, name: str) -> Any:
        self.names.append(name)
        return super().read(name)


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ({SPREAD: {"x": 1, "y": 2}}, []),
        ({SPREAD: {"x": 1}}, ["y", "y"]),
        ({"x": 1}, ["y", "y"]),  # the first parameter takes it
        (None, ["x", "y", "x", "y"]),
    ],
)
def test_what_a_call_has_given_is_not_asked_for(data: Any, asked: list[str]) -> None:
    with workflow("w", durability="none") as flow:
        flow.add(task(id="body")(lambda x=None, y=None: 3))
    flow.graph.compile(["body"])
    session = Asked()

    spec = TaskSpec("body", None if data is None else to_cell(data), key=1)
    bodies = Bodies(flow.graph, session, Settings(workflow="w"), NOBODY, {})
    _, outcome = Invoker(bodies).call(Claim(spec, 1), bodies.binding("body"))

    assert outcome == Done(to_cell(3))
    assert session.names == asked
