"""The session in memory: commits, what happens when one cannot be recorded, and loans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionError
from graflow_ckpt.core.facts import Cell, Live, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.sessions.memory import MemorySession


def session() -> MemorySession:
    return MemorySession(SessionState("s", ("a",)), clock=lambda: 7.0)


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

    mine.close("the session went back")
    mine.close("another reason")

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
