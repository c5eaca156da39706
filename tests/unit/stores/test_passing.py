"""What may pass, how long it is waited for, and when it is not asked any more."""

from __future__ import annotations

import random

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    SaveOutcomeUnknown,
    ServerFull,
    ServerGone,
    ServerReadOnly,
)
from graflow_ckpt.core.task import Backoff
from graflow_ckpt.stores.passing import Breaker, Patience, may_pass


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ServerGone("away"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (caused(CheckpointError("cannot write"), ServerGone("away")), True),
        (CheckpointError("cannot write"), False),
        (caused(SaveOutcomeUnknown("sent"), ServerGone("away")), True),
        (caused(SaveOutcomeUnknown("sync"), OSError(5, "device")), False),
        (ServerFull("full"), False),
        (ServerReadOnly("replica"), False),
        (CheckpointCorrupt("damaged"), False),
        (CheckpointNotFound("none"), False),
        (Fenced("lost"), False),
        (PermissionError(), False),
    ],
)
def test_only_what_is_gone_may_come_back(error: BaseException, passes: bool) -> None:
    assert may_pass(error) is passes


def test_pauses_grow_are_spread_and_end_with_the_patience() -> None:
    clock = Clock()
    patience = Patience(10.0, Backoff(0.1, limit=2.0, jitter=0.5), clock=clock, sleep=clock.sleep)

    tries = sum(1 for _ in patience.pauses())

    assert tries == len(clock.slept) >= 6
    assert clock.now <= 10.0
    assert clock.slept[0] < 0.2 < max(clock.slept) <= 3.0
    assert len(set(clock.slept)) == tries


def test_waiting_does_not_touch_the_random_numbers_of_the_program() -> None:
    random.seed(7)
    before, clock = random.getstate(), Clock()

    list(Patience(1.0, clock=clock, sleep=clock.sleep).pauses())

    assert random.getstate() == before


def test_what_takes_long_to_fail_is_asked_less_often() -> None:
    clock = Clock()
    breaker = Breaker(1, cooldown=5.0, clock=clock)

    breaker.bad(seconds=20.0)

    clock.now = 199.0
    assert not breaker.allows()
    breaker.ask()
    assert breaker.allows()
    breaker.bad(seconds=20.0)
    clock.now = 399.0
    assert breaker.allows()


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_try_per_period() -> None:
    clock = Clock()
    breaker = Breaker(3, cooldown=5.0, clock=clock)

    assert [breaker.bad() for _ in range(2)] == [False, False]
    breaker.good()
    assert [breaker.bad() for _ in range(3)] == [False, False, True]
    assert not breaker.allows()
    clock.now = 5.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert breaker.bad() is False
    clock.now = 9.9
    assert not breaker.allows()
    clock.now = 10.0
    assert breaker.allows()
    breaker.good()
    assert all(breaker.allows() for _ in range(3))
