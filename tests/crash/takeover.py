"""How soon others run what a killed worker ran: `python -m tests.crash.takeover --kills 200 --mode fork`.

From the moment before SIGKILL to the first line of the task's body in another process, on one machine: the
parent sees its child's end, reads what it ran, gives the claim back in one transition, posts a token, and a
worker that waits begins. Leases are so long that no sweep by lease can help. With `--whole` the parent is
killed, and all its children end with it: nobody is left to tell, and another pool has to see it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from graflow_ckpt.checkpoint.keys import new_key
from tests.crash import fleet_tasks as tasks
from tests.crash.fleet import Pool, go, killed, noted, pool
from tests.servers import Server


def takeovers(url: str, folder: Path, kills: int) -> list[float]:
    """Seconds, one for each kill."""
    found = []
    for number in range(kills):
        place = folder / str(number)
        place.mkdir()
        handle = tasks.call(tasks.held, url, place, "a")
        _, victim, _ = noted(place, "a")[0]
        at = killed(victim)
        _, other, began = noted(place, "a", 2)[1]
        assert other != victim
        found.append(began - at)
        go(place)
        handle.result(20)
        assert len(noted(place, "a-over")) == 1, "it was run to its end twice"
    return found


def takeovers_of_pools(url: str, folder: Path, kills: int, mode: str) -> list[float]:
    """The same, when all of a pool is killed at once and another pool is there."""
    found = []
    with ExitStack() as stack:
        pools: list[Pool] = []
        for number in range(kills):
            while len(pools) < 2:
                own = folder / f"pool-{number}-{len(pools)}"
                pools.append(stack.enter_context(pool(url, own, n=1, mode=mode, lease=600.0)))
                pools[-1].ready()
            place = folder / str(number)
            place.mkdir()
            handle = tasks.call(tasks.held, url, place, "a")
            _, victim, _ = noted(place, "a")[0]
            whole = next(one for one in pools if victim in one.family())
            pools.remove(whole)
            at = killed(whole.pid)
            _, _, began = noted(place, "a", 2)[1]
            found.append(began - at)
            go(place)
            handle.result(20)
            assert len(noted(place, "a-over")) == 1, "it was run to its end twice"
            whole.process.wait()
    return found


def said(found: list[float]) -> str:
    """Milliseconds."""
    cuts = [1e3 * cut for cut in quantiles(found, n=100, method="inclusive")]
    return f"{len(found)} kills: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, most {max(found) * 1e3:.1f} ms"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--mode", choices=("simple", "fork"), default="simple")
    arguments.add_argument("-n", type=int, default=2)
    arguments.add_argument("--whole", action="store_true", help="kill pools, not workers")
    given = arguments.parse_args()
    os.environ["GRAFLOW_CKPT_KEY"] = new_key()
    with tempfile.TemporaryDirectory() as name, Server({"appendonly": "yes"}) as server:
        folder = Path(name)
        if given.whole:
            found = takeovers_of_pools(server.url, folder, given.kills, given.mode)
            print(f"{given.mode}, pools of one worker, {said(found)}")
            return
        with pool(server.url, folder, n=given.n, mode=given.mode, lease=600.0) as fleet:
            started: Pool = fleet
            started.ready()
            print(f"{given.mode}, {given.n} workers, {said(takeovers(server.url, folder, given.kills))}")


if __name__ == "__main__":
    main()
