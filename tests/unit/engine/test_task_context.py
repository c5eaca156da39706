"""TaskExecutionContext: what a running task sees and asks for, through the engine and its host."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graflow_ckpt import CheckpointManager, Event, PendingCheckpoint, task, workflow
from graflow_ckpt.checkpoint.program.program import unpack_task
from graflow_ckpt.core.errors import (
    GraphError,
    NotStorable,
    TaskError,
    UnknownTask,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, Group, Task
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.run import Inbox, RunHost
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.frontends.dsl import Workflow
from tests.loops import chain

Body = Callable[[Any], Any]


def run(body: Body, *after: str, **options: Any) -> Workflow:
    """A workflow of one task `a` with that body, and tasks after it; executed."""
    with workflow("w", **options) as ctx:
        a = task(id="a", inject_context=True)(body)
        for name in after:
            _ = a >> task(id=name)(lambda name=name: name)
        ctx.execute("a")
    return ctx


def refused(body: Body, kind: type[Exception], words: str) -> Exception:
    with pytest.raises(kind, match=words) as caught:
        run(body, "b")
    return caught.value


# --- who am I --------------------------------------------------------------------------


def test_a_task_knows_who_it_is() -> None:
    seen: list[Any] = []

    def body(context: Any) -> None:
        seen.append((context.task_id, context.session_id, context.cycle, context.attempt))
        seen.append((context.idempotency_key, context.cancelled))
        assert context.get_channel() is context.channel

    run(body, session_id="s")

    assert seen == [("a", "s", 0, 1), ("s/a/0", False)]


def test_an_attempt_counts_up_and_the_key_of_what_it_does_stays() -> None:
    seen: list[Any] = []

    def a(context: Any) -> None:
        seen.append((context.attempt, context.idempotency_key, context.cycle))
        if context.attempt < 3:
            raise OSError("again")
        if context.cycle == 0:
            context.next_iteration()

    chain(a, max_retries=2, session_id="s").execute("a")

    assert seen[:3] == [(1, "s/a/0", 0), (2, "s/a/0", 0), (3, "s/a/0", 0)]
    assert seen[3][1:] == ("s/a/1", 1)


def test_progress_is_told_to_observers() -> None:
    events: list[Event] = []

    run(lambda context: context.progress(3, 10), observers=[events.append])

    (event,) = (e for e in events if e.kind == "task_progress")
    assert (event.task, event.facts["done"], event.facts["total"]) == ("a", 3, 10)


# --- values ----------------------------------------------------------------------------


def test_a_channel_knows_its_own_writes_before_they_are_committed() -> None:
    def body(context: Any) -> None:
        channel = context.get_channel()
        channel.set("x", 1)
        channel.append("y", 2)
        assert channel.keys() == ["x", "y"]
        assert "x" in channel
        assert "y" in channel
        assert "z" not in channel
        assert context.execution_context.get_channel().get("x") is None

    assert set(run(body).get_channel().keys()) >= {"x", "y"}


def test_a_result_can_be_read_by_name_and_is_not_looked_at_again() -> None:
    with workflow("w") as ctx:
        first = task(id="first")(lambda: [1])

        @task(inject_context=True)
        def second(context: Any) -> Any:
            context.get_result("first").append(2)
            return context.get_result("first"), context.get_result("nobody", 7)

        first >> second

        assert ctx.execute() == ([1], 7)


def test_something_unpicklable_is_refused_at_the_users_line_with_its_path() -> None:
    def body(context: Any) -> None:
        context.get_channel().set("state", {"rows": [1, (n for n in ())]})  # the user's line

    error = refused(body, NotStorable, "state")

    lines = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    assert "body" in lines
    assert "rows" in str(vars(error)["ids"]["path"])


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    def a(context: Any) -> None:
        context.get_channel().set("x", 1)
        context.get_channel().append("y", 1)
        context.next_task("b")
        context.checkpoint()
        raise OSError("no")

    ctx = chain(a)
    ctx.add(task(id="b")(lambda: None))
    with pytest.raises(OSError, match="no"):
        ctx.execute("a")

    assert ctx.get_channel().keys() == []
    assert ctx.execution_context.completed_tasks == set()
    causes = [m.cause for m in CheckpointManager.list_checkpoints(ctx.session_id)]
    assert "request" not in causes


# --- checkpoints -----------------------------------------------------------------------


def test_the_checkpoint_holds_the_next_iteration_that_the_same_task_asked_for() -> None:
    handles: list[PendingCheckpoint] = []

    def body(context: Any) -> None:
        if context.cycle == 0:
            handles.append(context.checkpoint())
            context.next_iteration({"k": 1})

    with workflow("w", session_id="s") as ctx:
        task(id="a", inject_context=True)(lambda context, data=None: body(context))
        ctx.execute("a")

    back, _ = CheckpointManager.resume_from_checkpoint(handles[0].path)
    (spec,) = back.task_queue.get_pending_task_specs()
    assert (spec.task_id, spec.cycle, spec.task_data) == ("a", 1, {"k": 1})
    assert back.completed_tasks == {"a"}


def test_metadata_that_json_cannot_hold_is_refused_at_the_users_line() -> None:
    refused(
        lambda context: context.checkpoint(metadata={"x": {1, 2}}), NotStorable, r"metadata\['x'\] is a set"
    )


# --- where to go -----------------------------------------------------------------------


def test_next_iteration_without_data_leaves_the_parameters_as_they_are() -> None:
    seen: list[Any] = []
    with workflow("w") as ctx:
        first = task(id="first")(lambda: 5)

        @task(inject_context=True)
        def a(context: Any, first: int) -> None:
            seen.append(first)
            if context.cycle == 0:
                context.next_iteration()
            elif context.cycle == 1:
                context.next_iteration(None)

        first >> a
        ctx.execute("first")

    assert seen == [5, 5, None]


def test_a_task_made_at_run_time_runs_with_its_arguments_before_who_waits_for_it() -> None:
    seen: list[Any] = []
    part = task(id="part")(lambda n: seen.append(n))

    def body(context: Any) -> None:
        for n in range(3):
            context.next_task(part.bind(id=f"part_{n}", n=n), before="b")
        context.next_task("part_1")

    ctx = run(body, "b")

    assert sorted(seen) == [0, 1, 1, 2]
    assert list(ctx.execution_context.state.completed)[-1] == "b"


def test_a_task_that_is_in_the_graph_is_not_made() -> None:
    def a(context: Any) -> None:
        context.next_task(x)

    ctx = chain(a)
    x = task(id="x")(lambda: None)
    ctx.add(x).execute("a")

    assert ctx.execution_context.state.tasks == {}
    assert ctx.execution_context.completed_tasks == {"a", "x"}


def test_a_task_of_the_graph_is_asked_for_as_it_is_there_and_with_other_arguments_refused() -> None:
    seen: list[Any] = []
    b = task(id="b")(lambda x: seen.append(list(x)))

    def asking(*wanted: Any) -> None:
        def a(context: Any) -> None:
            for one in wanted:
                context.next_task(one)

        chain(a).add(b.bind(x=np.array([1, 2]))).execute("a")

    asking(b, "b", b.bind(x=np.array([1, 2])))
    assert seen == [[1, 2]] * 3
    for other in (np.array([1, 3]), 1, threading.Lock()):
        with pytest.raises(GraphError, match="already has another task 'b'"):
            asking(b.bind(x=other))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (lambda context: context.next_task("nobody"), UnknownTask, "the graph has no such task"),
        (
            lambda context: context.next_task(task(id="b")(lambda: None)),
            GraphError,
            "already has another task 'b'",
        ),
        (
            lambda context: context.next_task(task(id="x")(lambda: None), before="a"),
            GraphError,
            "'x' cannot stand before 'a': 'a' does not lead there. before= takes successors of 'a': b.",
        ),
        (
            lambda context: context.next_task(task(id="x")(lambda: None).bind(k=1)),
            GraphError,
            "'x' takes no parameter 'k'",
        ),
        (lambda context: context.next_task(len), GraphError, "not a builtin_function_or_method"),
        (
            lambda context: context.next_task(task(id="x")(lambda: None) >> task(id="y")(lambda: None)),
            GraphError,
            "next_task takes a task or a name, not a Chain",
        ),
        (lambda context: context.next_task("b", data=(n for n in ())), NotStorable, "next_task"),
        (lambda context: context.next_iteration(n for n in ()), NotStorable, "next_iteration"),
    ],
)
def test_what_cannot_come_next_is_refused_where_it_is_asked_for(
    body: Body, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        run(body, "b")

    assert words in str(caught.value)


@pytest.mark.parametrize("durability", ["none", "checkpoint"])
def test_two_tasks_of_one_name_made_at_run_time_are_refused(durability: Any) -> None:
    part = task(id="part", priority=-1)(lambda n: n)  # the first one has still to run

    def twice(context: Any) -> None:
        for n in (1, 2):
            context.next_task(part.bind(id="p", n=np.array([n, n])))

    def in_two_rounds(context: Any) -> None:
        context.next_task(part.bind(id="p", n=np.array([context.cycle, 0])))
        if context.cycle == 0:
            context.next_iteration()

    for body in (twice, in_two_rounds):
        with pytest.raises(GraphError, match="'p' was made before with other code or arguments"):
            run(body, durability=durability, max_parallel=1)


@pytest.mark.parametrize("durability", ["none", "checkpoint"])
def test_the_same_task_may_be_made_again_and_another_one_once_the_first_has_run(durability: Any) -> None:
    seen: list[int] = []
    part = task(id="part")(lambda n: seen.append(n[0]))

    def body(context: Any) -> None:
        for _ in range(2):
            context.next_task(part.bind(id="p", n=np.array([context.cycle, 0])))
        if context.cycle == 0:
            context.next_task("again")

    with workflow("w", durability=durability, max_parallel=1) as ctx:
        a = task(id="a", inject_context=True)(body)
        task(id="again", inject_context=True)(lambda context: context.next_task("a"))
        ctx.execute(a)

    assert seen == [0, 0, 1, 1]
    assert ctx.execution_context.status == "completed"


def test_a_task_that_a_loop_makes_anew_has_its_new_body_and_options() -> None:
    def body(context: Any) -> None:
        number = context.cycle

        @task(id="made", inject_context=True, max_retries=number, backoff=0.001, jitter=0.0)
        def made(context: Any) -> None:
            if context.attempt <= number:
                raise ValueError("not yet")
            context.channel.append("made", number)
            if number < 2:
                context.next_task("a")

        context.next_task(made)

    assert run(body).get_channel().get("made") == [0, 1, 2]


def test_a_task_is_not_made_again_with_other_successors() -> None:
    part = task(id="part")(lambda: None)

    def body(context: Any) -> None:
        context.next_task(part.bind(id="p"), before="bc"[context.cycle])
        if context.cycle == 0:
            context.next_iteration()

    with pytest.raises(GraphError, match="'p' was made before with other successors"):
        run(body, "b", "c")


# --- ends ------------------------------------------------------------------------------


def test_cancel_without_a_message_says_that_it_was_cancelled() -> None:
    refused(lambda context: context.cancel_workflow(), TaskError, "The workflow was cancelled")


def test_nothing_can_be_asked_for_after_the_attempt_is_over() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda context: context.get_channel().get("x"),
        lambda context: context.get_channel().set("x", 1),
        lambda context: context.get_channel().append("x", 1),
        lambda context: context.checkpoint(),
        lambda context: context.next_iteration(),
        lambda context: context.next_task("a"),
        lambda context: context.terminate_workflow(),
        lambda context: context.cancel_workflow(),
        lambda context: context.progress(1),
    ]
    refusals: list[str] = []

    def body(context: Any) -> None:
        try:
            context.cancel_workflow("over")
        except WorkflowCancelled:
            for call in calls:
                try:
                    call(context)
                except WorkflowCancelled as error:
                    refusals.append(str(error))

    refused(body, WorkflowCancelled, "over")

    assert refusals == ["over"] * len(calls)


# --- the host of a task ---------------------------------------------------------------


def body() -> None: ...


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ExecutionContext]:
    graph = TaskGraph()
    graph.add(Task("a", body))
    graph.add(Task("b", body))
    graph.add(Group("g", All(), ("a",), frozenset("a")))
    graph.add_edge("a", "g")
    graph.add_edge("a", "b")
    graph.compile(["a"])
    given = Settings(workflow="w")
    made = ExecutionContext.create(graph, "a", session_id="s", store=str(tmp_path / "kept"), settings=given)
    yield made
    made.home.close()


def host(context: ExecutionContext, *, keeps: bool = True) -> RunHost:
    announcer = Announcer(context.session, ())
    return RunHost(context.graph, context.session, context.home, announcer, Inbox(), keeps=keeps)


def test_tasks_are_known_by_name_and_groups_are_none(context: ExecutionContext) -> None:
    mine = host(context)

    assert mine.task_of("a") is context.graph.nodes["a"]
    assert mine.task_of("g") is None
    assert mine.task_of("nobody") is None
    assert mine.successors_of("a") == ("g", "b")


def test_what_was_made_at_run_time_is_told_apart(context: ExecutionContext) -> None:
    mine = host(context)
    assert not mine.is_made("x")

    context.graph.extend("a", Task("x", body), ("b",))

    assert (mine.is_made("x"), mine.is_made("a")) == (True, False)
    assert mine.successors_of("x") == ("b",)


def test_a_reserved_checkpoint_has_its_path_before_it_is_there(context: ExecutionContext) -> None:
    mine = host(context)

    first, second = mine.reserve("a", {"epoch": 1}), mine.reserve("a", {"epoch": 2})

    assert first.path != second.path
    assert Path(first.path).name.startswith("session_s_step_1_")
    assert (first.metadata.path, first.metadata.user_metadata) == (first.path, {"epoch": 1})
    assert (first.metadata.steps, first.metadata.workflow, first.metadata.session_id) == (1, "w", "s")
    assert not Path(first.path).parent.exists()


def test_a_task_made_at_run_time_is_kept_as_bytes_if_anything_is(context: ExecutionContext) -> None:
    task = Task("x", body, arguments={"n": 1})

    kept = host(context).code_of(task, "a", ("b",))
    assert isinstance(kept, bytes)
    back, spawner, before = unpack_task(kept)
    assert (back.func, back.arguments, spawner, before) == (body, {"n": 1}, "a", ("b",))
    own = host(context, keeps=False).code_of(task, "a", ("b",))
    assert isinstance(own, Live)
    assert own.value == (task, "a", ("b",))


def test_a_run_that_was_told_to_stop_says_so_to_its_tasks(context: ExecutionContext) -> None:
    mine = host(context)
    assert not mine.stopping

    mine._inbox.stop()

    assert mine.stopping
