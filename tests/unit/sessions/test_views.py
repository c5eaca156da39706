"""TaskQueue and Channel: views that hold nothing themselves."""

from __future__ import annotations

from graflow_ckpt.checkpoint.codec import check_storable
from graflow_ckpt.core.facts import TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.sessions.views import InMemoryTaskQueue, MemoryChannel


def session() -> MemorySession:
    return MemorySession(SessionState("s", ("a",)))


def test_what_is_enqueued_is_waiting_with_its_full_spec() -> None:
    mine = session()
    queue = InMemoryTaskQueue(mine)
    assert queue.is_empty()

    assert queue.enqueue(TaskSpec("a", b"\x05", priority=3, max_retries=2, queue="gpu"))
    assert queue.enqueue(TaskSpec("b", priority=9))

    assert queue.get_pending_tasks() == ["b", "a"]
    spec = queue.get_pending_task_specs()[1]
    assert (spec.task_data, spec.priority, spec.max_retries, spec.queue) == (b"\x05", 3, 2, "gpu")
    assert (queue.size(), len(queue), queue.is_empty()) == (2, 2, False)


def test_what_is_claimed_still_counts_as_pending() -> None:
    mine = session()
    queue = InMemoryTaskQueue(mine)
    queue.enqueue(TaskSpec("a"))

    mine.commit([("claim", 1)])

    assert queue.get_pending_tasks() == ["a"]


def test_two_views_show_one_session() -> None:
    mine = session()
    first, second = (MemoryChannel(mine, check_storable, from_cells) for _ in range(2))

    first.set("x", [1])
    second.append("x", 2)

    assert first.get("x") == [1, 2]
    assert first.keys() == ["x"]
    assert "x" in second
    assert "y" not in second
    assert second.get("y", 7) == 7


def test_a_plain_value_that_was_got_is_a_copy() -> None:
    channel = MemoryChannel(session(), check_storable, from_cells)
    channel.set("x", [1])

    channel.get("x").append(2)

    assert channel.get("x") == [1]


def test_an_append_begins_a_list() -> None:
    channel = MemoryChannel(session(), check_storable, from_cells)

    channel.append("x", {"a": 1})

    assert channel.get("x") == [{"a": 1}]
