"""Going on: the words of resume=, other inputs, changed code, named checkpoints, random state."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy
import pytest

from graflow_ckpt import CheckpointManager, EveryTask, Workflow, WorkflowEngine, group, task, workflow
from graflow_ckpt.checkpoint.program.plan import Plan
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import (
    GraphChanged,
    GroupFailed,
    NoSession,
    SessionCancelled,
    SessionExists,
)
from graflow_ckpt.core.state import Gate, SessionState
from graflow_ckpt.core.task import All, AtLeast, BestEffort, GroupPolicy, Task
from graflow_ckpt.engine.resuming import changes_of
from graflow_ckpt.frontends.expressions import DecoratedTask
from tests.acceptance.places import Make
from tests.loops import chain, pair

# --- the words of resume= --------------------------------------------------------------


def test_a_finished_session_gives_its_result_and_runs_nothing() -> None:
    ran: list[str] = []
    seen = []

    first = pair(ran).execute()
    again = pair(ran, observers=[seen.append])

    assert (first, again.execute()) == (2, 2)
    assert ran == ["a", "b"]
    assert [event.kind for event in seen] == ["checkpoint_restored", "session_finished"]


def test_never_refuses_an_id_that_has_state() -> None:
    pair([]).execute()

    with pytest.raises(SessionExists, match="Session s exists already"):
        pair([], resume="never").execute()
    assert pair([]).execute() == 2  # the lease was let go


def test_must_refuses_an_id_that_has_none() -> None:
    with pytest.raises(NoSession, match="Session s has no checkpoint"):
        pair([], resume="must").execute()
    with pytest.raises(NoSession, match="needs a session id"):
        pair([], session=None, resume="must").execute()


def test_a_cancelled_session_stays_cancelled() -> None:
    def build() -> Any:
        def a(context) -> None:
            context.cancel_workflow("wrong data")

        return chain(a, session_id="s")

    with pytest.raises(Exception, match="wrong data"):
        build().execute()
    with pytest.raises(SessionCancelled, match="Session s was cancelled: wrong data"):
        build().execute()


def test_a_stopped_session_goes_on_in_a_new_context_with_a_larger_limit() -> None:
    def build() -> Any:
        def turn(context) -> int:
            if context.cycle < 9:
                context.next_iteration()
            return context.cycle

        return chain(turn, session_id="s")

    assert build().execute(max_steps=3) == 2
    assert build().execute() == 2  # the same limit: nothing to do
    assert build().execute(max_steps=5) == 4
    assert build().execute(max_steps=50) == 9


# --- changed code ----------------------------------------------------------------------


def versions(make: Make, change: str, changed: Any = None) -> Any:
    """A chain of three of which the second fails at first; then mended, or the first one changed."""

    def fails(a: int) -> int:
        raise OSError("not yet")

    first = (lambda: 100) if change == "first" else (lambda: 1)
    second = fails if change == "" else (lambda a: a + 10)
    return chain(a=first, b=second, c=lambda b: b + 1000, make=make, session_id="s", changed=changed)


@pytest.fixture
def failed(make: Make) -> None:
    with pytest.raises(OSError, match="not yet"):
        versions(make, "").execute()


@pytest.mark.usefixtures("failed")
def test_a_failed_task_that_was_mended_goes_on_with_the_same_command(make: Make) -> None:
    assert versions(make, "second").execute() == 1011


@pytest.mark.usefixtures("failed")
def test_a_completed_task_that_changed_is_refused_with_the_table(make: Make) -> None:
    with pytest.raises(GraphChanged, match="--changed=rerun") as refused:
        versions(make, "first").execute()

    assert "a" in str(refused.value.table)


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(("changed", "result"), [("reuse", 1011), ("rerun", 1110)])
def test_changed_reuse_keeps_the_result_and_rerun_makes_it_again(
    make: Make, changed: str, result: int
) -> None:
    assert versions(make, "first", changed).execute() == result
    assert versions(make, "first").execute() == result  # which is the program now


# --- named checkpoints -----------------------------------------------------------------


def test_a_named_checkpoint_means_that_state_and_opens_a_new_line() -> None:
    ran: list[str] = []
    flow = pair(ran, checkpoint=EveryTask(), durability="checkpoint")
    flow.execute()
    first = CheckpointManager.list_checkpoints("s")[-1]

    context, metadata = CheckpointManager.resume_from_checkpoint(first.path)
    assert (metadata.steps, context.completed_tasks) == (1, {"a"})
    assert WorkflowEngine().execute(context) == 2

    newest, *_ = found = CheckpointManager.list_checkpoints("s")
    (rewind,) = [one for one in found if one.cause == "rewind"]
    assert (rewind.parent, rewind.transition) == (first.checkpoint_id, first.transition + 1)
    assert newest.epoch == rewind.epoch > first.epoch
    assert newest.sequence > rewind.sequence > first.sequence
    assert newest.rewinds == rewind.rewinds == [[rewind.epoch, first.sequence]]


def test_a_start_on_a_session_that_goes_on_drops_what_was_scheduled() -> None:
    ran: list[str] = []
    with pytest.raises(OSError, match="not yet"):
        pair(ran, fails=True).execute()
    flow = pair(ran, changed="reuse")

    WorkflowEngine().execute(flow.execution_context, "a")

    assert ran == ["a", "b", "a", "b"]


# --- random state ----------------------------------------------------------------------


def drawing(draws: list[Any], fails: bool, **options: Any) -> None:
    def first() -> None:
        draws.append((random.random(), float(numpy.random.random())))

    def second() -> None:
        if fails:
            raise OSError("not yet")
        draws.append((random.random(), float(numpy.random.random())))

    chain(first, second, session_id="s", checkpoint=EveryTask(), **options).execute()


def seed() -> None:
    random.seed(1)
    numpy.random.seed(1)


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_random_state_goes_on_where_it_was(durability: Any) -> None:
    quiet: list[Any] = []
    seed()
    drawing(quiet, False)
    for trio in Path("checkpoints").iterdir():
        trio.unlink()
    draws: list[Any] = []
    seed()
    with pytest.raises(OSError, match="not yet"):
        drawing(draws, True, durability=durability)
    random.seed(99)
    numpy.random.seed(99)

    drawing(draws, False, durability=durability, changed="reuse")

    assert draws == quiet


def test_rng_false_leaves_random_state_alone() -> None:
    draws: list[Any] = []
    seed()
    with pytest.raises(OSError, match="not yet"):
        drawing(draws, True, rng=False)
    random.seed(99)
    expected = random.Random(99).random()

    drawing(draws, False, rng=False, changed="reuse")

    assert draws[1][0] == expected


# --- groups under another policy ------------------------------------------------------------


def judged(ran: list[str], policy: GroupPolicy, **options: Any) -> Workflow:
    """Three tasks, one after the other; `join` follows their group, and its turn is before theirs."""
    with workflow("w", "s", max_parallel=1, **options) as flow:
        members = [task(id=name, priority=-1)(lambda name=name: ran.append(name)) for name in "abc"]
        join = task(id="join")(lambda: ran.append("join"))
        group(*members, policy=policy, name="g") >> join
    return flow


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
@pytest.mark.parametrize(
    ("former", "policy", "order"),
    [
        (All(), AtLeast(1), ["join", "b", "c"]),
        (All(), AtLeast(2), ["b", "join", "c"]),
        (AtLeast(2), AtLeast(3), ["b", "c", "join"]),
        (AtLeast(2), All(), ["b", "c", "join"]),
        (AtLeast(2), BestEffort(), ["b", "c", "join"]),
        (AtLeast(2), AtLeast(2), ["b", "join", "c"]),
    ],
)
def test_a_group_that_waits_does_so_under_the_policy_that_the_program_has_now(
    caplog: pytest.LogCaptureFixture, durability: Any, former: GroupPolicy, policy: GroupPolicy, order: Any
) -> None:
    ran: list[str] = []
    judged(ran, former, durability=durability).execute(max_steps=1)

    with caplog.at_level("INFO"):
        judged(ran, policy, durability=durability).execute(max_steps=9)

    assert ran == ["a", *order]
    note = f"g: waits for other tasks; its policy was {former!r} and is {policy!r}"
    assert (note in caplog.messages) == (former != policy)


def test_a_group_that_has_passed_stays_so_and_its_other_policy_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []
    judged(ran, AtLeast(1), durability="journal").execute(max_steps=2)

    with caplog.at_level("INFO"):
        judged(ran, All(), durability="journal").execute(max_steps=9)

    assert ran == ["a", "join", "b", "c"]
    assert "g: its policy was AtLeast(count=1) and is All(), since it has passed" in caplog.messages


@pytest.mark.parametrize(
    ("former", "policy", "bad", "again"),
    [
        (AtLeast(2), AtLeast(1), "bc", ["join"]),
        (AtLeast(3), AtLeast(2), "c", ["join"]),
        (AtLeast(3), AtLeast(2), "bc", ["b", "c"]),
        (AtLeast(2), BestEffort(), "bc", ["b", "c", "join"]),
    ],
)
def test_a_group_that_has_failed_is_through_if_what_it_has_is_enough_now(
    former: GroupPolicy, policy: GroupPolicy, bad: str, again: list[str]
) -> None:
    ran: list[str] = []

    def flow(policy: GroupPolicy) -> Workflow:
        def member(name: str, fails: bool) -> Task:
            def body() -> None:
                ran.append(name)
                if fails:
                    raise OSError(name)

            return task(id=name)(body)

        with workflow("w", "s", max_parallel=1) as made:
            members = [member(name, name in bad) for name in "abc"]
            group(*members, policy=policy, name="g") >> task(id="join")(lambda: ran.append("join"))
        return made

    with pytest.raises(GroupFailed):
        flow(former).execute()
    ran.clear()

    with pytest.raises(GroupFailed) if "join" not in again else nullcontext():
        flow(policy).execute()

    assert ran == again


def lost(whole: Callable[[Callable[[str], DecoratedTask]], Any], bads: list[str]) -> list[str]:
    """What has run of a group and `join` after it, executed once for each set of members that fail."""
    ran: list[str] = []
    bad: list[str] = []

    def member(name: str) -> DecoratedTask:
        def body() -> None:
            ran.append(name)
            if name in bad:
                raise OSError(name)

        return task(id=name)(body)

    for fails in bads:
        bad[:] = fails
        with workflow("w", "s", max_parallel=1) as flow:
            whole(member) >> task(id="join")(lambda: ran.append("join"))
        with suppress(GroupFailed):
            flow.execute()
    return ran


@pytest.mark.parametrize(
    ("inner", "outer", "bads", "again"),
    [
        (AtLeast(1), AtLeast(2), ["bde", ""], ["d", "e", "join"]),
        (BestEffort(), AtLeast(3), ["abde", "", ""], ["d", "e", "join"]),
        (AtLeast(1), AtLeast(3), ["bde", "be", ""], ["d", "e", "e", "join"]),
        (AtLeast(2), AtLeast(2), ["bd", "b", ""], ["b", "d", "join"]),
    ],
)
def test_a_member_that_was_lost_inside_a_group_that_is_through_does_not_run_again(
    inner: GroupPolicy, outer: GroupPolicy, bads: list[str], again: list[str]
) -> None:
    def whole(member: Callable[[str], DecoratedTask]) -> Any:
        within = group(member("a"), member("b"), policy=inner, name="h")
        return group(within, member("d"), member("e"), policy=outer, name="g")

    assert lost(whole, bads) == [*"abde", *again]


def test_a_group_inside_that_was_not_taken_and_then_is_through_is_passed_once() -> None:
    def whole(member: Callable[[str], DecoratedTask]) -> Any:
        within = group(member("a"), member("b"), name="h") >> member("c")
        return group(within, member("d"), policy=AtLeast(2), name="g")

    assert lost(whole, ["abd", "bd", "bd", "bd", ""]) == [*"abd", *"abd", *"cddd", "join"]


def test_what_a_gate_has_noted_is_kept_under_another_policy() -> None:
    flow = judged([], AtLeast(3))
    flow.graph.compile(["a", "b", "c"])
    state = SessionState("s")
    state.gates["g"] = Gate(size=4, need=0, arrived=2, ok=1)  # a task made at run time stands before it, too
    state.gates["g"].jump("join")
    facts = state.gates["g"].facts()

    apply(state, changes_of(flow.graph, Plan((), None, judged=frozenset("g")), state), 0.0)

    assert state.gates["g"].facts() == [facts[0], 3, *facts[2:]]
