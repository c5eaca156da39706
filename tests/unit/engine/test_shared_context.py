"""The ExecutionContext of a session in Redis: what can be read of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from graflow_ckpt import group, task
from graflow_ckpt.core.errors import (
    GraphError,
    NoSession,
    NotStorable,
    SessionError,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.task import All, AtLeast, GroupPolicy, Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.around.keys import new_key
from tests.unit.engine.shared_sessions import RAN, Holder, context_of, named

a, b = named("a"), named("b", 2)


@pytest.fixture(autouse=True)
def ran() -> None:
    RAN.clear()


def test_under_an_id_that_is_known_there_is_that_session(redis_url: str) -> None:
    first = context_of(redis_url, a, b, max_steps=7)
    first.channel.set("x", 1)

    second = context_of(redis_url, a, b)

    assert second.basis.resumed
    assert (second.channel.get("x"), second.max_steps) == (1, 7)
    assert second.execute() in (1, 2)
    assert (first.status, first.completed_tasks, first.steps) == ("completed", {"a", "b"}, 2)


def test_a_completed_session_runs_what_was_queued_since_and_nothing_else(redis_url: str) -> None:
    seen: list[str] = []
    settings = Settings(workflow="w", observers=(lambda event: seen.append(event.kind),))
    context = context_of(redis_url, a, settings=settings)
    context.execute()
    seen.clear()

    assert context.execute() == 1
    assert seen == ["session_finished"]
    context.add_to_queue("a")
    context.execute()

    assert RAN == ["a", "a"]
    assert context.status == "completed"


def test_a_group_that_waits_does_so_under_the_policy_that_the_program_has_now(redis_url: str) -> None:
    def judged(policy: GroupPolicy) -> Any:
        members = [task(id=name, priority=-1)(lambda name=name: RAN.append(name)) for name in "abc"]
        join = task(id="join")(lambda: RAN.append("join"))
        expression = group(*members, policy=policy, name="g") >> join
        return context_of(redis_url, expression, manner={"max_parallel": 1})

    judged(All()).execute(max_steps=1)
    judged(AtLeast(2)).execute(max_steps=9)

    assert RAN == ["a", "b", "join", "c"]


def test_without_an_id_each_is_a_session_of_its_own(redis_url: str) -> None:
    first, second = (context_of(redis_url, a, session=None) for _ in range(2))

    first.channel.set("x", 1)

    assert "x" not in second.channel
    assert first.session_id != second.session_id


def test_the_start_is_what_nothing_leads_to_unless_one_is_given(redis_url: str) -> None:
    context_of(redis_url, a, b, session="both").execute()
    context_of(redis_url, a, b, session="one", start_node="b").execute()

    assert sorted(RAN) == ["a", "b", "b"]
    assert context_of(redis_url, a, b, session="one").start_node == "b"


def test_a_session_that_is_gone_is_named(redis_url: str) -> None:
    context = context_of(redis_url, a)
    context.home.facts.link.client.flushall()

    with pytest.raises(NoSession, match="There is no session s at redis://"):
        _ = context.status
    assert not context.home.facts.exists()


def test_marking_a_task_completed_is_refused_and_says_why(redis_url: str) -> None:
    with pytest.raises(SessionError, match="only who holds a task") as refusal:
        context_of(redis_url, a).mark_task_completed("a")

    assert "channel" in refusal.value.hint


def test_a_checkpoint_before_the_first_task_has_its_start_pending(redis_url: str) -> None:
    context = context_of(redis_url, a, b)

    path, metadata = context.checkpoint()

    assert (metadata.steps, context.last_checkpoint_path) == (0, path)
    assert context.task_queue.get_pending_tasks() == ["a", "b"]
    assert context_of(redis_url, a, b).execute() in (1, 2)
    assert sorted(RAN) == ["a", "b"]


def test_who_works_on_it_is_said(redis_url: str) -> None:
    context = context_of(redis_url, a)
    holder = Holder(context, owner=json.dumps(asdict(myself())))

    (owner,) = context.home.facts.workers()
    holder.leave()

    assert owner.startswith(f"process {myself().pid} on {myself().host}")

    assert context.home.facts.workers() == []


# --- inputs -----------------------------------------------------------------------------


def test_once_a_session_goes_on_its_values_may_change_again(redis_url: str) -> None:
    context_of(redis_url, a, b, max_steps=1).execute()
    context = context_of(redis_url, a, b)
    assert context.goes_on

    context.execute(max_steps=9)
    context.channel.set("y", 2)

    assert not context.goes_on


def test_until_it_has_started_inputs_may_change(redis_url: str) -> None:
    context_of(redis_url, a).channel.set("x", 1)

    second = context_of(redis_url, a)
    second.channel.set("x", 2)

    assert second.channel.get("x") == 2


# --- what Redis cannot hold -----------------------------------------------------------------


class Live:
    """No plain value."""


def test_a_live_value_needs_a_key_that_others_have(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(redis_url, a)

    with pytest.raises(UnsafeCheckpoint, match="no key is set") as refusal:
        context.channel.set("x", Live())
    assert "GRAFLOW_CKPT_KEY" in refusal.value.hint

    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    with_key = context_of(redis_url, a)
    with_key.channel.set("x", Live())
    assert isinstance(with_key.channel.get("x"), Live)


def test_a_value_beyond_the_limit_is_refused_with_its_name(redis_url: str) -> None:
    with pytest.raises(NotStorable, match="big") as refusal:
        context_of(redis_url, a).channel.set("big", bytes(65 << 20))

    assert "file or an object store" in refusal.value.hint


@pytest.mark.parametrize(
    ("options", "words"), [({"queue": "no good"}, "'no good'"), ({"priority": 40_000}, "priority 40000")]
)
def test_queues_and_priorities_that_do_not_fit_are_refused_before_anything_runs(
    redis_url: str, options: dict[str, Any], words: str
) -> None:
    context = context_of(redis_url, task(id="odd", **options)(lambda: None), a)

    with pytest.raises(GraphError, match=words):
        context.execute()
    assert RAN == []


def test_a_task_that_is_made_with_a_name_that_does_not_fit_is_a_failure_of_its_maker(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())

    @task(inject_context=True)
    def maker(context: Any) -> None:
        context.next_task(Task("a\x1fb", print))

    context = context_of(redis_url, maker)

    with pytest.raises(GraphError, match="control characters"):
        context.execute()

    assert context.status == "failed"


def test_the_parallelism_of_a_workflow_is_that_of_the_session(redis_url: str) -> None:
    context = context_of(redis_url, a, b, settings=Settings(max_parallel=1))
    context.schedule_start()
    one, two = Holder(context), Holder(context)

    assert [len(holder.commit([("claim", 1)])) for holder in (one, two)] == [1, 0]

    one.leave()
    two.leave()
