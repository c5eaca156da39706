"""Sessions in Redis that go back, are copied, and move: between this process, this Redis and another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from graflow_ckpt import CheckpointManager, ExecutionContext, TaskExecutionContext, task
from graflow_ckpt.core.errors import CheckpointError, SessionError
from tests.acceptance.places import LOG, SESSION, Box, machine, machine_in_redis, session_in_redis
from tests.loops import chain

pytestmark = pytest.mark.usefixtures("client", "world")


# --- rewind -------------------------------------------------------------------------------


def stopped_at(client: redis.Redis, steps: int) -> tuple[ExecutionContext, str]:
    """A session that has stopped there, and a portable checkpoint of it."""
    context = machine_in_redis(client, max_steps=steps)
    context.channel.set("live", Box(1))
    context.execute()
    return context, context.checkpoint(portable=True)[0]


def test_a_rewound_session_is_what_it_was_and_goes_on_from_there(client: redis.Redis) -> None:
    context, path = stopped_at(client, 1)
    context.execute(max_steps=9)
    context.channel.set("later", 1)
    later = CheckpointManager.get_latest(SESSION)
    LOG.clear()

    rewound = ExecutionContext.rewind(path)

    assert (rewound.session_id, rewound.steps, rewound.status) == (SESSION, 1, "stopped")
    assert rewound.get_channel().get("state") == "B"
    assert rewound.get_channel().get("live").items == [1]
    assert "later" not in rewound.get_channel()
    assert rewound.execute(max_steps=9) == "C"
    assert LOG == ["B", "C"]
    assert CheckpointManager.get_latest(SESSION) != later


def test_later_cuts_do_not_count_after_a_rewind_and_numbers_never_go_back(client: redis.Redis) -> None:
    context, path = stopped_at(client, 1)
    context.execute(max_steps=9)
    later = CheckpointManager.list_checkpoints(SESSION)[0]

    ExecutionContext.rewind(path)

    latest = CheckpointManager.list_checkpoints(SESSION)[0]
    assert (latest.cause, latest.epoch, latest.steps) == ("rewind", later.epoch + 1, 1)
    assert latest.sequence > later.sequence
    assert ExecutionContext.resume(latest.path).steps == 1
    with pytest.raises(CheckpointError, match="was taken back") as refusal:
        ExecutionContext.resume(later.path)
    assert (refusal.value.live, refusal.value.cut) == (refusal.value.live, later.transition)
    assert ExecutionContext.resume(path).steps == 1  # of before: it is part of the history


def test_a_checkpoint_without_values_cannot_be_gone_back_to(client: redis.Redis) -> None:
    context = machine_in_redis(client)
    context.execute()
    path, _ = context.checkpoint()

    for move in (ExecutionContext.rewind, ExecutionContext.fork):
        with pytest.raises(CheckpointError, match="holds no values") as refusal:
            move(path)
        assert "checkpoint(portable=True)" in refusal.value.hint


def test_a_session_whose_server_has_lost_everything_comes_back(client: redis.Redis) -> None:
    _, path = stopped_at(client, 2)
    client.flushall()

    rewound = ExecutionContext.rewind(path)

    assert (rewound.steps, rewound.get_channel().get("state")) == (2, "C")
    assert rewound.execute(max_steps=9) == "C"
    assert LOG == ["A", "B", "C"]


# --- fork ---------------------------------------------------------------------------------

KEYS: list[str] = []


@task(inject_context=True)
def keyed(context: TaskExecutionContext) -> None:
    KEYS.append(context.idempotency_key)
    if context.cycle < 2:
        context.next_iteration()


def test_a_fork_goes_its_own_way_with_new_idempotency_keys(client: redis.Redis) -> None:
    KEYS.clear()
    context = session_in_redis(client, chain(keyed).graph, "keyed", session_id="first", max_steps=1)
    context.execute()
    path, _ = context.checkpoint(portable=True)

    fork = ExecutionContext.fork(path, "second")
    fork.execute(max_steps=9)
    rewound = ExecutionContext.rewind(path)
    rewound.execute(max_steps=9)

    assert KEYS == ["first/keyed/0", "second/keyed/1", "second/keyed/2", "first/keyed/1", "first/keyed/2"]
    assert (fork.status, rewound.status) == ("completed", "completed")


def test_all_checkpoints_of_a_fork_say_what_it_was_forked_from(client: redis.Redis) -> None:
    _, path = stopped_at(client, 1)
    source = CheckpointManager.verify(path)
    assert source.origin is None

    fork = ExecutionContext.fork(path, "second")
    first, second = (fork.checkpoint(portable=True)[1] for _ in range(2))
    again = ExecutionContext.fork(second.path, "third").checkpoint()[1]

    assert (first.origin, second.origin) == (source.checkpoint_id, source.checkpoint_id)
    assert second.parent == first.checkpoint_id
    assert again.origin == second.checkpoint_id


def test_a_fork_leaves_the_session_that_it_was_made_of_alone(client: redis.Redis) -> None:
    context, path = stopped_at(client, 1)

    fork = ExecutionContext.fork(path)
    fork.get_channel().set("state", "C")
    fork.execute(max_steps=9)

    assert fork.session_id != SESSION
    assert (context.steps, context.get_channel().get("state")) == (1, "B")
    assert LOG == ["A", "C"]
    with pytest.raises(SessionError, match="There is a session"):
        ExecutionContext.fork(path, SESSION)


# --- portable: memory, this Redis, another one --------------------------------------------


def begun_in_memory(session: str) -> ExecutionContext:
    flow = machine(session)
    flow.execute("step", max_steps=1)
    return flow.execution_context


def test_a_session_goes_from_memory_into_redis_and_back(client: redis.Redis, redis_url: str) -> None:
    in_memory, _ = begun_in_memory("born-in-memory").checkpoint(portable=True)

    there = ExecutionContext.fork(in_memory, "in-redis", redis_url=redis_url)
    there.execute(max_steps=2)
    portable, _ = there.checkpoint(portable=True)
    back = ExecutionContext.resume(portable)

    assert type(back) is ExecutionContext
    assert (back.steps, back.get_channel().get("state"), back.session_id) == (2, "C", "in-redis")
    assert back.execute(max_steps=9) == "C"
    assert LOG == ["A", "B", "C"]
    assert there.steps == 2  # it has stayed where it was


def test_a_session_of_memory_takes_its_own_id_along(client: redis.Redis, redis_url: str) -> None:
    path, _ = begun_in_memory("mine").checkpoint()

    there = ExecutionContext.rewind(path, redis_url=redis_url)

    assert (there.session_id, there.execute(max_steps=9)) == ("mine", "C")
    assert LOG == ["A", "B", "C"]


def test_a_session_goes_into_another_redis(client: redis.Redis, own_redis: Any) -> None:
    other = own_redis()
    _, path = stopped_at(client, 1)
    client.flushall()

    there = ExecutionContext.rewind(path, redis_url=other.url)

    assert there.get_channel().get("live").items == [1]
    assert there.execute(max_steps=9) == "C"
    assert client.dbsize() == 0


def test_what_is_made_scheduled_and_waits_goes_along(client: redis.Redis, redis_url: str) -> None:
    """Tasks made at run time, task data, gates, retries: all that a state has."""

    def spawns(context: TaskExecutionContext) -> None:
        for number in (1, 2):
            context.next_task(made.bind(id=f"made{number}", number=number), before="joins")

    def joins(context: TaskExecutionContext) -> list[int]:
        return [context.get_result("made1"), context.get_result("made2")]

    flow = chain(spawns, joins, max_parallel=1)
    context = session_in_redis(
        client, flow.graph, "spawns", session_id="all", max_steps=2, settings=flow.settings
    )
    context.execute()
    path, _ = context.checkpoint(portable=True)

    ends = [
        ExecutionContext.fork(path, "fork").execute(max_steps=9),
        ExecutionContext.resume(path).execute(max_steps=9),
        ExecutionContext.rewind(path).execute(max_steps=9),
    ]

    assert ends == [[10, 20]] * 3


@task
def made(number: int) -> int:
    return number * 10


def test_fifty_thousand_specs_are_taken_along(client: redis.Redis) -> None:
    context: Any = machine_in_redis(client, "large")
    many = [("enqueue", "step", b"\xa4data", n % 3, 0, "default", "direct") for n in range(50_000)]
    for start in range(0, len(many), 5000):
        context.session.commit(many[start : start + 5000])

    path, _ = context.checkpoint(portable=True)
    fork = ExecutionContext.fork(path, "copy")

    assert fork.task_queue.size() == 50_000
    pages = [context.task_queue.get_pending_task_specs()[:3], fork.task_queue.get_pending_task_specs()[:3]]
    assert pages[0] == pages[1]


# --- checkpoints in Redis -----------------------------------------------------------------


def test_a_sessions_checkpoints_may_be_in_redis_too(client: redis.Redis, redis_url: str) -> None:
    context = machine_in_redis(client, max_steps=2, store=redis_url)
    context.execute()
    path, metadata = context.checkpoint(portable=True)

    assert path.startswith("redis://")
    assert not Path("checkpoints").exists()
    assert [m.steps for m in CheckpointManager.list_checkpoints(SESSION, store=redis_url)] == [2, 2, 1]
    assert CheckpointManager.verify(path).checkpoint_id == metadata.checkpoint_id
    second = CheckpointManager.list_checkpoints(SESSION, store=redis_url)[1]
    assert ExecutionContext.resume(second.path).steps == 2
    assert ExecutionContext.fork(path, "fork").execute(max_steps=9) == "C"
