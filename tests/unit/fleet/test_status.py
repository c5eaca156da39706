"""How far sessions are, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt import task
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.status import Status, read, read_all
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.layout import START, keys_of
from graflow_ckpt.sessions.redis import RedisSession

KEYRING = Keyring({"test": b"k" * 32})


@task(queue="gpu", max_retries=0)
def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisLink]:
    link = open_link(redis_url)
    yield link
    link.close()


@pytest.fixture
def client(link: RedisLink) -> Client:
    return Client(link, keyring=KEYRING)


def submitted(client: Client, session: str, calls: int) -> None:
    assert isinstance(double, Task)
    client.submit_calls(double, [((n,), {}) for n in range(calls)], Terms(session))


def begun(link: RedisLink, session: str) -> RedisSession:
    """A slice on the first token."""
    assert link.script(START)([f"{keys_of(session)}c"], ["e1t1", "me", 15000, ""])[0] == b"running"
    return RedisSession(link, session, SealedCells(session, KEYRING), "e1t1", queue="gpu")


def status(link: RedisLink, session: str) -> Status:
    found = read(link, session)
    assert found is not None
    return found


def test_a_new_session_has_everything_ready_in_its_queue(client: Client, link: RedisLink) -> None:
    submitted(client, "new", 3)

    found = status(link, "new")

    assert (found.session, found.workflow, found.status) == ("new", "double", "running")
    assert (found.ready, found.running, found.completed, found.failed) == (3, 0, 0, 0)
    assert found.queues == (("gpu", 3),)
    assert (found.calls, found.tasks, found.tokens, found.ended, found.over) == (3, 3, 1, None, False)


def test_what_runs_is_done_and_has_failed_is_counted(client: Client, link: RedisLink) -> None:
    submitted(client, "s", 3)
    session = begun(link, "s")
    (claim,) = session.commit([("claim", 1)])
    (claim,) = session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])

    session.commit([("end", claim.spec.key, claim.number, "lost", "ValueError: no"), ("claim", 1)])

    found = status(link, "s")
    assert (found.steps, found.completed, found.failed, found.running, found.ready) == (1, 1, 1, 1, 0)
    session.close()


def test_the_end_has_its_time_and_the_first_line_of_its_reason(client: Client, link: RedisLink) -> None:
    submitted(client, "s", 1)

    client.session("s").cancel("enough\nof it")

    found = status(link, "s")
    assert (found.status, found.reason, found.over) == ("cancelled", "enough", True)
    assert found.ended is not None
    assert found.ended >= found.created > 0


def test_sessions_that_are_not_there_are_left_out(client: Client, link: RedisLink) -> None:
    for name in ("one", "two"):
        submitted(client, name, 1)

    assert read(link, "none") is None
    assert [found.session for found in read_all(link, ["two", "none", "one"])] == ["two", "one"]


def test_of_a_graph_it_is_known_how_many_tasks_there_are(client: Client, link: RedisLink) -> None:
    graph = TaskGraph()
    for name in ("first", "second"):
        graph.add(Task(name, double.func, Options()))
    graph.add_edge("first", "second")

    client.submit(graph, Settings(workflow="pair"), ("first",), {"number": 1}, Terms("s"))

    found = status(link, "s")
    assert (found.workflow, found.tasks, found.calls, found.ready) == ("pair", 2, None, 1)
