"""What do two workers gain over one when the tasks compute?

Method: wall time for tasks of 5 ms of CPU with one worker and with two; the gain is the quotient. Unit: ×.
The floor: the gain of two bare processes that spin the same time and share nothing but the machine; RQ is
shown beside it.
A regression: a lock or a server round trip on which workers wait for each other.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import gained
from benchmarks.harness import Contest, Faster, Rival, Run
from benchmarks.peers import bare
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: gain"


def ours(run: Run) -> None:
    gained(run, Ours)


def rq(run: Run) -> None:
    gained(run, PlainRq)


CASES = [
    Contest(
        "two workers on 5 ms of CPU",
        ours,
        [Rival("bare processes", bare.gained, Faster(0.85)), Rival("RQ SimpleWorker", rq)],
        unit="×",
    )
]
