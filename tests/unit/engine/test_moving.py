"""Moving a session into Redis: what goes along, what is released, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, ExecutionContext, task, workflow
from graflow_ckpt.core.errors import BadSessionId, CheckpointError, GraphError, SessionBusy
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.adopt import standing_at
from graflow_ckpt.engine.shared_context import Destination, adopt_into
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.tables import read_state
from tests.unit.engine.shared_sessions import Holder, context_of, named

rewind: Any = ExecutionContext.rewind
fork: Any = ExecutionContext.fork


@pytest.fixture
def context(redis_url: str) -> Any:
    made = context_of(redis_url, named("a"), named("b"))
    made.schedule_start()
    return made


def portable(context: Any) -> str:
    return context.checkpoint(portable=True)[0]


def state_of(context: Any) -> SessionState:
    return read_state(context.home.facts.link, context.session_id, context.home.cells)


def test_claims_of_the_time_of_the_cut_are_open_again_in_their_order(context: Any) -> None:
    holder = Holder(context)
    holder.commit([("claim", 2)])
    path = portable(context)
    holder.leave()

    copy = fork(path, "copy")

    state: Any = state_of(copy)
    assert [spec.task_id for spec in state.pending()] == ["a", "b"]
    assert (state.claimed, len(state.ready)) == ({}, 2)


def test_limits_counters_and_facts_go_along(context: Any) -> None:
    context.session.commit([("cap", 2), ("reopen", 1, 9)])
    before = state_of(context)

    copy = fork(portable(context), "copy")

    after = state_of(copy)
    assert (after.cap, after.max_steps, after.steps) == (2, 9, 0)
    assert (after.next_key, after.next_order) == (before.next_key, before.next_order)
    assert copy.home.facts.known("workflow", "kept") == {"workflow": "w", "kept": str(30 * 24 * 3600)}


def test_epochs_go_up(context: Any) -> None:
    path = portable(context)

    epochs = [rewind(path).state.epoch for _ in range(3)]

    assert epochs == [2, 3, 4]
    assert fork(path, "copy").state.epoch == 1


def test_what_had_ended_expires_where_it_has_come_to(context: Any) -> None:
    context.execute()
    copy = fork(portable(context), "copy")

    assert (copy.status, copy.execute()) == ("completed", 1)
    assert copy.home.facts.link.client.ttl("graflow:{copy}:c") > 0


def in_memory() -> str:
    """A checkpoint of a session of this process."""
    with workflow("w", "mine") as flow:
        flow.add(named("a"), named("b"))
        flow.execute(max_steps=1)
    return flow.execution_context.checkpoint()[0]


@pytest.mark.parametrize("move", [rewind, fork], ids=["rewind", "fork"])
def test_without_an_address_a_checkpoint_of_memory_goes_nowhere(
    move: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAFLOW_CKPT_REDIS_URL", raising=False)
    path = in_memory()

    with pytest.raises(CheckpointError, match="say into which Redis") as refusal:
        move(path)

    assert refusal.value.path == path


def test_a_checkpoint_of_memory_has_its_place_named(redis_url: str) -> None:
    there = rewind(in_memory(), redis_url=redis_url)

    assert there.home.store.url.endswith("/checkpoints")
    cut = CheckpointManager.list_checkpoints("mine")[0]
    assert (cut.cause, cut.backend["queue"]) == ("rewind", "redis")


def test_priorities_and_queues_that_do_not_fit_are_refused_before_anything_changes(redis_url: str) -> None:
    @task(priority=40_000)
    def urgent() -> None: ...

    with workflow("w", "mine") as flow:
        flow.add(named("a"), urgent)
        flow.execute("a")
    flow.execution_context.add_to_queue("urgent")
    path, _ = flow.execution_context.checkpoint()

    with pytest.raises(GraphError, match="40000"):
        fork(path, redis_url=redis_url)
    assert open_link(redis_url).client.dbsize() == 0


def test_a_session_id_that_is_none_is_refused(context: Any) -> None:
    with pytest.raises(BadSessionId):
        fork(portable(context), "a/b")


def test_a_rewind_that_is_refused_changes_nothing(context: Any) -> None:
    path = portable(context)
    holder = Holder(context)
    holder.commit([("claim", 1)])
    before = state_of(context)

    with pytest.raises(SessionBusy):
        rewind(path)

    after = state_of(context)
    assert (after.sequence, after.claimed, after.epoch) == (before.sequence, before.claimed, before.epoch)
    holder.leave()


def test_a_checkpoint_of_the_rewind_that_fails_does_not_undo_it(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stands = standing_at(portable(context))
    stands.found.facts["redis"]["session"]["store"] = "/proc/none"

    there = adopt_into(stands, None, Destination(context.home.facts.link))

    assert there.session.state.epoch == 2
    assert "checkpoint failed" in caplog.text


def test_tokens_that_are_wanted_are_posted(context: Any) -> None:
    posted: list[tuple[str, str, str]] = []
    to = Destination(
        context.home.facts.link,
        {"flags": "f", "note": "x"},
        post=lambda *words: posted.append(words),  # type: ignore[arg-type]
    )

    copy = adopt_into(standing_at(portable(context)), "copy", to)

    assert [(session, queue) for session, _, queue in posted] == [("copy", "default")]
    assert copy.home.facts.known("note") == {"note": "x"}
    assert copy.home.facts.line()["flags"] == "f"


def test_a_checkpoint_that_is_not_there_is_named(redis_url: str) -> None:
    with pytest.raises(CheckpointError, match="nothing"):
        fork("checkpoints/nothing.pkl")
