"""How soon does a task begin when workers are idle, and how soon the one after it?

Method: first hand-off, from the call that submits one task to an idle worker until its body begins, after a
pause in which the worker has become idle; following hop, from body to body in a chain of no-op tasks.
Both are medians within a call, and the median of these is judged. Unit: ms. The floor: plain RQ with the same
kind of worker, whose second task is a job of its own.
A regression: a poll where a blocking call would do, code loaded or a connection made per slice.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import Make, first_handoff, following_hop
from benchmarks.harness import AtMost, Contest, Rival, Run, Side
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: hop"


def first(make: Make) -> Side:
    def side(run: Run) -> None:
        first_handoff(run, make)

    return side


def following(make: Make) -> Side:
    def side(run: Run) -> None:
        following_hop(run, make)

    return side


CASES = [
    Contest(
        "first hand-off, simple worker", first(Ours),
        [Rival("RQ SimpleWorker", first(PlainRq), AtMost(3, "ms"))], unit="ms",
    ),
    Contest(
        "following hop, simple worker", following(Ours),
        [Rival("RQ SimpleWorker", following(PlainRq), AtMost(0.2, "ms"))], unit="ms",
    ),
]  # fmt: skip
