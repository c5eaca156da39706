"""When cuts are taken, what is kept of them, and what a journal records of commits and values that share."""

from __future__ import annotations

import gc
import logging
import random
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graflow_ckpt import (
    Event,
    EverySeconds,
    EveryTask,
    ExecutionContext,
    KeepLast,
    OnRequest,
    TaskGraph,
    task,
    workflow,
)
from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.cuts import Cutter, capture_random, remember_random, restore_random
from graflow_ckpt.engine.record import Bundles, Unrecordable, record
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.stores.files.store import LocalStore
from tests.loops import LONG, chain, cuts, loop, pair
from tests.unit.stores.faults import FaultyDisk

# --- policies; what holds in Redis, too: tests/acceptance/test_policies.py --------------


def test_on_request_cuts_when_asked_and_at_the_end_only() -> None:
    loop(5, checkpoint=OnRequest()).execute()

    assert cuts() == []
    assert cuts("end") == [5]


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


# --- requests --------------------------------------------------------------------------


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
    flow = loop(10, lambda context: counts.append(disk.syncs), durability="journal")
    flow.execution_context.home._store = LocalStore("checkpoints", disk=disk)

    flow.execute()

    assert [b - a for a, b in pairwise(counts)] == [1] * 9


def test_a_value_too_large_for_a_record_is_made_durable_by_a_cut_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def grow(context) -> None:
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


class Box:
    """A live value."""


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


# --- values that share ----------------------------------------------------------------


class Node:
    def __init__(self, *edges: Any) -> None:
        self.edges = list(edges)


class Kept:
    """A session, and what a replay of its records would have."""

    def __init__(self, **values: Any) -> None:
        self.state, self.replayed = SessionState("s"), SessionState("s")
        self.bundles = Bundles(self.state)
        self.on_loan: set[str] = set()
        if values:
            self.put(**values)

    def put(self, **values: Any) -> list[Op]:
        return self.commit([("put", name, Live(value), -1) for name, value in values.items()])

    def commit(self, ops: Sequence[Op], recorded: bool = True) -> list[Op]:
        apply(self.state, ops, 0.0)
        if not recorded:
            self.bundles.forget(ops)
            return []
        kept = record(self.bundles, ops, self.on_loan.__contains__)
        read = journal.unpack(journal.pack(self.state.sequence, 0.0, kept))
        apply(self.replayed, read.ops, 0.0)
        return kept

    def again(self, name: str) -> Any:
        cell = self.replayed.values[name][0]
        assert isinstance(cell, Live)
        return cell.value


def names(ops: Sequence[Op]) -> list[str]:
    return [op[1] for op in ops]


def test_a_value_that_is_as_the_journal_has_it_is_not_recorded_again() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())

    assert kept.put(a=node) == kept.put(c=kept.state.values["c"][0].value) == []


def test_a_change_through_one_name_is_recorded_under_all() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())

    node.edges.append(1)

    assert sorted(names(kept.put(a=node))) == ["a", "b"]
    assert kept.again("b").edges[0] is kept.again("a")


def test_a_name_under_which_another_object_is_set_leaves_and_the_others_are_recorded_as_they_are() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node(node))

    node.edges.append(1)

    assert sorted(names(kept.put(a=Node()))) == ["a", "b", "c"]
    assert kept.again("b").edges[0] is kept.again("c").edges[0]
    assert kept.again("b").edges[0].edges == [1]
    assert kept.again("a").edges == []


def test_what_changed_while_a_checkpoint_was_due_is_recorded_when_it_changes_back() -> None:
    node = Node(1)
    kept = Kept(a=node)
    node.edges[0] = 2
    kept.commit([("put", "a", Live(node), -1)], recorded=False)  # a checkpoint has it

    node.edges[0] = 1

    assert names(kept.put(a=node)) == ["a"]


def test_a_value_too_large_for_a_record_is_known_when_it_is_in_a_checkpoint() -> None:
    node = Node(b"." * (2 << 20))
    kept = Kept(c=Node())
    with pytest.raises(Unrecordable, match="too many for a journal record"):
        kept.put(a=node)

    assert kept.put(a=node) == []
    node.edges.append(1)
    with pytest.raises(Unrecordable, match="too many for a journal record"):
        kept.put(a=node)


def test_a_member_that_another_attempt_holds_is_no_matter_for_a_record() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node), c=Node())
    kept.on_loan = {"b"}

    node.edges.append(1)
    with pytest.raises(Unrecordable, match="on loan"):
        kept.put(a=node)

    assert names(kept.put(c=Node(2))) == ["c"]
    kept.on_loan = set()
    assert sorted(names(kept.put(a=node))) == ["a", "b"]


def test_an_object_that_another_attempt_holds_under_a_name_that_is_set_is_no_matter_for_a_record() -> None:
    node = Node()
    kept = Kept(a=node, b=Node(node))
    kept.on_loan = {"a"}

    with pytest.raises(Unrecordable, match="on loan"):
        kept.put(a=Node())


def test_items_are_recorded_alone_until_one_shares() -> None:
    node = Node()
    kept = Kept(a=node)
    alone = [kept.commit([("append", "log", Live(Node(number)))]) for number in range(3)]

    whole = kept.commit([("append", "log", Live(node))])

    assert [names(ops) for ops in alone] == [["log"]] * 3
    assert sorted(names(whole)) == ["a", "log", "log", "log", "log", "log"]
    assert kept.replayed.appended["log"][3].value is kept.again("a")  # type: ignore[union-attr]


def test_one_bundle_of_all_names_is_looked_at_when_an_item_or_a_value_comes() -> None:
    node, more = Node(), Node()
    kept = Kept(a=node, b=Node(node))
    node.edges.append(more)
    kept.put(a=node)

    appended = kept.commit([("put", "a", Live(node), -1), ("append", "log", Live(more))])
    kept.put(c=more)

    assert sorted(names(appended)) == ["a", "b", "log", "log"]
    assert kept.again("c") is kept.again("a").edges[0]
    assert kept.again("c") is kept.replayed.appended["log"][0].value  # type: ignore[union-attr]


def test_a_value_that_was_alone_and_is_unchanged_is_looked_at_when_its_object_is_set_again() -> None:
    node = Node()
    kept = Kept(a=node, b=Node())
    kept.commit([("put", "b", b"\xc0", -1)])
    kept.put(a=node)

    kept.put(a=node, c=node)

    assert kept.again("c") is kept.again("a")


def test_items_that_are_one_object_stay_one() -> None:
    node = Node()
    kept = Kept()

    kept.commit([("append", "log", Live(node))])
    kept.commit([("append", "log", Live(node)), ("append", "log", b"\x01")])

    first, second, plain = kept.replayed.appended["log"]
    assert first.value is second.value  # type: ignore[union-attr]
    assert plain == b"\x01"


def test_a_plain_item_beside_live_values_is_recorded_and_goes_when_the_name_is_put() -> None:
    node = Node()
    kept = Kept(a=node, log=[node])

    kept.commit([("append", "log", b"\x01")])
    assert kept.replayed.appended["log"] == [b"\x01"]
    kept.put(log=kept.state.values["log"][0].value)

    assert kept.replayed.appended == {}
    assert kept.again("log")[0] is kept.again("a")


def test_an_old_array_does_not_live_on() -> None:
    array = np.arange(8.0)
    gone = weakref.ref(array)
    holder = Node(array)
    kept = Kept(a=holder, b=Node(array), c=Node())

    holder.edges[0] = 1
    del array
    kept.put(a=holder, b=Node())
    gc.collect()

    assert gone() is None


def test_values_of_before_are_looked_at_when_a_second_one_is_recorded() -> None:
    node = Node()
    kept = Kept()
    kept.commit([("put", "a", Live(node), -1), ("put", "b", Live(Node(node)), -1)], recorded=False)
    kept.bundles = Bundles(kept.state)  # as after a resume

    node.edges.append(1)

    assert sorted(names(kept.put(c=Node(node)))) == ["a", "b", "c"]
    assert kept.again("b").edges[0] is kept.again("c").edges[0] is kept.again("a")


def test_one_value_that_is_alone_is_pickled_once_and_nothing_is_compared() -> None:
    kept = Kept(a=Node())

    kept.put(a=Node(1))

    assert kept.bundles._at == {}


# --- random state ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()]


def test_the_same_numbers_come_after_it_was_put_back() -> None:
    draw()  # leaves half a pair of gauss behind in both
    cell = capture_random()
    expected = [draw(), draw()]

    restore_random(cell)

    assert [draw(), draw()] == expected


def test_it_is_one_plain_cell_that_is_equal_if_nothing_was_drawn() -> None:
    cell = capture_random()
    assert capture_random() == cell

    random.random()

    assert capture_random() != cell
    assert {"random", "numpy"} <= set(decode(cell))


def test_what_was_remembered_is_put_back_as_often_as_it_is_wanted() -> None:
    put_back = remember_random()
    expected = draw()

    for _ in range(2):
        put_back()
        assert draw() == expected


def test_a_library_that_is_not_loaded_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "numpy.random", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    cell = capture_random()

    assert decode(cell) == {}
    restore_random(cell)
    remember_random()()
    assert "torch" not in sys.modules


class Bits:
    """A tensor of bytes, as far as random state goes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def numpy(self) -> Any:
        return np.frombuffer(self.data, np.uint8)


def test_the_generator_of_torch_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    state = SimpleNamespace(now=b"\x01\x02")

    def from_buffer(data: bytearray, dtype: object) -> Bits:
        assert dtype == "uint8"
        return Bits(bytes(data))

    def set_state(bits: Bits) -> None:
        state.now = bits.data

    vars(torch).update(
        get_rng_state=lambda: Bits(state.now), set_rng_state=set_state, frombuffer=from_buffer, uint8="uint8"
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    cell, put_back = capture_random(), remember_random()
    for restore in (lambda: restore_random(cell), put_back):
        state.now = b"\xff"

        restore()

        assert state.now == b"\x01\x02"
