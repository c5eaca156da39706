"""When cuts are taken, and what is kept of them."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graflow_ckpt import (
    CheckpointManager,
    Event,
    EveryN,
    EverySeconds,
    EveryTask,
    ExecutionContext,
    KeepLast,
    OnRequest,
    TaskGraph,
    task,
    workflow,
)
from graflow_ckpt.core.facts import Op
from graflow_ckpt.engine.cuts import Cutter
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores.files.store import LocalStore
from tests.acceptance.places import Box
from tests.loops import LONG, chain, cuts, loop, pair
from tests.unit.stores.faults import FaultyDisk

# --- policies; what holds in Redis, too: tests/acceptance/test_policies.py --------------


def test_on_request_cuts_when_asked_and_at_the_end_only() -> None:
    loop(5, checkpoint=OnRequest()).execute()

    assert cuts() == []
    assert cuts("end") == [5]


@pytest.mark.parametrize(
    ("options", "kept"), [({}, [*range(12, 21)]), ({"keep": KeepLast(2)}, [20])], ids=["ten", "two"]
)
def test_the_cut_of_the_end_is_one_of_those_that_are_kept(options: dict[str, Any], kept: list[int]) -> None:
    loop(20, checkpoint=EveryTask(), **options).execute()

    assert (cuts(), cuts("end")) == (kept, [20])


def test_every_seconds_cuts_while_all_wait_for_a_retry() -> None:
    seen: list[Event] = []

    def quick() -> None: ...

    def flaky(context, quick: None) -> None:
        if context.attempt == 1:
            raise OSError

    flow = chain(
        quick,
        flaky,
        max_retries=1,
        backoff=0.4,
        session_id="s",
        durability="checkpoint",
        checkpoint=EverySeconds(0.05),
        observers=[seen.append],
    )
    flow.execute()

    kinds = [(e.kind, e.task, e.facts.get("outcome")) for e in seen]
    assert kinds.index(("checkpoint_saved", "", None)) < kinds.index(("task_ended", "flaky", "done"))


def test_cuts_that_a_journal_needs_are_not_kept_for_ever() -> None:
    def grow(context) -> None:
        context.get_channel().set("big", bytes(2_000_000))

    loop(5, grow, durability="journal", keep=KeepLast(2)).execute()

    assert cuts("journal") + cuts("end") == [5, 5]


# --- the journal -----------------------------------------------------------------------


class CountingDisk(FaultyDisk):
    """Counts the data syncs."""

    syncs = 0

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        super().sync_data(fd)


def test_a_journal_costs_one_sync_per_commit() -> None:
    disk = CountingDisk()
    counts: list[int] = []
    store = LocalStore("checkpoints", disk=disk)
    flow = loop(10, lambda context: counts.append(disk.syncs), durability="journal", store=store)

    flow.execute()

    assert [b - a for a, b in pairwise(counts)] == [1] * 9


def test_a_value_too_large_for_a_record_is_made_durable_by_a_cut_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def grow(context) -> None:
        context.get_channel().set("small", context.cycle)
        context.get_channel().set("big", bytes(2_000_000))

    loop(3, grow, durability="journal").execute()

    warnings = [r.getMessage() for r in caplog.records if "journal record" in r.getMessage()]
    assert len(warnings) == 1
    assert "'big'" in warnings[0]
    assert "200" in warnings[0]
    assert cuts("journal") == [0, 1, 2, 3]


def test_a_value_on_loan_elsewhere_is_made_durable_by_a_cut_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meeting = threading.Barrier(2, timeout=LONG)

    with workflow("w", session_id="s", durability="journal") as flow:
        flow.get_channel().set("box", Box())

        def work(context) -> None:
            context.get_channel().get("box")
            meeting.wait()
            if context.cycle == 0:
                context.next_iteration()

        for name in "ab":
            task(id=name, inject_context=True)(work)
        with caplog.at_level(logging.WARNING):
            flow.execute()

    assert sum("'box'" in r.getMessage() for r in caplog.records) == 1
    assert cuts("journal")[-1] == 4


def test_random_state_of_a_commit_that_was_refused_is_recorded_with_the_next_one() -> None:
    context = ExecutionContext(TaskGraph(), "r", settings=Settings(durability="journal"))
    cutter = Cutter(
        context.graph, context.session, context.settings, context.home, lambda *_, **__: None,
        on_saved=lambda metadata: None, begun=tuple,
    )  # fmt: skip
    random.seed(7)
    refused: list[Op] = [("put", "n", b"\x01", 9)]
    cutter.before_commit(refused)  # and loses its race: it is not committed

    again: list[Op] = [("status", "running", "")]
    cutter.before_commit(again)
    context.session.commit(again)
    after: list[Op] = [("status", "running", "")]
    cutter.before_commit(after)

    assert [op[0] for op in refused] == ["put", "rng"]
    assert [op[0] for op in again] == ["status", "rng"]
    assert [op[0] for op in after] == ["status"]


# --- checkpoints that are sent elsewhere -------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `storage="sqlite"` is."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "graflow_ckpt" / "checkpoints.db"


def sending(body: Callable[[Any], None] = lambda context: None) -> Callable[[Any], None]:
    """A body that sends a checkpoint elsewhere in each round."""

    def send(context) -> None:
        body(context)
        context.checkpoint(storage="sqlite")

    return send


def grow(context) -> None:
    context.get_channel().set("big", bytes(2 << 20))


@pytest.mark.usefixtures("data")
def test_one_that_is_sent_elsewhere_does_not_stand_in_for_the_one_that_a_journal_needs() -> None:
    loop(3, sending(grow), durability="journal").execute()

    assert cuts("journal") == [0, 1, 2, 3]


@pytest.mark.usefixtures("data")
def test_one_that_is_sent_elsewhere_closes_no_gap_of_auto() -> None:
    seen: list[Event] = []

    loop(3, sending(grow), durability="auto", observers=[seen.append]).execute()

    saved = [event.facts["cause"] for event in seen if event.kind == "checkpoint_saved"]
    assert saved[:3] == ["journal", "request", "budget"]


@pytest.mark.parametrize("there", [True, False], ids=["sent", "failed"])
def test_a_policy_does_not_count_from_one_that_is_sent_elsewhere(data: Path, there: bool) -> None:
    if not there:
        data.mkdir(parents=True)  # where the database would be

    loop(6, sending(), checkpoint=EveryN(3)).execute()

    assert cuts() == [3, 6]


def test_a_gap_is_closed_although_one_could_not_be_sent_elsewhere(data: Path) -> None:
    data.mkdir(parents=True)

    loop(3, sending(grow), durability="journal").execute()

    assert cuts("journal") == [0, 1, 2, 3]


# --- slow saves -------------------------------------------------------------------------


def slow(caplog: pytest.LogCaptureFixture, what: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"SLOW CHECKPOINT {what}" in record.getMessage()]


def test_a_session_says_once_that_its_saves_are_slow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "0")

    pair(checkpoint=EveryTask()).execute()

    (record,) = slow(caplog, "SAVE")
    assert record.levelno == logging.WARNING
    assert "session_s_step_0_" in record.getMessage()
    assert vars(record)["session"] == "s"


def test_saves_that_are_fast_enough_say_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "3600")

    pair(checkpoint=EveryTask()).execute()

    assert not slow(caplog, "")


def test_a_slow_load_is_said_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="not yet"):
        pair(fails=True, checkpoint=EveryTask()).execute()
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "0")

    pair(checkpoint=EveryTask()).execute()

    assert len(slow(caplog, "LOAD")) == 1


def test_a_limit_that_is_no_number_is_said_and_not_believed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_SLOW_SAVE", "soon")

    pair(checkpoint=EveryTask()).execute()

    assert any("'soon' is no number of seconds" in record.getMessage() for record in caplog.records)


# --- random state ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def drawing(durability: str) -> ExecutionContext:
    """A session whose task draws a number in each of four rounds."""
    body = lambda context: context.get_channel().append("drawn", random.random())  # noqa: E731
    return loop(4, body, durability=durability).execution_context


def undisturbed() -> list[float]:
    """The numbers of a session that nothing interrupts; it begins with them."""
    random.seed(7)
    numbers = [random.random() for _ in range(4)]
    random.seed(7)
    return numbers


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_checkpoint_between_two_runs_has_it(durability: str, steps: int) -> None:
    expected = undisturbed()
    context = drawing(durability)
    if steps:
        context.execute(max_steps=steps)

    path, _ = context.checkpoint()
    context.home.close()
    random.seed(1)  # in another process
    resumed, _ = CheckpointManager.resume_from_checkpoint(path)
    resumed.execute(max_steps=9)

    assert resumed.get_channel().get("drawn") == expected


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_context_that_is_executed_again_goes_on_with_the_numbers_that_follow(durability: str) -> None:
    expected = undisturbed()
    drawing(durability).execute(max_steps=1)
    random.seed(1)  # in another process

    context = drawing(durability)
    for most in (2, 3, 4):
        context.execute(max_steps=most)

    assert context.get_channel().get("drawn") == expected


class Bits:
    """A tensor of bytes, as far as random state goes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def numpy(self) -> Any:
        return np.frombuffer(self.data, np.uint8)
