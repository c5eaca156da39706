"""One call of execute: what it starts with, how it goes back, what is left when it has ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryTask,
    ExecutionContext,
    KeepLast,
    TaskExecutionContext,
    TaskGraph,
    Workflow,
    WorkflowEngine,
    task,
    workflow,
)
from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    GraphError,
    JournalDamaged,
    MaxCyclesExceeded,
    SessionCancelled,
    SessionError,
    SessionFinished,
    TaskError,
    ValueTorn,
    WorkflowCancelled,
)
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores import open_store
from tests.acceptance.places import Box
from tests.loops import chain, pair


def graph_of(*tasks: Task) -> TaskGraph:
    """A chain."""
    graph = TaskGraph()
    for one in tasks:
        graph.add(one)
    for source, target in pairwise(tasks):
        graph.add_edge(source.name, target.name)
    return graph


def test_an_engine_holds_nothing_between_two_sessions() -> None:
    engine = WorkflowEngine()
    graph = graph_of(Task("a", lambda: 1))

    results = [engine.execute(ExecutionContext(graph)) for _ in range(2)]

    assert results == [1, 1]


def test_a_start_in_the_middle_leaves_out_what_is_before() -> None:
    ran: list[str] = []
    graph = graph_of(Task("a", lambda: ran.append("a")), Task("b", lambda a=None: ran.append("b")))

    WorkflowEngine().execute(ExecutionContext(graph), "b")

    assert ran == ["b"]


def test_a_start_that_the_graph_does_not_have_is_named() -> None:
    with pytest.raises(GraphError, match="no task 'nowhere'"):
        WorkflowEngine().execute(ExecutionContext(graph_of(Task("a", lambda: 1))), "nowhere")


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="no task to start with"):
        WorkflowEngine().execute(ExecutionContext(TaskGraph()))


def test_aexecute_of_a_finished_session_gives_its_result() -> None:
    graph = graph_of(Task("a", lambda: 1))
    engine = WorkflowEngine()
    engine.execute(ExecutionContext(graph, "s"))
    with workflow("w", session_id="s", changed="reuse") as flow:
        task(id="a")(lambda: 2)

    assert asyncio.run(engine.aexecute(flow.execution_context)) == 1


# --- how a failure is kept -------------------------------------------------------------


def failing(**options: Any) -> Any:
    def a(context) -> int:
        context.checkpoint()
        return 1

    def b(a: int) -> None:
        raise OSError("x")

    return chain(a, b, session_id="s", **options)


def test_pause_keeps_a_cut_from_which_the_failed_task_runs_again() -> None:
    with pytest.raises(OSError, match="x"):
        failing().execute()

    newest = CheckpointManager.list_checkpoints("s")[0]
    assert (newest.cause, newest.status, newest.steps) == ("failure", "failed", 1)
    context, _ = CheckpointManager.resume_from_checkpoint(newest.path)
    assert context.task_queue.get_pending_tasks() == ["b"]
    assert context.completed_tasks == {"a"}


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_rollback_keeps_nothing(durability: Any) -> None:
    with pytest.raises(OSError, match="x") as failed:
        failing(on_failure="rollback", durability=durability).execute()

    assert getattr(failed.value, "__notes__", []) == []
    assert CheckpointManager.list_checkpoints("s") == []
    assert [raw for _, _, raw in open_store("checkpoints").segments("s") if raw] == []
    assert failing().execution_context.found is None


def test_an_unnamed_session_that_fails_can_go_on_all_the_same() -> None:
    def a() -> None:
        raise OSError("x")

    flow = chain(a)
    with pytest.raises(OSError, match="x") as failed:
        flow.execute()

    session = flow.execution_context.session_id
    assert failed.value.__notes__ == [f"Session {session} can go on: graflow-ckpt resume {session}"]
    assert CheckpointManager.list_checkpoints(session)[0].status == "failed"


def test_a_stop_at_max_steps_says_how_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    def a(context) -> None:
        context.next_iteration()

    with caplog.at_level(logging.INFO):
        chain(a, session_id="s").execute(max_steps=2)

    assert "max_steps=2 reached; resume with a larger one: graflow-ckpt resume s" in caplog.text


# --- going back ------------------------------------------------------------------------


def test_each_visit_of_a_loop_has_its_own_retries_when_the_session_goes_back() -> None:
    attempts = []

    def make(context) -> None:
        context.get_channel().set("box", Box())

    def turn(context) -> list[int]:
        attempts.append((context.cycle, context.attempt))
        box = context.get_channel().get("box")
        box.items.append(context.cycle)
        if context.attempt == 1:
            raise OSError
        if context.cycle < 3:
            context.next_iteration()
        return box.items

    assert chain(make, turn, max_retries=1, session_id="s", checkpoint=EveryTask()).execute() == [0, 1, 2, 3]

    assert attempts == [(cycle, attempt) for cycle in range(4) for attempt in (1, 2)]


def never(**options: Any) -> Workflow:
    """A workflow whose second task changes a live value and fails, however often it is tried."""

    def make(context) -> None:
        context.get_channel().set("box", Box())

    def turn(context) -> None:
        context.get_channel().get("box").items.append(1)
        raise OSError(f"attempt {context.attempt}")

    return chain(make, turn, max_retries=1, session_id="s", checkpoint=EveryTask(), **options)


def test_after_too_many_times_the_tasks_own_exception_comes_out_and_the_end_is_told() -> None:
    seen: list[Event] = []

    flow = never(observers=[seen.append])
    with pytest.raises(OSError, match="attempt 2"):
        flow.execute()

    assert [event.kind for event in seen].count("session_went_back") == 1
    assert seen[-1].kind == "session_ended"
    assert seen[-1].facts["status"] == "failed"


def test_a_failure_after_too_many_times_is_the_sessions_like_any_other() -> None:
    flow = never(on_failure="rollback")
    with pytest.raises(OSError, match="attempt 2"):
        flow.execute()

    assert flow.execution_context.status == "failed"
    assert CheckpointManager.list_checkpoints("s") == []


def test_a_failure_after_too_many_times_is_in_the_journal() -> None:
    with pytest.raises(OSError, match="attempt 2"):
        never(durability="journal").execute()

    context = never(durability="journal").execution_context
    assert [*context.state.dead.values()] == ["OSError: attempt 2"]
    context.home.close()


def test_a_failure_after_too_many_times_does_not_let_others_go_on() -> None:
    with pytest.raises(ValueTorn, match="may have changed 'box' in place"):
        never(on_failure="continue").execute()


def test_a_lease_without_a_cut_is_nothing_to_go_back_to() -> None:
    def make(context) -> None:
        context.get_channel().set("box", Box())

    def turn(context) -> None:
        context.get_channel().get("box").items.append(1)
        raise OSError

    with pytest.raises(ValueTorn, match="no checkpoint to go back to"):
        chain(make, turn, max_retries=1, session_id="s", durability="checkpoint").execute()


def test_going_back_remembers_limits_and_tasks_made_at_run_time() -> None:
    made: list[int] = []

    def spawn(context) -> None:
        context.get_channel().set("box", Box())
        context.next_task(task(id="made")(lambda: made.append(1)), before="turn")

    def turn(context) -> None:
        context.get_channel().get("box").items.append(1)
        if context.attempt == 1:
            raise OSError
        context.next_iteration()

    flow = chain(spawn, turn, max_retries=1, max_cycles=2, session_id="s", checkpoint=EveryTask())
    with pytest.raises(MaxCyclesExceeded):
        flow.execute("spawn")

    assert made == [1]
    assert len(flow.get_channel().get("box").items) == 2


class Locked(Box):
    """A live value that has no pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def locked(readonly: bool, fails: bool) -> Any:
    """A task with a retry that works on a value without a pickle, which only durability="none" takes."""

    def make(context: Any) -> None:
        context.get_channel().set("box", Locked())

    def turn(context: Any) -> int:
        box = context.get_channel().get("box", readonly=readonly)
        context.get_channel().get("locks", default=[]).append(box.lock)
        if fails and context.attempt == 1:
            raise OSError
        return int(context.attempt)

    return chain(make, turn, max_retries=1, durability="none")


@pytest.mark.parametrize(
    ("readonly", "fails", "attempt"), [(False, False, 1), (True, False, 1), (True, True, 2)]
)
def test_what_cannot_be_pickled_is_lent_to_a_task_with_retries(
    readonly: bool, fails: bool, attempt: int
) -> None:
    flow = locked(readonly, fails)

    assert flow.execute() == attempt
    assert len(flow.get_channel().get("locks")) == 1


def test_what_cannot_be_pickled_counts_as_changed_by_an_attempt_that_fails() -> None:
    with pytest.raises(ValueTorn, match="'box' in place, and there is no checkpoint"):
        locked(readonly=False, fails=True).execute()


# --- the same context once more --------------------------------------------------------


def interrupted(*tasks: Task, **options: Any) -> ExecutionContext:
    """A new session whose first execution a KeyboardInterrupt has ended."""
    context = ExecutionContext(graph_of(*tasks), **options)
    with pytest.raises(KeyboardInterrupt):
        context.execute()
    return context


INJECTED = Options(inject_context=True)


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("durability", ["none", "checkpoint", "journal"])
def test_after_a_keyboard_interrupt_the_same_context_continues_also_with_tasks_made_at_run_time(
    session: str | None, durability: Any, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"  # a task made at run time continues as a copy

    def made() -> int:
        first = not ran.exists()
        ran.touch()
        if first:
            raise KeyboardInterrupt
        return 5

    def a(context: Any) -> None:
        context.next_task(task(id="made")(made))

    settings = Settings(durability=durability)
    context = interrupted(Task("a", a, INJECTED), session_id=session, settings=settings)

    assert context.execute() == 5
    assert (context.completed_tasks, context.steps) == ({"a", "made"}, 2)


def test_after_a_keyboard_interrupt_with_a_journal_the_task_is_in_doubt() -> None:
    def a() -> None:
        raise KeyboardInterrupt

    once = Task("a", a, Options(on_interrupted="fail"))
    context = interrupted(once, session_id="s", settings=Settings(durability="journal"))

    with pytest.raises(TaskError, match="a was running when its process died"):
        context.execute()


@pytest.mark.parametrize("durability", ["none", "checkpoint"])
def test_a_live_value_that_an_interrupt_has_left_on_loan_is_not_continued_with(durability: Any) -> None:
    def make(context: Any) -> None:
        context.get_channel().set("box", Box())
        if durability == "checkpoint":
            context.checkpoint()

    def turn(context: Any) -> int:
        context.get_channel().get("box").items.append(1)
        if not interrupts:
            interrupts.append(1)
            raise KeyboardInterrupt
        return len(context.get_channel().get("box").items)

    interrupts: list[int] = []
    made, turned = Task("make", make, INJECTED), Task("turn", turn, INJECTED)
    context = interrupted(made, turned, session_id="s", settings=Settings(durability=durability))

    if durability == "checkpoint":
        assert context.execute() == 1
    else:
        with pytest.raises(
            ValueTorn, match=r"'turn' failed or was interrupted .*'box'.* no checkpoint to go back to"
        ):
            context.execute()


@pytest.mark.parametrize("session", [None, "s"])
def test_a_new_session_that_is_finished_gives_its_result_and_runs_nothing(session: str | None) -> None:
    ran: list[int] = []
    context = ExecutionContext(graph_of(Task("a", lambda: ran.append(1) or 7)), session)

    assert [context.execute(), context.execute()] == [7, 7]

    assert ran == [1]


def test_a_new_session_that_was_cancelled_is_not_executed_again() -> None:
    context = ExecutionContext(graph_of(Task("a", lambda context: context.cancel_workflow("no"), INJECTED)))
    with pytest.raises(WorkflowCancelled):
        context.execute()

    with pytest.raises(SessionCancelled, match="no"):
        context.execute()


@pytest.mark.parametrize(
    ("wanted", "why"), [("again", ": an ExecutionContext has one run"), ("error", " and on_finished='error'")]
)
def test_a_context_that_is_finished_says_so_if_its_result_is_not_wanted(wanted: Any, why: str) -> None:
    context = ExecutionContext(graph_of(Task("a", lambda: 1)), settings=Settings(on_finished=wanted))
    context.execute()

    with pytest.raises(SessionFinished, match=f"was finished{why}"):
        context.execute()


def test_going_back_changes_no_limit_and_no_setting_of_the_run() -> None:
    def make(context) -> None:
        context.get_channel().set("box", Box())

    def turn(context) -> list[int]:
        box = context.get_channel().get("box")
        box.items.append(context.attempt)
        if context.attempt == 1:
            raise OSError
        return box.items

    def flow(**options: Any) -> Workflow:
        return chain(make, turn, max_retries=1, session_id="s", durability="checkpoint", **options)

    flow().execute(max_steps=1)  # what the next run goes back to

    now = flow(keep=KeepLast(3))
    assert now.execute(max_steps=9) == [2]
    assert now.execution_context.max_steps == 9
    last = flow().execution_context.found
    assert last is not None
    assert now.settings.differences(last.meta["settings"]) == []


# --- the context afterwards ------------------------------------------------------------


def test_after_the_end_the_session_is_let_go_and_its_values_can_be_read() -> None:
    def a(context) -> int:
        context.get_channel().set("x", [1])
        return 2

    flow = chain(a, session_id="s")
    flow.execute()

    context = flow.execution_context
    assert context.home.lease is None
    assert context.cutter is None
    assert context.get_channel().get("x") == [1]
    assert context.get_result("a") == 2
    assert context.checkpoint_metadata["steps"] == 1
    path, metadata = context.checkpoint(metadata={"after": True})
    assert Path(path).exists()
    assert metadata.user_metadata["after"] is True
    assert context.home.lease is None


@pytest.fixture(params=["checkpoints", "sqlite:///checkpoints.db", "memory://"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], ExecutionContext]:
    """What has run, and the context of a session that failed in `b` before `c`; and was then continued
    by another context, to its end.
    """
    ran: list[str] = []
    store = f"memory://{tmp_path.name}" if request.param == "memory://" else request.param

    def flow(fails: bool) -> Workflow:
        def b(a: int) -> int:
            ran.append("b")
            if fails:
                raise OSError("not yet")
            return a + 1

        def a() -> int:
            ran.append("a")
            return 1

        def c(b: int) -> int:
            ran.append("c")
            return b + 1

        return chain(a, b, c, session_id="s", store=store)

    first = flow(True)
    with pytest.raises(OSError, match="not yet"):
        first.execute()
    flow(False).execute()
    return ran, first.execution_context


def test_a_context_goes_on_from_where_another_owner_has_left_the_session(
    left: tuple[list[str], ExecutionContext],
) -> None:
    ran, context = left

    assert context.execute() == 3

    assert ran == ["a", "b", "b", "c"]
    assert context.status == "completed"


def test_a_context_that_another_owner_has_left_behind_saves_nothing(
    left: tuple[list[str], ExecutionContext],
) -> None:
    _, context = left
    store = context.home.store
    before = [path for path, _ in store.list("s")]

    for _ in range(2):
        with pytest.raises(Fenced, match="continued by another owner"):
            context.checkpoint()

    assert [path for path, _ in store.list("s")] == before
    assert context.home.lease is None


def test_an_owner_that_has_saved_no_state_leaves_no_context_behind() -> None:
    context = chain(a=lambda: 1, b=lambda a: a + 1, session_id="s").execution_context
    context.execute(max_steps=1)
    last, *_ = CheckpointManager.list_checkpoints("s")
    CheckpointManager.update_metadata(last, {"best": True})
    context.channel.set("more", 1)

    path, _ = context.checkpoint()

    assert Path(path).exists()
    assert context.execute(max_steps=5) == 2


def test_a_context_whose_journal_cannot_be_read_stays_behind() -> None:
    ran: list[str] = []
    fails: list[type[BaseException]] = [ZeroDivisionError]

    def a(context: TaskExecutionContext) -> None:
        context.next_iteration()
        ran.append("a")
        if len(ran) > 2 and len(ran) % 3 == 0:
            raise fails.pop()

    first = chain(a, session_id="s", durability="journal")
    with pytest.raises(ZeroDivisionError):
        first.execute()
    fails.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        chain(a, session_id="s", durability="journal").execute()
    segment = max(Path("checkpoints").glob(".s.*.journal"))
    raw = bytearray(segment.read_bytes().rstrip(b"\0"))
    raw[-400] ^= 0xFF  # in the first record, which is the largest
    segment.write_bytes(raw)

    for _ in range(2):
        with pytest.raises(JournalDamaged):
            first.execution_context.execute()


def test_what_was_changed_in_a_context_that_was_left_behind_is_not_dropped_unseen(
    left: tuple[list[str], ExecutionContext],
) -> None:
    ran, context = left
    context.add_to_queue("a")

    for _ in range(2):
        with pytest.raises(SessionError, match="1 change"):
            context.execute()

    assert ran == ["a", "b", "b", "c"]


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
@pytest.mark.parametrize("start", [None, "a"])
def test_a_finished_session_that_another_context_has_begun_again_is_not_run_over(
    durability: str, start: str | None
) -> None:
    ran: list[str] = []
    first = pair(ran, durability=durability)
    first.execute()
    pair(ran, durability=durability, on_finished="again").execute()

    assert WorkflowEngine().execute(first.execution_context, start) == 2

    assert ran == ["a", "b"] * (2 if start is None else 3)
    assert first.execution_context.state.run == (1 if start is None else 2)  # None: it asks no store


def tearing(**options: Any) -> tuple[list[int], ExecutionContext]:
    """Attempts, and the context of a session in which the first one has failed with a live value changed."""
    attempts: list[int] = []

    def make(context) -> None:
        context.get_channel().set("box", Box())

    def turn(context) -> list[int]:
        attempts.append(1)
        box = context.get_channel().get("box")
        box.items.append(len(attempts))
        if len(attempts) == 1:
            raise OSError("half")
        return box.items

    flow = chain(make, turn, **options)
    with pytest.raises(OSError, match="half"):
        flow.execute()
    return attempts, flow.execution_context


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_context_that_is_executed_again_has_nothing_of_what_a_failed_task_has_changed(
    durability: str,
) -> None:
    attempts, context = tearing(session_id="s", checkpoint=EveryTask(), durability=durability)

    with pytest.raises(CheckpointError, match="a failed one has left that changed"):
        context.checkpoint()
    assert context.execute() == [2]
    assert len(attempts) == 2


def test_without_a_checkpoint_a_context_with_a_torn_value_is_not_executed_again() -> None:
    attempts, context = tearing()

    with pytest.raises(ValueTorn, match="'box' in place, and there is no checkpoint to go back to"):
        context.execute()
    assert len(attempts) == 1
