"""What is kept of tasks that have failed, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graflow_ckpt import task
from graflow_ckpt.core.facts import Claim
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.account import Account
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.status import Failure, failures
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.redis import RedisSession
from tests.unit.fleet.played import Player

ERROR = Account("ValueError", "no such row: 7\nof nine", "Traceback (most recent call last):\n  …\n").text


@task(queue="gpu", max_retries=1)
def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def link(client: Client) -> RedisLink:
    return client.link


@pytest.fixture
def slice_(client: Client) -> Iterator[RedisSession]:
    """A slice of a bag of three, on its first token."""
    assert isinstance(double, Task)
    client.submit_calls(double, [((n,), {}) for n in range(3)], Terms("s"))
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
    assert (found.task, found.type, found.message) == ("double[0]", "ValueError", "no such row: 7\nof nine")
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
