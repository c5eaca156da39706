"""A steward goes on, whatever goes wrong, and does not say the same all the time."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet import steward as stewards
from graflow_ckpt.fleet.board import Board, Order
from graflow_ckpt.fleet.health import pools
from graflow_ckpt.fleet.steward import Charge, Complaints, Steward
from graflow_ckpt.links.redis import open_link
from tests.servers import Server


def charge_at(url: str) -> Charge:
    worker, own, parent = Board(3).lines
    worker.begin(os.getpid())
    return Charge("p", url, url, ("default",), time.time(), [("worker-1", worker)], parent, own)


@contextmanager
def at_work(charge: Charge) -> Iterator[Steward]:
    steward = Steward(charge)
    ear, mouth = os.pipe()
    thread = threading.Thread(target=steward.run, args=(ear,))
    thread.start()
    yield steward
    assert thread.is_alive(), "it has given up"
    charge.line.tell(Order.LEAVE, 0.0)
    os.write(mouth, b"!")
    thread.join(10)
    os.close(ear)
    os.close(mouth)


def signs(url: str) -> list[float]:
    try:
        link = open_link(url)
        found = [pool.age for pool in pools(link)]
        link.close()
        return found
    except ServerGone:
        return []


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_says_once_a_second_that_the_pool_is_alive(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stewards, "SIGN", 0.05)
    with at_work(charge_at(redis_url)):
        until(lambda: signs(redis_url))
        (before,) = signs(redis_url)
        until(lambda: signs(redis_url)[0] < before + 0.05)


def test_it_survives_a_server_that_dies_and_says_so_once(
    own_redis: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stewards, "AWAY", 0.01)
    server = own_redis()
    with at_work(charge_at(server.url)):
        until(lambda: signs(server.url))
        server.kill()
        until(lambda: "a round failed" in caplog.text)
        server.start()
        until(lambda: signs(server.url))

    assert caplog.text.count("a round failed") == 1


def test_it_survives_faults_of_its_own(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    charge = charge_at(redis_url)
    with at_work(charge) as steward:
        broken = stewards.Chore("what cannot be done", 0.01, lambda: 1 / 0)
        steward._chores.append(broken)
        until(lambda: "what cannot be done" in caplog.text)
        until(lambda: signs(redis_url))

    assert "ZeroDivisionError" in caplog.text  # with where it was


def test_the_same_trouble_is_said_once_a_minute_with_how_often_it_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = Complaints()
    for _ in range(5):
        complaints.say("a round", ValueError("broken"))
    complaints.say("a round", KeyError("another"))
    monkeypatch.setattr(stewards, "SAID", 0.0)
    complaints.say("a round", ValueError("broken"))

    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        "a round failed: broken",
        "a round failed: 'another'",
        "a round failed: broken (4 more times in the last minute)",
    ]
