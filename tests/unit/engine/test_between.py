"""Bodies between two rounds: a cut that is due, and who waits for whom."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graflow_ckpt import EveryN, TaskExecutionContext, task, workflow
from graflow_ckpt.core import errors
from graflow_ckpt.engine import between
from tests.unit.engine.test_rounds import Module

Context = TaskExecutionContext
Body = Callable[[Context], Any]


class Saves(list[str]):
    """An observer: why each checkpoint was saved."""

    def __call__(self, event: Any) -> None:
        if event.kind == "checkpoint_saved":
            self.append(event.facts["cause"])


def beside(left: Body, right: Body, saves: Saves, **options: Any) -> None:
    """Run both at once, with a checkpoint after each fourth step."""
    flow = workflow("w", "s", durability="checkpoint", checkpoint=EveryN(4), observers=[saves])
    first = task(id="left", inject_context=True, **options)(left)
    flow.add(first | task(id="right", inject_context=True, **options)(right))
    flow.execute()


def loop(meeting: threading.Barrier, rounds: int, seconds: float) -> Callable[[Context], list[float]]:
    def body(context: Context) -> list[float]:
        model = Module()
        for number in context.rounds(range(rounds), state={"model": model}):
            if number == 0:
                meeting.wait()
            model.weights += number
            time.sleep(seconds)
        return [float(weight) for weight in model.weights]

    return body


def test_two_loops_wait_for_each_others_rounds() -> None:
    saves, meeting = Saves(), threading.Barrier(2, timeout=30)

    beside(loop(meeting, 20, 0.002), loop(meeting, 20, 0.003), saves)

    assert saves.count("policy") >= 5


def test_time_in_which_a_body_waits_for_others_is_not_its_own() -> None:
    saves, meeting = Saves(), threading.Barrier(2, timeout=30)

    beside(loop(meeting, 12, 0.01), loop(meeting, 4, 0.7), saves, timeout=1.5)

    assert saves.count("policy") >= 1


def test_no_body_waits_for_one_that_has_left_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    saves, meeting, ended = Saves(), threading.Barrier(2, timeout=30), threading.Event()
    quick = loop(meeting, 12, 0.001)

    def left(context: Context) -> list[float]:
        found = quick(context)
        ended.set()
        return found

    def right(context: Context) -> None:
        array = np.zeros(2)
        context.get_channel().set("array", array)
        for number in context.rounds(range(3)):
            array += number
            if number == 0:
                meeting.wait()
            if number == 1:
                break
        assert ended.wait(30)

    beside(left, right, saves)

    assert caplog.text.count("a checkpoint is due, and waits for right") == 1


def test_no_body_waits_longer_than_its_patience(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(between, "PATIENCE", 0.2)
    caplog.set_level(logging.WARNING)
    saves, meeting, ended = Saves(), threading.Barrier(2, timeout=30), threading.Event()
    quick = loop(meeting, 12, 0.001)

    def left(context: Context) -> list[float]:
        found = quick(context)
        ended.set()
        return found

    def right(context: Context) -> None:
        model = Module()
        for number in context.rounds(range(3), state={"model": model}):
            model.weights += number
            if number == 0:
                meeting.wait()
            if number == 1:
                assert ended.wait(30)  # a round that takes longer than others wait

    beside(left, right, saves)

    assert "waits for right" in caplog.text


def test_a_commit_that_is_refused_leaves_what_the_round_has_changed_to_a_retry() -> None:
    """The session goes back: the live state of a round that was refused is not what was committed."""
    other, seen = threading.Event(), list[int]()
    read = threading.Event()

    def train(context: Context) -> list[float]:
        model = Module()
        for number in context.rounds(range(4), state={"model": model}):
            seen.append(number)
            model.weights += 1
            if number == 1 and seen.count(1) == 1:
                count = context.get_channel().get("count", default=0)
                context.get_channel().set("count", count + 1)
                read.set()
                assert other.wait(30)
                time.sleep(0.2)
        return [float(weight) for weight in model.weights]

    def writer(context: Context) -> None:
        assert read.wait(30)
        context.get_channel().set("count", 7)
        other.set()

    flow = workflow("w", "s", durability="journal")
    first = task(id="train", inject_context=True, max_retries=2)(train)
    flow.add(first | task(id="writer", inject_context=True)(writer))
    flow.execute()

    assert flow.execution_context.get_result("train") == [4.0] * 4
    assert seen.count(1) == 2


def test_rounds_in_another_thread_are_refused() -> None:
    def body(context: Context) -> None:
        found: list[errors.GraphError] = []

        def helper() -> None:
            try:
                for _ in context.rounds(range(3)):
                    pass
            except errors.GraphError as error:
                found.append(error)

        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
        raise found[0]

    with pytest.raises(errors.GraphError, match="thread of the task's body"):
        workflow("w").add(task(id="train", inject_context=True)(body)).execute()
