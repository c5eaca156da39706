"""How many tasks of a chain does one worker process get through, beside other queues?

Method: wall time from the moment when an idle worker is let go until the results of all tasks are there.
Unit: tasks per second. The floor is what peers need: in RQ and huey each task enqueues the next, which is at
least as fast as what they have for chains (depends_on, then). They get fewer tasks, rates are compared.
A regression: a hand-over to another worker or to RQ between two tasks; anything per task that grows with the
length of the chain.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import chain
from benchmarks.harness import Contest, Faster, Rival, Run
from benchmarks.peers.huey_redis import Huey
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: chain"


def ours(run: Run) -> None:
    chain(run, Ours, 5_000, smoke=1_000)


def rq(run: Run) -> None:
    chain(run, PlainRq, 1_000, smoke=200)


def huey(run: Run) -> None:
    chain(run, Huey, 5_000, smoke=500)


CASES = [
    Contest(
        "chain of no-op tasks",
        ours,
        [Rival("RQ SimpleWorker", rq, Faster(20)), Rival("huey", huey, Faster(3))],
    )
]
