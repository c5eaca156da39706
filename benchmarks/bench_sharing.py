"""What does it cost a commit with a journal to know which live values share?

Method: a session has a value that a task got, beside another live value; its commit is packed as a journal
record, without a disk: 100 arrays of 64 MB beside a small object, 10,000 instances beside as many others,
got and changed or got and left as they were, and a small object beside a thousand. The table of what the
others hold is made before, as in any commit but the first. Unit: ms.
The floor: the same packed name by name, as commit 9023819 did: a digest of the value, and a second pickle of
it if that differs (a third one, if it is too large for a record).
A regression: a walk of values that were not written, a second pickle, a filter for values that are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy

from benchmarks.harness import Case, Ratio, Run
from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.record import Bundles, Unrecordable, record
from graflow_ckpt.checkpoint.values.pickles import live_bytes, live_digest
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.state import SessionState

NAME = "sharing"


class Thing:
    """An instance as users have them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"thing {number}"


def arrays(run: Run) -> list[Any]:
    size = run.size(64 << 20, smoke=4 << 20)
    return [numpy.full(size // 800, float(n)) for n in range(100)]


def things(run: Run) -> list[Any]:
    return [Thing(n) for n in range(run.size(10_000, smoke=500))]


def small(run: Run) -> list[Any]:
    return [Thing(0)]


Make = Callable[[Run], list[Any]]


def commits(value: Make, others: Make, changed: bool) -> Callable[[Run], None]:
    def subject(run: Run) -> None:
        state, mine = SessionState("s"), value(run)
        bundles = Bundles(state)
        put: list[Op] = [("put", "mine", Live(mine), -1)]
        first = [*put, *(("put", f"other{n}", Live([one]), -1) for n, one in enumerate(others(run)[:1000]))]
        if others is things:
            first = [*put, ("put", "other", Live(others(run)), -1)]
        _recorded(state, bundles, first, None)
        if changed:
            _change(mine)
        with run.timed():
            _recorded(state, bundles, put, ["mine"])

    return subject


def _recorded(state: SessionState, bundles: Bundles, ops: list[Op], in_hand: list[str] | None) -> None:
    apply(state, ops, 0.0)
    with suppress(Unrecordable):  # too large for a record: a checkpoint comes on top, in both
        journal.pack(state.sequence, 0.0, record(bundles, ops, lambda name: False, in_hand))


def by_name(value: Make, changed: bool) -> Callable[[Run], None]:
    def floor(run: Run) -> None:
        mine = value(run)
        before = live_digest(mine)
        if changed:
            _change(mine)
        with run.timed():
            if live_digest(mine) != before:
                payload = journal.pack(1, 0.0, [("put", "mine", Live(mine), -1)])
                if len(payload) > journal.SIZE_LIMIT:
                    live_bytes(mine)

    return floor


def _change(value: list[Any]) -> None:
    if isinstance(value[0], Thing):
        value[0].number += 1
    else:
        value[0][0] += 1.0


CASES = [
    Case(
        f"{words} ({'changed' if changed else 'as it was'})",
        commits(value, others, changed),
        by_name(value, changed),
        Ratio(1.4),
        unit="ms",
    )
    for words, value, others in [
        ("100 arrays, 64 MB, beside a small object", arrays, small),
        ("10,000 instances beside as many", things, things),
        ("10,000 instances beside 1,000 objects", things, lambda run: [Thing(n) for n in range(1000)]),
    ]
    for changed in (True, False)
]
