"""What a child has written is read whole, at whatever moment it was killed."""

from __future__ import annotations

import os
import time
from mmap import mmap
from typing import Any

import pytest

from graflow_ckpt.fleet.board import Board, BoardLine, Order, RunningSlice, State
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.lists import ACTIVE, Presence, host_key, owner_text, place
from graflow_ckpt.links.processes import is_near, myself, owner_from
from tests.unit.fleet.played import bag, task_of


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


def line() -> BoardLine:
    return Board(1).lines[0]


def test_what_a_child_notes_its_parent_reads() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        board.lines[1].note("session", "e1t7")
        os._exit(0)
    os.waitpid(pid, 0)

    assert board.lines[1].run == RunningSlice("session", "e1t7")
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

    assert one.run == RunningSlice("s" * 64, "e123456t12345678901234567890")


@pytest.mark.parametrize("after", range(4))
def test_a_writer_that_dies_leaves_nothing_or_the_whole(after: int) -> None:
    page = Mortal(-1, 4096)
    one = BoardLine(page, 256)
    one.note("before", "e1t1")

    page.writes = after
    with pytest.raises(Killed):
        one.note("a-session-with-a-longer-name", "e1t2")

    assert one.run in (
        None,
        RunningSlice("before", "e1t1"),
        RunningSlice("a-session-with-a-longer-name", "e1t2"),
    )
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


# --- lists ------------------------------------------------------------------------------


def test_a_place_is_where_a_pid_means_the_same_process() -> None:
    assert place() == place()
    assert myself().boot in place()
    assert set(place()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def test_an_owner_is_read_as_it_was_written_and_nonsense_is_nobody() -> None:
    me = myself()

    assert owner_from(owner_text(me)) == me
    assert is_near(me)
    for text in ("", "x", "{}", "[1]", '{"pid": 1}'):
        assert owner_from(text) is None


def test_a_slice_is_listed_while_it_runs(client: Client) -> None:
    redis: Any = client.link.client
    presence = Presence(client.link, "somebody")
    pipe = redis.pipeline(transaction=False)

    presence.begin("s", "e1t1", pipe)
    pipe.execute()
    during = redis.hgetall(host_key(place()))
    presence.end("s", "e1t1")

    assert during == {b"s e1t1": b"somebody"}
    assert redis.hgetall(host_key(place())) == {}


def test_what_is_due_before_the_next_round_is_announced(client: Client) -> None:
    redis: Any = client.link.client
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    client.submit_calls(task_of("late"), None, Terms("late", delay=30))
    bag(client, "none", tasks=1)
    for name in ("soon", "late", "none"):
        redis.zadd(ACTIVE, {name: 10**15})
        Presence(client.link, "somebody").end(name, "e1t1")

    looks = {name: redis.zscore(ACTIVE, name) for name in ("soon", "late", "none")}
    assert looks["late"] == looks["none"] == 10**15
    assert 0 < looks["soon"] / 1000 - time.time() <= 0.3


def test_a_session_that_has_left_the_rota_is_not_brought_back(client: Client) -> None:
    redis: Any = client.link.client
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    redis.zrem(ACTIVE, "soon")

    Presence(client.link, "somebody").end("soon", "e1t1")

    assert redis.zscore(ACTIVE, "soon") is None
