"""How far sessions are, on a real server."""

from __future__ import annotations

from typing import Any

from graflow_ckpt import task
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.status import Status, read, read_all
from graflow_ckpt.sessions.layout import keys_of
from tests.unit.fleet.played import Player


@task(queue="gpu", max_retries=0)
def double(number: int) -> int:
    return 2 * number


def submitted(client: Client, session: str, calls: int) -> None:
    assert isinstance(double, Task)
    client.submit_calls(double, [((n,), {}) for n in range(calls)], Terms(session))


def begun(client: Client, session: str) -> Player:
    """A slice on the first token."""
    redis: Any = client.link.client
    return Player(client, session, token=redis.hget(f"{keys_of(session)}qt", "gpu").decode())


def status(client: Client, session: str) -> Status:
    found = read(client.link, session)
    assert found is not None
    return found


def test_a_new_session_has_everything_ready_in_its_queue(client: Client) -> None:
    submitted(client, "new", 3)

    found = status(client, "new")

    assert (found.session, found.workflow, found.status) == ("new", "double", "running")
    assert (found.ready, found.running, found.completed, found.failed) == (3, 0, 0, 0)
    assert (found.queues, found.slices) == ((("gpu", 3),), ())
    assert (found.calls, found.tasks, found.tokens, found.ended, found.over) == (3, 3, 1, None, False)


def test_what_runs_is_done_and_has_failed_is_counted(client: Client) -> None:
    submitted(client, "s", 3)
    session = begun(client, "s").session
    (claim,) = session.commit([("claim", 1)])
    (claim,) = session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])

    session.commit([("end", claim.spec.key, claim.number, "lost", "ValueError: no"), ("claim", 1)])

    found = status(client, "s")
    assert (found.steps, found.completed, found.failed, found.running, found.ready) == (1, 1, 1, 1, 0)
    assert found.slices == (("gpu", 1),)
    session.close()


def test_the_end_has_its_time_and_the_first_line_of_its_reason(client: Client) -> None:
    submitted(client, "s", 1)

    client.session("s").cancel("enough\nof it")

    found = status(client, "s")
    assert (found.status, found.reason, found.over) == ("cancelled", "enough", True)
    assert found.ended is not None
    assert found.ended >= found.created > 0


def test_sessions_that_are_not_there_are_left_out(client: Client) -> None:
    for name in ("one", "two"):
        submitted(client, name, 1)

    assert read(client.link, "none") is None
    assert [found.session for found in read_all(client.link, ["two", "none", "one"])] == ["two", "one"]


def test_of_a_graph_it_is_known_how_many_tasks_there_are(client: Client) -> None:
    graph = TaskGraph()
    for name in ("first", "second"):
        graph.add(Task(name, double.func, Options()))
    graph.add_edge("first", "second")

    client.submit(graph, Settings(workflow="pair"), ("first",), {"number": 1}, Terms("s"))

    found = status(client, "s")
    assert (found.workflow, found.tasks, found.calls, found.ready) == ("pair", 2, None, 1)
