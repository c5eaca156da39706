"""Decorated workflows: what a `with` block collects, and what execute and a command line make of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import GraphError, InputsChanged
from graflow_ckpt.core.policy import EveryN, EveryTask
from graflow_ckpt.core.task import Backoff
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.frontends.dsl import task, workflow
from graflow_ckpt.frontends.expressions import DecoratedTask, called, collector, group
from graflow_ckpt.frontends.overrides import Overrides, Planned, overrides


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@task
def outside(x: int = 1) -> int:
    return x + 1


# --- @task -----------------------------------------------------------------------------


def test_a_bare_decorator_names_the_task_after_its_function() -> None:
    @task
    def plain() -> int:
        return 1

    assert (plain.name, plain()) == ("plain", 1)
    assert repr(plain) == "<task plain>"


def test_options_are_taken_by_name() -> None:
    @task(id="other", max_retries=2, backoff=1.5, timeout=3, priority=4, max_cycles=5, queue="gpu")
    def body() -> None: ...

    assert body.name == "other"
    options = body.options
    assert (options.max_retries, options.timeout, options.priority, options.max_cycles) == (2, 3, 4, 5)
    assert (options.queue, options.backoff) == ("gpu", Backoff(1.5))


@pytest.mark.parametrize(
    ("given", "backoff"),
    [
        ({}, Backoff()),
        ({"backoff": 2}, Backoff(2.0)),
        ({"backoff": Backoff(1, 3)}, Backoff(1, 3)),
        ({"backoff": 2, "jitter": 0.5}, Backoff(2.0, jitter=0.5)),
        ({"backoff": Backoff(1, 3), "jitter": 0.0}, Backoff(1, 3, jitter=0.0)),
        ({"jitter": 0.5}, Backoff(jitter=0.5)),
    ],
)
def test_a_backoff_is_a_number_of_seconds_or_a_value_and_has_a_jitter(
    given: dict[str, Any], backoff: Backoff
) -> None:
    assert task(**given)(lambda: None).options.backoff == backoff


def test_a_function_without_a_name_needs_an_id() -> None:
    class Callee:
        def __call__(self) -> int:
            return 3

    with pytest.raises(GraphError, match=r"has no name. Give one: @task\(id="):
        task(Callee())
    assert task(id="named")(Callee())() == 3


# --- what a block collects -------------------------------------------------------------


def test_tasks_and_expressions_of_a_block_belong_to_its_workflow() -> None:
    with workflow("w") as ctx:

        @task
        def a() -> int:
            return 1

        @task
        def b(a: int) -> int:
            return a + 1

        @task
        def alone() -> None: ...

        a >> b

    assert list(ctx.graph.nodes) == ["a", "b", "alone"]
    assert list(ctx.graph.edges()) == [("a", "b")]
    assert ctx.execute("a") == 2


def test_only_the_whole_of_an_expression_counts() -> None:
    with workflow("w") as ctx:
        a, b, c, d = (task(id=name)(lambda: None) for name in "abcd")
        inner = a | b
        _ = inner >> c
        _ = group(b, c).best_effort() >> d
        again = c >> d
        ctx.collect(again, ())

    assert [name for name in ctx.graph.nodes if name.startswith("group")] == ["group_1", "group_2"]


def test_a_loop_of_next_iterations_adds_nothing_to_the_graph() -> None:
    with workflow("w") as ctx:

        @task(inject_context=True)
        def count(context: Any) -> int:
            @task
            def inner() -> None: ...

            context.next_task(inner)
            _ = inner >> inner
            if context.cycle < 50:
                context.next_iteration()
            return int(context.cycle)

        ctx.execute("count")
        nodes = list(ctx.graph.nodes)
        ctx.execute("count")

    assert (nodes, list(ctx.graph.nodes)) == (["count", "inner"], ["count", "inner"])
    gc.collect()
    assert ctx.graph_nodes == []
    assert len(called("inner")) <= 10  # of a hundred; a run that is just over may hold its last ones


def test_what_a_body_decorates_is_not_collected_even_if_the_body_fails() -> None:
    with workflow("w") as ctx:

        @task
        def fails() -> None:
            assert collector.get() is None
            raise KeyError("no")

        with pytest.raises(KeyError):
            ctx.execute("fails")

        assert collector.get() is ctx


def test_tasks_chains_and_groups_made_elsewhere_can_be_added() -> None:
    a, b, c = (task(id=name)(lambda name=name: name) for name in "abc")

    ctx = workflow("w").add(c, a >> b)

    assert list(ctx.graph.nodes) == ["c", "a", "b"]
    assert ctx.execute("a") == "b"


def test_blocks_may_be_nested_and_do_not_mix() -> None:
    with workflow("outer") as outer:
        a, b = (task(id=name)(lambda: None) for name in "ab")
        with workflow("inner") as inner:
            c = task(id="c")(lambda: None)
            _ = c >> c
        _ = a >> b
        with outer:
            _ = b >> a

    assert list(outer.graph.edges()) == [("a", "b"), ("b", "a")]
    assert list(inner.graph.nodes) == ["c"]
    assert collector.get() is None


# --- execute ---------------------------------------------------------------------------


def test_a_task_decorated_outside_the_block_is_found_by_its_name() -> None:
    with workflow("w") as ctx:
        assert ctx.execute("outside") == 2
    assert list(ctx.graph.nodes) == ["outside"]


def test_a_name_that_several_modules_have_is_refused() -> None:
    def foreign() -> None: ...

    foreign.__module__ = "elsewhere"
    other = task(id="outside")(foreign)

    with pytest.raises(GraphError, match="Several modules have a task 'outside': elsewhere, "):
        workflow("w").execute("outside")
    assert workflow("w").execute(other) is None


def test_a_start_may_be_the_task_itself_but_not_another_one_of_that_name() -> None:
    with workflow("w") as ctx:
        a = task(id="a")(lambda: "mine")

    assert ctx.execute(a) == "mine"
    with pytest.raises(GraphError, match="Two different tasks are called 'a'"):
        ctx.execute(DecoratedTask("a", lambda: "other"))


@pytest.mark.parametrize("start", [("a",), ()])
def test_a_failed_session_goes_on_with_the_next_execute(start: tuple[str, ...]) -> None:
    ran: list[str] = []
    with workflow("w", session_id="s") as ctx:

        @task
        def a() -> None:
            ran.append("a")

        @task
        def b() -> str:
            ran.append("b")
            if ran.count("b") == 1:
                raise OSError("not yet")
            return "done"

        a >> b
        with pytest.raises(OSError, match="not yet"):
            ctx.execute(*start)

        assert ctx.execute(*start) == "done"

    assert ran == ["a", "b", "b"]


def test_other_inputs_on_resume_are_refused_and_the_session_is_let_go() -> None:
    with workflow("w", session_id="s") as ctx:

        @task
        def a(k: int) -> None:
            raise OSError("not yet")

        for _ in range(2):
            with pytest.raises(OSError, match="not yet"):
                ctx.execute("a", inputs={"k": 1})

        with pytest.raises(InputsChanged):
            ctx.execute("a", inputs={"k": 2})
        assert ctx.execution_context.home.lease is None


def test_a_start_at_a_named_group_runs_its_members_and_what_follows_them() -> None:
    ran: list[str] = []

    with workflow("w") as flow:

        @task
        def before() -> None:
            ran.append("before")

        @task
        def left() -> int:
            ran.append("left")
            return 1

        @task
        def more(left: int) -> int:
            ran.append("more")
            return left + 1

        @task
        def right() -> int:
            ran.append("right")
            return 5

        @task
        def join(g: dict[str, int]) -> int:
            ran.append("join")
            return sum(g.values())

        _ = before >> (left >> more | right).named("g") >> join
        assert flow.execute("g") == 7

    assert (sorted(ran), ran[-1]) == (["join", "left", "more", "right"], "join")


# --- settings --------------------------------------------------------------------------


def test_what_is_given_counts_and_what_is_not_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_DURABILITY", "none")
    monkeypatch.setenv("GRAFLOW_CKPT_STORE", str(tmp_path / "env"))

    assert workflow("w").settings.durability == "none"
    assert workflow("w").execution_context.home.store.url.endswith("env")
    given = workflow("w", durability="journal", checkpoint=EveryN(2), store=tmp_path / "mine")
    assert (given.settings.durability, given.settings.policy) == ("journal", EveryN(2))
    assert given.execution_context.home.store.url.endswith("mine")


# --- the command line ------------------------------------------------------------------


@pytest.fixture
def other_workflow_chosen() -> Iterator[None]:
    overrides.only = "another"
    yield
    overrides.only = None


@pytest.mark.usefixtures("other_workflow_chosen")
def test_a_workflow_that_was_not_chosen_runs_nothing() -> None:
    with workflow("w") as ctx:
        task(id="a")(lambda: 1)

        assert ctx.execute("a") is None
        assert asyncio.run(ctx.aexecute("a")) is None


def test_the_command_line_gives_inputs_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "inputs", {"k": 5})
    monkeypatch.setattr(overrides, "max_steps", 1)
    with workflow("w") as ctx:
        a = task(id="a")(lambda k: k)
        _ = a >> task(id="b")(lambda: None)

        assert ctx.execute("a", max_steps=9, inputs={"k": 1}) == 5

    assert ctx.execution_context.status == "stopped"


# --- planned ----------------------------------------------------------------------------


NOWHERE = "redis://127.0.0.1:1/0"  # nobody may be asked


@task
def add(rows: int = 1, more: int = 0) -> int:
    return rows + more


@pytest.fixture
def planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(overrides, "planning", True)


@pytest.mark.usefixtures("planning")
def test_a_submit_ends_it_as_an_execute_does() -> None:
    flow = workflow("flow", session_id="mine").add(add)

    with pytest.raises(Planned) as caught:
        flow.submit(NOWHERE, inputs={"rows": 3}, max_steps=5)

    reached = caught.value
    assert (reached.workflow, reached.starts, reached.max_steps) == (flow, ("add",), 5)
    assert reached.inputs == {"rows": 3}
    assert flow.wanted_session == "mine"


@pytest.mark.usefixtures("planning")
def test_a_workflow_that_was_not_chosen_is_not_submitted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "only", "another")

    assert workflow("flow").add(add).submit(NOWHERE) is None


@pytest.mark.usefixtures("planning")
def test_what_was_put_into_the_channel_is_an_input_and_the_call_wins() -> None:
    flow = workflow("flow").add(add)
    flow.get_channel().set("rows", 3)
    flow.get_channel().set("more", 4)

    with pytest.raises(Planned) as caught:
        flow.execute(inputs={"rows": 5})

    assert caught.value.inputs == {"rows": 5, "more": 4}


def test_an_id_of_an_enum_is_its_text() -> None:
    class Names(StrEnum):
        FIRST = "first"

    made = task(id=Names.FIRST)(print)

    names = [made.name, made.bind(id=Names.FIRST).name, group(made, name=Names.FIRST).name]
    assert [(type(name), name) for name in names] == [(str, "first")] * 3


def test_a_variable_that_nothing_reads_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_STOER", "sqlite:///a.db")
    monkeypatch.setenv("GRAFLOW_CKPT_XYZZY", "1")

    workflow("w")
    workflow("w")

    assert caplog.messages == [
        "GRAFLOW_CKPT_STOER is set, and nothing reads it. Did you mean GRAFLOW_CKPT_STORE?",
        "GRAFLOW_CKPT_XYZZY is set, and nothing reads it.",
    ]


# --- what a command line changes ------------------------------------------------------


FIRST, SECOND = "first", "second"
SETTINGS = Settings(workflow="first")


def session(given: Overrides, workflow: str, own: str | None = None) -> str | None:
    return given.apply(workflow, own, SETTINGS, "checkpoints")[0]


def test_nothing_said_changes_nothing() -> None:
    assert Overrides().apply(FIRST, "s", SETTINGS, "here") == ("s", SETTINGS, "here")


def test_settings_policy_observers_and_store_are_those_of_the_command_line() -> None:
    given = Overrides()
    given.store = "there"
    given.settings = {"durability": "journal", "policy": EveryTask()}
    mine, theirs = (lambda event: None), (lambda event: None)
    given.observers = (mine,)

    _, settings, store = given.apply(FIRST, None, Settings(observers=(theirs,)), "here")

    assert (settings.durability, settings.policy, store) == ("journal", EveryTask(), "there")
    assert settings.observers == (theirs, mine)


def test_the_session_is_the_first_workflows_and_others_get_ids_made_from_it() -> None:
    given = Overrides()
    given.session = "s"

    assert session(given, FIRST, "own") == "s"
    assert session(given, SECOND) == "s-second"
    assert session(given, SECOND, "own") == "own"
    assert session(given, FIRST) == "s"  # the next execute of the same workflow


def test_the_session_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "env")
    given = Overrides()

    assert session(given, FIRST) == "env"
    other = Overrides()
    other.session = "said"
    assert session(other, FIRST) == "said"


def test_an_empty_session_of_the_environment_leaves_the_one_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SESSION", "")

    assert session(Overrides(), FIRST, "own") == "own"


def test_what_is_said_about_one_workflow_is_not_about_another() -> None:
    given = Overrides()
    given.target, given.session, given.store = "second", "s", "there"

    assert given.apply(FIRST, "own", SETTINGS, "here") == ("own", SETTINGS, "here")
    assert session(given, SECOND) == "s"
    assert (given.concerns(FIRST), given.concerns(SECOND)) == (False, True)


def test_only_the_chosen_workflow_runs() -> None:
    given = Overrides()
    assert given.wants(FIRST)
    given.only = "second"

    assert not given.wants(FIRST)
    assert given.wants(SECOND)
    assert given.executed == ["first", "second"]


def test_workflows_are_noted_for_a_command_line_that_collects_them() -> None:
    given = Overrides()
    given.meet(FIRST)
    given.collecting = True
    given.meet(SECOND)

    assert given.met == [SECOND]


def test_planning_ends_the_program_before_anything_is_touched() -> None:
    given = Overrides()
    first, second = workflow("first"), workflow("second")
    given.prepared(Planned(first, ("a",)))
    given.planning, given.target = True, "first"
    given.prepared(Planned(second, ("a",)))

    with pytest.raises(Planned) as caught:
        given.prepared(Planned(first, ("a", "b"), {"rows": 3}, 7))

    assert (caught.value.workflow, caught.value.starts) == (first, ("a", "b"))
    assert (caught.value.inputs, caught.value.max_steps) == ({"rows": 3}, 7)
    assert not isinstance(caught.value, Exception)


def test_a_program_that_is_planned_touches_no_session() -> None:
    given = Overrides()
    given.planning, given.session = True, "s"

    found, settings, store = given.apply(FIRST, "own", Settings(durability="journal", resume="must"), "here")

    assert (found, settings.durability, settings.resume, store) == (None, "none", "auto", "here")
