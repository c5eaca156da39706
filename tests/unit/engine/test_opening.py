"""Opening a session in Redis: programs that differ, the dead, and where it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from graflow_ckpt.core.errors import GraphError, InDoubt, SessionBusy, SessionError
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.links.processes import myself
from graflow_ckpt.sessions.redis.tables import read_state
from tests.unit.engine.shared_sessions import RAN, Holder, context_of, named

DEAD = json.dumps(asdict(replace(myself(), pid=2**22 - 7, started="1")))


@pytest.fixture(autouse=True)
def ran() -> None:
    RAN.clear()


def stopped(url: str) -> None:
    """A session of a, b and c in which a has completed."""
    context = context_of(url, named("a"), named("b"), named("c"), max_steps=1, manner={"max_parallel": 1})
    context.execute()
    assert RAN == ["a"]
    RAN.clear()


def test_nothing_is_run_again_while_somebody_works_on_it(redis_url: str) -> None:
    stopped(redis_url)
    known = context_of(redis_url, named("a"), named("b"), named("c"))
    known.session.commit([("reopen", 1, 9)])
    holder = Holder(known, owner=json.dumps(asdict(myself())))

    changed = context_of(redis_url, named("a", 7), named("b"), named("c"), settings=Settings(changed="rerun"))
    with pytest.raises(SessionBusy, match="a worker runs it: process") as busy:
        changed.execute(max_steps=9)
    holder.leave()

    assert str(myself().pid) in busy.value.owner
    assert RAN == []


def test_a_graph_without_a_task_is_refused(redis_url: str) -> None:
    with pytest.raises(GraphError, match="no task to start with"):
        context_of(redis_url).execute()


def test_a_start_that_is_given_drops_what_is_scheduled(redis_url: str) -> None:
    from graflow_ckpt import WorkflowEngine

    stopped(redis_url)
    context = context_of(redis_url, named("a"), named("b"), named("c"))
    context.limit = 9

    WorkflowEngine().execute(context, start_task_id="c")

    assert RAN == ["c"]
    assert context.status == "completed"


# --- the dead ----------------------------------------------------------------------------


def abandoned(url: str, *tasks: Any, crashes: int = 0) -> None:
    """Somebody has claimed the first task, and has died."""
    context = context_of(url, *tasks)
    context.schedule_start()
    holder = Holder(context, owner=DEAD)
    holder.commit([("claim", 1)])
    for _ in range(crashes):
        (key,) = holder.session.held
        holder.commit([("release", key, crashes), ("claim", 1)])
    holder.session.close()


def test_what_the_dead_held_runs_here(redis_url: str) -> None:
    abandoned(redis_url, named("a"), named("b"))

    context_of(redis_url, named("a"), named("b")).execute()

    assert sorted(RAN) == ["a", "b"]


def test_its_last_death_pauses_the_session_and_the_next_one_tries_again(redis_url: str) -> None:
    abandoned(redis_url, named("a"), crashes=2)
    context = context_of(redis_url, named("a"))

    with pytest.raises(SessionError, match="'a' has taken its worker down 3 times"):
        context.execute()
    assert (context.status, RAN) == ("paused", [])

    assert context.execute() == 1


def test_what_waits_for_an_answer_is_asked_for_before_anything_runs(redis_url: str) -> None:
    asks = named("a", on_interrupted="ask")
    abandoned(redis_url, asks, named("b"))
    with pytest.raises(InDoubt):
        context_of(redis_url, asks, named("b")).execute()
    RAN.clear()

    for _ in range(2):
        with pytest.raises(InDoubt, match="running when the process died: a") as doubt:
            context_of(redis_url, asks, named("b")).execute()
        assert doubt.value.tasks == ["a"]
    assert RAN == []

    answered = context_of(redis_url, asks, named("b"), settings=Settings(in_doubt=(("a", "skip"),)))
    answered.execute()
    assert "a" not in RAN
    state = read_state(answered.home.facts.link, "s", answered.home.cells)
    assert (set(state.completed), set(state.skipped), state.errors) == ({"b"}, {"a"}, {})
