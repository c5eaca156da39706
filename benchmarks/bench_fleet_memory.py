"""How much memory do an idle worker and a waiting task take?

Method: RSS of the largest process of an idle worker and PSS of all that belong to it, from smaps_rollup;
growth of the server's used_memory (without buffers of clients and AOF) per submitted no-op task. Unit: MB, B.
The floor, shown beside: RQ, dramatiq and huey with the same tasks.
A regression: something heavy imported by a worker that waits; a field per task that its session could hold.
"""

from __future__ import annotations

from benchmarks.fleet_ours import Ours
from benchmarks.fleet_runs import Make, idle_pss, idle_rss, queued_bytes
from benchmarks.harness import AtMost, Contest, Rival, Run, Side
from benchmarks.peers.dramatiq_redis import Dramatiq
from benchmarks.peers.huey_redis import Huey
from benchmarks.peers.plain_rq import PlainRq

NAME = "fleet: memory"


def rss(make: Make) -> Side:
    def side(run: Run) -> None:
        idle_rss(run, make)

    return side


def pss(make: Make) -> Side:
    def side(run: Run) -> None:
        idle_pss(run, make)

    return side


def queued(make: Make) -> Side:
    def side(run: Run) -> None:
        queued_bytes(run, make, 20_000 if make is Ours else 5_000, smoke=1_000)

    return side


CASES = [
    Contest(
        "idle worker, RSS of its largest process", rss(Ours),
        [Rival("RQ SimpleWorker", rss(PlainRq), AtMost(60, "MB"))], unit="MB",
    ),
    Contest(
        "idle worker, PSS of all its processes", pss(Ours),
        [Rival("RQ SimpleWorker", pss(PlainRq))], unit="MB",
    ),
    Contest(
        "Redis, per queued task", queued(Ours),
        [
            Rival("RQ", queued(PlainRq), AtMost(400, "B")),
            Rival("dramatiq", queued(Dramatiq)),
            Rival("huey", queued(Huey)),
        ], unit="B",
    ),
]  # fmt: skip
