"""The session in memory: commits, what happens when one cannot be recorded, and loans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionError
from graflow_ckpt.core.facts import Cell, Live, Op, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.sessions.views import InMemoryTaskQueue, MemoryChannel


def session() -> MemorySession:
    return MemorySession(SessionState("s", ("a",)), clock=lambda: 7.0)


def lends_nothing(mine: MemorySession) -> None:
    with mine.lending_nothing():
        pass


PUT: Op = ("put", "x", b"\x01", -1)


def test_a_commit_is_applied_and_recorded_with_its_time() -> None:
    seen: list[tuple[int, float, Sequence[Op]]] = []
    mine = session()
    mine.recorder = lambda state, now, ops: seen.append((state.sequence, now, ops))

    claims = mine.commit([PUT, ("enqueue", "a", None, 0, 0, "default", "direct"), ("claim", 1)])

    assert [claim.spec.task_id for claim in claims] == ["a"]
    assert [(sequence, now, len(ops)) for sequence, now, ops in seen] == [(1, 7.0, 3)]


def test_a_refused_commit_is_neither_recorded_nor_the_end() -> None:
    seen: list[object] = []
    mine = session()
    mine.recorder = lambda state, now, ops: seen.append(ops)

    with pytest.raises(Fenced):
        mine.commit([("end", 1, 1, "completed", b"\xc0")])
    mine.commit([PUT])

    assert seen == [[PUT]]


def test_after_a_failed_record_nothing_is_committed_any_more() -> None:
    mine = session()
    failure = JournalFailed("no space")

    def fail(state: SessionState, now: float, ops: Sequence[Op]) -> None:
        raise failure

    mine.recorder = fail
    for _ in range(2):
        with pytest.raises(JournalFailed, match="no space"):
            mine.commit([PUT])

    assert mine.state.sequence == 1
    assert mine.broken is failure


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left"), SystemExit(75)])
def test_a_record_that_was_interrupted_is_the_end_too(error: BaseException) -> None:
    mine = session()

    def interrupted(state: SessionState, now: float, ops: Sequence[Op]) -> None:
        raise error

    mine.recorder = interrupted
    with pytest.raises(type(error)):
        mine.commit([PUT])

    mine.recorder = None
    with pytest.raises(SessionError, match="interrupted half way"):
        mine.commit([PUT])


def test_no_picture_is_taken_of_a_state_that_is_half_changed() -> None:
    mine = session()
    with pytest.raises(KeyError):
        mine.commit([PUT, ("no such op",)])

    with mine.still() as still:
        assert not still
    assert mine.on_loan() == ["a commit that failed"]


def test_a_closed_session_refuses_commits_and_says_why() -> None:
    mine = session()

    mine.close(SessionError("the session went back"))
    mine.close(SessionError("another reason"))

    with pytest.raises(SessionError, match="the session went back"):
        mine.commit([PUT])


def test_a_value_comes_with_its_version_and_what_was_appended() -> None:
    mine = session()
    mine.commit([PUT])
    mine.commit([("append", "x", b"\x02")])

    assert mine.read("x") == (b"\x01", 2, (b"\x02",))
    assert mine.read("y") is None
    assert mine.names() == ["x"]


class Watched(dict[str, tuple[Cell, int]]):
    """Values that have another thread read when one of them is about to change."""

    def __init__(self, values: dict[str, tuple[Cell, int]], meanwhile: Callable[[], None]) -> None:
        super().__init__(values)
        self.meanwhile = meanwhile

    def __setitem__(self, name: str, value: tuple[Cell, int]) -> None:
        super().__setitem__(name, value)
        self.meanwhile()


def test_who_reads_during_a_commit_gets_a_value_with_its_own_items() -> None:
    mine = session()
    mine.commit([("append", "x", b"\x01")])
    found: list[object] = []
    begun = threading.Event()

    def read() -> None:
        begun.set()
        found.append(mine.read("x"))

    reader = threading.Thread(target=read)

    def meanwhile() -> None:
        reader.start()
        begun.wait()
        reader.join(0.05)  # without the lock it has read by then

    mine.state.values = Watched(mine.state.values, meanwhile)
    mine.commit([("put", "x", b"\x91\x05", 1)])
    reader.join()

    assert found == [(b"\x91\x05", 2, ())]


# --- loans -----------------------------------------------------------------------------


def test_nothing_is_committed_while_a_picture_is_taken() -> None:
    mine = session()
    mine.recorder = lambda state, now, ops: lends_nothing(mine)

    def commit() -> None:
        with pytest.raises(SessionError, match="the save failed"):
            mine.commit([PUT])

    committer = threading.Thread(target=commit)
    with mine.still() as still:
        committer.start()
        committer.join(0.05)  # without the lock it has committed by then
        seen = mine.state.sequence
        mine.close(SessionError("the save failed"))  # in whatever order a commit takes the two locks

    committer.join()
    assert (still, seen, mine.state.sequence) == (True, 0, 0)


def test_no_picture_is_taken_while_something_is_on_loan() -> None:
    mine = session()
    mine.lend("x")
    mine.lend("x")
    mine.lend("y")

    for names, left in ((["x", "y"], ["x"]), (["x"], [])):
        with mine.still() as still:
            assert not still
        mine.give_back(names)
        assert mine.on_loan() == left

    with mine.still() as still:
        assert still


def test_a_value_is_on_loan_beside_if_two_have_it() -> None:
    mine = session()
    mine.lend("x")
    assert not mine.on_loan_beside("x")

    mine.lend("x")

    assert mine.on_loan_beside("x")
    assert not mine.on_loan_beside("y")


def test_the_session_lets_go_of_an_object_that_a_late_body_keeps() -> None:
    mine = session()
    old, item, other = Live(object()), Live(object()), Live(object())
    mine.commit(
        [("put", "x", old, -1), ("put", "y", b"\x01", -1), ("append", "z", other), ("append", "z", item)]
    )
    copies = {old: Live(object()), item: Live(object())}

    mine.replace_live(copies)

    assert mine.state.values["x"] == (copies[old], 1)
    assert mine.state.values["y"] == (b"\x01", 1)
    assert mine.state.appended["z"] == [other, copies[item]]


# --- views ------------------------------------------------------------------------------


def begun() -> MemorySession:
    return MemorySession(SessionState("s", ("a",)))


def test_what_is_enqueued_is_waiting_with_its_full_spec() -> None:
    mine = begun()
    queue = InMemoryTaskQueue(mine)
    assert queue.is_empty()

    assert queue.enqueue(TaskSpec("a", b"\x05", priority=3, max_retries=2, queue="gpu"))
    assert queue.enqueue(TaskSpec("b", priority=9))

    assert queue.get_pending_tasks() == ["b", "a"]
    spec = queue.get_pending_task_specs()[1]
    assert (spec.task_data, spec.priority, spec.max_retries, spec.queue) == (b"\x05", 3, 2, "gpu")
    assert (queue.size(), len(queue), queue.is_empty()) == (2, 2, False)


def test_what_is_claimed_still_counts_as_pending() -> None:
    mine = begun()
    queue = InMemoryTaskQueue(mine)
    queue.enqueue(TaskSpec("a"))

    mine.commit([("claim", 1)])

    assert queue.get_pending_tasks() == ["a"]


def test_two_views_show_one_session() -> None:
    mine = begun()
    first, second = (MemoryChannel(mine, check_storable, from_cells) for _ in range(2))

    first.set("x", [1])
    second.append("x", 2)

    assert first.get("x") == [1, 2]
    assert first.keys() == ["x"]
    assert "x" in second
    assert "y" not in second
    assert second.get("y", 7) == 7


def test_a_plain_value_that_was_got_is_a_copy() -> None:
    channel = MemoryChannel(begun(), check_storable, from_cells)
    channel.set("x", [1])

    channel.get("x").append(2)

    assert channel.get("x") == [1]


def test_an_append_begins_a_list() -> None:
    channel = MemoryChannel(begun(), check_storable, from_cells)

    channel.append("x", {"a": 1})

    assert channel.get("x") == [{"a": 1}]
