"""How many tasks that do nothing does one worker process get through, beside other queues?

Method: wall time from the moment when an idle worker is let go until the results of all tasks are there,
submitted before; each queue with fresh processes, an own server with AOF, and all results kept.
Unit: tasks per second. The peers' settings are in benchmarks/peers; they get fewer tasks, rates are compared.
The floor: EVALSHA of `return 1` on one bare connection, that is one round trip and nothing else. The floor of
tasks that have arguments is tasks that have none.
A regression: a second round trip per task, a look at the queue by scripts that grows with it, results or
claims that are pickled where bytes do.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Given, Ours
from benchmarks.fleet_runs import bag
from benchmarks.harness import Case, Contest, Faster, Rival, Run
from benchmarks.peers import bare
from benchmarks.peers.dramatiq_redis import Dramatiq
from benchmarks.peers.huey_redis import Huey
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: bag"


def ours(run: Run) -> None:
    bag(run, Ours, 20_000, smoke=2_000)


def arguments(run: Run) -> None:
    bag(run, Given, 20_000, smoke=2_000)


def rq(run: Run) -> None:
    bag(run, PlainRq, 2_000, smoke=400)


def dramatiq(run: Run) -> None:
    bag(run, Dramatiq, 10_000, smoke=1_000)


def huey(run: Run) -> None:
    bag(run, Huey, 10_000, smoke=1_000)


def evalsha(run: Run) -> None:
    bare.evalsha(run, 20_000, smoke=2_000)


CASES = [
    Contest(
        "no-op tasks",
        ours,
        [
            Rival("RQ SimpleWorker", rq, Faster(30)),
            Rival("dramatiq", dramatiq, Faster(3)),
            Rival("huey", huey, Faster(3)),
            Rival("EVALSHA return 1", evalsha, Faster(0.35)),
        ],
    ),
    Case("tasks with two arguments / without", arguments, ours, Faster(0.85), unit="/s"),
]
