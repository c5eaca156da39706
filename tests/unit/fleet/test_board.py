"""What a child has written is read whole, at whatever moment it was killed."""

from __future__ import annotations

import os
from mmap import mmap
from typing import Any

import pytest

from graflow_ckpt.fleet.board import Board, Line, Order, Run, State


class Killed(Exception):
    pass


class Mortal(mmap):
    """A page whose writer dies at its nth write."""

    writes = 10**9

    def __setitem__(self, where: Any, what: Any) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise Killed
        super().__setitem__(where, what)


def line() -> Line:
    return Board(1).lines[0]


def test_what_a_child_notes_its_parent_reads() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        board.lines[1].note("session", "e1t7")
        os._exit(0)
    os.waitpid(pid, 0)

    assert board.lines[1].run == Run("session", "e1t7")
    assert board.lines[1].slices == 1
    assert board.lines[1].state is State.BUSY
    assert board.lines[0].run is None


def test_a_slice_that_is_over_is_not_there_any_more() -> None:
    one = line()
    one.note("session", "e1t7")
    one.note("", "")

    assert one.run is None
    assert one.state is State.IDLE


def test_the_longest_names_fit() -> None:
    one = line()
    one.note("s" * 64, "e123456t12345678901234567890")

    assert one.run == Run("s" * 64, "e123456t12345678901234567890")


@pytest.mark.parametrize("after", range(4))
def test_a_writer_that_dies_leaves_nothing_or_the_whole(after: int) -> None:
    page = Mortal(-1, 4096)
    one = Line(page, 256)
    one.note("before", "e1t1")

    page.writes = after
    with pytest.raises(Killed):
        one.note("a-session-with-a-longer-name", "e1t2")

    assert one.run in (None, Run("before", "e1t1"), Run("a-session-with-a-longer-name", "e1t2"))
    assert (one.run is None) == (after in (1, 2))


def test_orders_and_their_deadlines_reach_the_child() -> None:
    one = line()
    assert one.order is Order.WORK

    one.tell(Order.DRAIN, 12.5)

    assert (one.order, one.deadline) == (Order.DRAIN, 12.5)


def test_a_new_child_finds_nothing_of_the_one_before_it() -> None:
    one = line()
    one.begin(77)
    one.note("session", "e1t7")
    one.tell(Order.LEAVE, 1.0)

    one.reset()

    assert (one.pid, one.run, one.order, one.slices, one.state) == (0, None, Order.WORK, 0, State.STARTING)
