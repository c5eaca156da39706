"""A run over a session that others work on: what was made at run time is known to all, and read once."""

from __future__ import annotations

from typing import Any

import pytest

from graflow_ckpt.checkpoint.program.program import pack_task
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.run import Inbox
from graflow_ckpt.engine.shared import SharedHost
from graflow_ckpt.sessions.redis.keys import OLDEST
from graflow_ckpt.sessions.redis.tables import read_state, write_state
from graflow_ckpt.stores.around.keys import Keyring, new_key
from tests.unit.engine.shared_sessions import Holder, context_of, home_of, named


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())


class Counting(SealedCells):
    """Counts the records that are opened."""

    opened = 0

    def open(self, name: str, data: bytes, place: str) -> bytes:
        self.opened += 1
        return super().open(name, data, place)


class Worker:
    """One of several on the session `s`."""

    def __init__(self, url: str) -> None:
        self.context: Any = context_of(url, named("a"))
        self.graph = self.context.graph
        self.graph.compile(self.graph.roots())
        self.cells = Counting("s", Keyring.load(local=False))
        self.holder = Holder(self.context)
        session, home = self.holder.session, home_of(self.context, self.cells)
        self.host = SharedHost(self.graph, session, Announcer(session, ()), Inbox(), home)
        session.when_made(self.host.made_since)

    def make(self, *tasks: Task) -> None:
        for one in tasks:
            self.graph.extend("a", one, ())
        self.holder.commit([("task", one.name, pack_task(one, "a", ())) for one in tasks])

    def look(self) -> None:
        """What others have made comes with the reply to any commit."""
        self.holder.commit([])

    def arguments(self) -> dict[str, Any]:
        made = {name: self.graph.nodes[name] for name in sorted(self.graph.made)}
        return {name: node.arguments.get("n") for name, node in made.items() if isinstance(node, Task)}


def numbered(name: str, n: int = 0) -> Task:
    return Task(name, print, arguments={"n": n})


def test_what_others_have_made_joins_the_graph_and_is_read_once(redis_url: str) -> None:
    maker, other = Worker(redis_url), Worker(redis_url)

    for n in range(5):
        maker.make(numbered(f"m{n}", n), numbered(f"n{n}", n))
        other.look()

    assert other.arguments() == maker.arguments()
    assert len(other.arguments()) == other.cells.opened == 10
    assert maker.cells.opened == 0  # it has made them itself


def test_what_several_have_made_at_the_same_time_is_known_to_all(redis_url: str) -> None:
    one, other, third = (Worker(redis_url) for _ in range(3))

    one.make(numbered("x", 1))
    other.make(numbered("y", 2))
    one.make(numbered("z", 3))
    other.look()
    third.look()

    assert one.arguments() == other.arguments() == third.arguments() == {"x": 1, "y": 2, "z": 3}


def test_a_task_that_is_made_again_is_the_new_one_for_all(redis_url: str) -> None:
    maker, other = Worker(redis_url), Worker(redis_url)
    maker.make(numbered("x", 1))
    other.look()

    maker.make(numbered("x", 2))
    other.look()

    assert other.arguments() == {"x": 2}


def test_what_a_worker_of_a_version_before_has_made_and_not_noted_is_read(redis_url: str) -> None:
    maker, other = Worker(redis_url), Worker(redis_url)
    maker.make(numbered("x", 1))
    maker.context.home.facts.link.client.hdel("graflow:{s}:h", "makes", "m:1")

    other.look()
    maker.make(numbered("y", 2))
    other.look()

    assert other.arguments() == {"x": 1, "y": 2}


def test_a_session_that_is_written_anew_notes_its_tasks(redis_url: str) -> None:
    maker = Worker(redis_url)
    maker.make(numbered("x", 1), numbered("y", 2))
    maker.holder.commit([("enqueue", "a", None, 0, 0, "default", "direct")])  # it has not ended
    maker.holder.leave()
    state = read_state(maker.context.home.facts.link, "s", maker.context.home.cells)
    write_state(maker.context.home.facts.link, state, maker.context.home.cells, {}, verb="rewind")

    other, third = Worker(redis_url), Worker(redis_url)
    other.look()
    other.make(numbered("z", 3))
    third.look()

    assert third.arguments() == {"x": 1, "y": 2, "z": 3}
    assert (third.cells.opened, third.host.made.of(third.context.home.facts.link, "s")) == (3, True)


def test_a_graph_is_kept_for_a_later_slice_only_if_the_session_goes_on_from_what_it_has(
    redis_url: str,
) -> None:
    maker, other = Worker(redis_url), Worker(redis_url)
    maker.make(numbered("x", 1))
    other.look()
    link = maker.context.home.facts.link
    assert maker.host.made.of(link, "s")
    assert other.host.made.of(link, "s")

    link.client.hset("graflow:{s}:h", "m:1", "1_7_0123456789 x")  # of another history

    assert not maker.host.made.of(link, "s")
    assert not other.host.made.of(link, "s")


def test_no_graph_is_kept_in_a_session_in_which_a_version_before_may_make_tasks(redis_url: str) -> None:
    maker = Worker(redis_url)
    maker.make(numbered("x", 1))
    link = maker.context.home.facts.link
    assert maker.host.made.of(link, "s")

    link.client.hset("graflow:{s}:c", "format", OLDEST)

    assert not maker.host.made.of(link, "s")


def test_what_has_still_to_run_is_not_made_anew_with_other_arguments(redis_url: str) -> None:
    maker, other = Worker(redis_url), Worker(redis_url)
    maker.make(numbered("x", 1))
    other.look()
    other.host.code_of(numbered("x", 2), "a", ())  # nothing of it is pending
    maker.holder.commit([("enqueue", "x", None, 0, 0, "default", "direct")])

    other.look()

    other.host.code_of(numbered("x", 1), "a", ())
    with pytest.raises(GraphError, match="'x' was made before with other code or arguments"):
        other.host.code_of(numbered("x", 2), "a", ())
