"""RunHost: a run, as its tasks see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.checkpoint.program.program import unpack_task
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.facts import Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import All, Group, Task
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.run import Inbox, RunHost
from graflow_ckpt.engine.settings import Settings


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
    made = ExecutionContext.create(graph, "a", session_id="s", store=str(tmp_path / "kept"))
    yield made
    made.home.close()


def host(context: ExecutionContext, **settings: Any) -> RunHost:
    given = Settings(workflow="w", **settings)
    context.settings = given
    return RunHost(context, Announcer(context.session, given.observers), Inbox())


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
    own = host(context, durability="none").code_of(task, "a", ("b",))
    assert isinstance(own, Live)
    assert own.value == (task, "a", ("b",))


@pytest.mark.parametrize("durability", ["none", "checkpoint"])
def test_what_has_still_to_run_is_not_made_anew_with_other_arguments(
    context: ExecutionContext, durability: str
) -> None:
    mine = host(context, durability=durability)
    first = mine.code_of(Task("x", body, arguments={"n": 1}), "a", ())
    context.session.commit([("task", "x", first)])
    mine.code_of(Task("x", body, arguments={"n": 2}), "a", ())  # nothing of it is pending
    context.session.commit([("enqueue", "x", None, 0, 0, "default", "direct")])

    mine.code_of(Task("x", body, arguments={"n": 1}), "a", ())
    with pytest.raises(GraphError, match="'x' was made before with other code or arguments"):
        mine.code_of(Task("x", body, arguments={"n": 2}), "a", ())


def test_a_run_that_was_told_to_stop_says_so_to_its_tasks(context: ExecutionContext) -> None:
    mine = host(context)
    assert not mine.stopping

    mine._inbox.stop()

    assert mine.stopping
