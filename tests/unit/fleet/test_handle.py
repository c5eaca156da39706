"""What a handle says of a session and does to it, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graflow_ckpt import task
from graflow_ckpt.core.errors import InDoubt, NoSession, SessionError
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Options, Task
from graflow_ckpt.engine.account import Account
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.handle import Handle, doubts
from graflow_ckpt.fleet.status import Failure, Status, failures, read, read_all
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from tests.unit.fleet.played import Player, bag


def test_what_was_purged_is_gone_and_a_late_commit_does_not_bring_any_of_it_back(client: Client) -> None:
    handle = bag(client, "s")
    player = Player(client, "s")
    claim = player.claim()

    handle.purge()

    with pytest.raises(NoSession):
        player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    redis: Any = client.link.client
    assert list(redis.scan_iter(match=f"{keys_of('s')}*")) == []
    assert client.sessions() == []


def test_a_session_that_was_paused_while_its_last_task_ran_is_completed_when_it_goes_on(
    client: Client,
) -> None:
    handle = bag(client, "s", tasks=1)
    player = Player(client, "s")
    claim = player.claim()
    handle.pause()
    player.session.commit([("end", claim.spec.key, claim.number, "completed", b"\x01"), ("claim", 1)])
    player.close()
    assert handle.status().status == "paused"

    handle.resume()

    assert handle.status().status == "completed"


def test_a_session_that_goes_on_at_its_limit_stops_there(client: Client) -> None:
    handle = bag(client, "s", tasks=3)
    player = Player(client, "s")
    first = player.claim()
    (second,) = player.session.commit(
        [("end", first.spec.key, first.number, "completed", b"\x01"), ("claim", 1)]
    )
    player.session.commit(
        [("end", second.spec.key, second.number, "failed", "x"), ("status", "failing", "x"), ("claim", 0)]
    )
    player.close()
    assert handle.status().status == "failed"

    handle.resume(max_steps=1)
    assert (handle.status().status, handle.status().reason) == ("stopped", "max_steps=1 reached")
    handle.resume(max_steps=3)

    assert (handle.status().status, handle.status().tokens) == ("running", 1)


def test_the_sessions_of_lately_are_those_that_are_looked_at_and_the_newest(client: Client) -> None:
    for name in ("one", "two", "three"):
        bag(client, name)
    redis: Any = client.link.client
    redis.zadd("graflow:sessions", {"one": 1, "two": 2, "three": 3})
    redis.zrem("graflow:active", "two", "three")

    assert client.sessions() == ["three", "two", "one"]
    assert client.lately(1) == ["one", "three"]


def test_a_failure_s_command_is_told_apart_from_what_the_task_has_said(client: Client) -> None:
    handle = bag(client, "s")
    status = replace(handle.status(), status="failed")

    assert str(handle.error(status)).endswith(" (see: graflow-ckpt failed list --session s)")


def paused(client: Client, *in_doubt: str) -> Handle:
    """A session of three of which these are set aside, in doubt."""
    handle = bag(client, "s", on_interrupted="ask")
    player = Player(client, "s")
    for _ in range(3):
        claim = player.claim()
        if claim.spec.task_id in in_doubt:
            player.session.commit([("doubt", claim.spec.key, 1)])
            claim = player.claim()
            player.session.commit([("quarantine", claim.spec.key, "InDoubt: its worker died")])
            if handle.status().status == "paused":
                handle._commit([("status", "running", ""), ("claim", 0)])
        else:
            player.session.commit([("release", claim.spec.key, 0)])
    player.close()
    handle.pause()
    return handle


def strategies(handle: Handle) -> dict[str, str]:
    return {spec["task_id"]: spec["execution_strategy"] for spec in handle.pending()}


def test_who_goes_on_without_an_answer_is_told_what_lacks_one(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(InDoubt) as caught:
        handle.resume()

    assert caught.value.tasks == ["t0"]
    assert list(doubts(client.link, "s")) == ["t0"]
    assert handle.status().status == "paused"


@pytest.mark.parametrize(("answer", "how"), [("rerun", "direct"), ("skip", "left"), ("fail", "failed")])
def test_an_answer_schedules_the_task_and_the_session_goes_on(client: Client, answer: str, how: str) -> None:
    handle = paused(client, "t0")

    handle.resume(answers={"t0": answer})

    status = handle.status()
    assert (status.status, status.failed) == ("running", 0)
    assert strategies(handle)["t0"] == how


def test_a_task_that_is_not_in_doubt_takes_no_answer(client: Client) -> None:
    handle = paused(client, "t0")

    with pytest.raises(SessionError, match="'t1' of session s does not wait for an answer") as caught:
        handle.resume(answers={"t0": "skip", "t1": "skip"})

    assert caught.value.hint == "Those do: t0."
    assert strategies(handle)["t0"] == "doubt"


# --- how far sessions are -------------------------------------------------------------


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


# --- failures ---------------------------------------------------------------------------


ERROR = Account("ValueError", "no such row: 7\nof nine", "Traceback (most recent call last):\n  …\n").text


@task(queue="gpu", max_retries=1)
def twofold(number: int) -> int:
    return 2 * number


@pytest.fixture
def link(client: Client) -> RedisLink:
    return client.link


@pytest.fixture
def slice_(client: Client) -> Iterator[RedisSession]:
    """A slice of a bag of three, on its first token."""
    assert isinstance(twofold, Task)
    client.submit_calls(twofold, [((n,), {}) for n in range(3)], Terms("s"))
    redis: Any = client.link.client
    player = Player(client, "s", token=redis.hget(f"{keys_of('s')}qt", "gpu").decode())
    yield player.session
    player.close()


def ended(session: RedisSession, claim: Claim, *how: object) -> list[Claim]:
    return session.commit([("end", claim.spec.key, claim.number, *how), ("claim", 1)])


def only(link: RedisLink) -> Failure:
    (found,) = failures(link, "s")
    return found


def test_without_a_failure_there_is_none(link: RedisLink, slice_: RedisSession) -> None:
    assert list(failures(link, "s")) == []
    assert list(failures(link, "nothing")) == []


def test_an_error_is_type_message_and_traceback(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "lost", ERROR)

    found = only(link)
    assert (found.task, found.type, found.message) == ("twofold[0]", "ValueError", "no such row: 7\nof nine")
    assert found.traceback.startswith("Traceback")
    assert (found.attempts, found.queue, found.set_aside) == (None, None, False)


def test_what_is_to_be_retried_has_not_failed(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "retry", 0.0, ERROR)

    assert list(failures(link, "s")) == []


def test_what_is_set_aside_has_its_attempts_and_its_queue(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])
    ended(slice_, claim, "retry", 0.0, ERROR)
    claims = slice_.commit([("claim", 3)])
    again = next(claim for claim in claims if claim.spec.retry_count)

    ended(slice_, again, "failed", ERROR)

    found = only(link)
    assert (found.attempts, found.crashes, found.queue, found.set_aside) == (2, 0, "gpu", True)


def test_an_error_that_is_no_exception_is_its_own_message(link: RedisLink, slice_: RedisSession) -> None:
    (claim,) = slice_.commit([("claim", 1)])

    ended(slice_, claim, "lost", "it did not: work")

    found = only(link)
    assert (found.type, found.message, found.traceback) == ("", "it did not: work", "")
