"""How many tasks a second are accepted from one submitter?

Method: wall time of `submit_many` of no-op tasks until it returns, no worker running. Unit: tasks per second.
The floor, shown beside: the peers' fastest ways, RQ's enqueue_many and one message after the other in
dramatiq and huey, which have nothing for many.
A regression: a round trip or a pickle per task.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import submitted
from benchmarks.harness import AtLeast, Contest, Rival, Run
from benchmarks.peers.dramatiq_redis import Dramatiq
from benchmarks.peers.huey_redis import Huey
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: submit"


def ours(run: Run) -> None:
    submitted(run, Ours, 20_000, smoke=2_000)


def rq(run: Run) -> None:
    submitted(run, PlainRq, 20_000, smoke=1_000)


def dramatiq(run: Run) -> None:
    submitted(run, Dramatiq, 5_000, smoke=500)


def huey(run: Run) -> None:
    submitted(run, Huey, 5_000, smoke=500)


CASES = [
    Contest(
        "submit_many",
        ours,
        [
            Rival("RQ enqueue_many", rq, AtLeast(50_000, "/s")),
            Rival("dramatiq", dramatiq),
            Rival("huey", huey),
        ],
    )
]
