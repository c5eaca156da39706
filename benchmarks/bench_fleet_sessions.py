"""How do two workers share many small sessions, beside plain RQ with two workers?

Method: wall time from the moment when two idle workers are let go until the results of 100 sessions of 100
no-op tasks are there. Unit: tasks per second. The floor: the same workers of RQ on plain jobs, fewer of them,
rates are compared.
A regression: more tokens than sessions need, workers that wait for each other's sessions, a price per session
that its hundred tasks cannot carry.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import sessions
from benchmarks.harness import Contest, Faster, Rival, Run
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: sessions"


def ours(run: Run) -> None:
    sessions(run, Ours, 100, smoke=10)


def rq(run: Run) -> None:
    sessions(run, PlainRq, 20, smoke=4)


CASES = [
    Contest("100 sessions of 100 tasks, 2 workers", ours, [Rival("2 × RQ SimpleWorker", rq, Faster(15))])
]
