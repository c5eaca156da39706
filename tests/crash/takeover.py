"""How soon others run what somebody ran who is gone: `python -m tests.crash.takeover worker --times 200`.

    worker    SIGKILL of a worker: the parent sees it and gives back what it held
    pool      SIGKILL of the parent: nobody is left to tell, and another pool of the machine has to see it

From the moment before the blow to the first line of a body in another process. Leases are so long that no
sweep by lease can help. No task may end twice.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.stores.around.keys import new_key
from tests.crash import fleet as tasks
from tests.crash.fleet import Pool, go, killed, noted, pool, ready_pool
from tests.servers import Server

FAR = 600.0


def _held(url: str, place: Path) -> tuple[Handle, int]:
    """A session of one call, and the process that runs it until it may go on."""
    place.mkdir()
    handle = tasks.call(tasks.held, url, place, "a")
    return handle, noted(place, "a")[0][1]


def _ends_once(handle: Handle, place: Path) -> None:
    go(place)
    handle.result(20)
    assert len(noted(place, "a-over")) == 1, "it was run to its end twice"


def takeovers(url: str, folder: Path, times: int) -> list[float]:
    """Seconds, one for each kill of a worker; a pool is there."""
    found = []
    for number in range(times):
        place = folder / str(number)
        handle, victim = _held(url, place)
        at = killed(victim)
        _, other, began = noted(place, "a", 2)[1]
        assert other != victim
        found.append(began - at)
        _ends_once(handle, place)
    return found


def _of_workers(server: Server, folder: Path, times: int) -> list[float]:
    with ready_pool(server.url, folder, n=2, lease=FAR):
        return takeovers(server.url, folder, times)


def _of_pools(server: Server, folder: Path, times: int) -> list[float]:
    found = []
    with ExitStack() as stack:
        pools: list[Pool] = []
        for number in range(times):
            _two(stack, pools, server.url, folder / f"pools-{number}")
            place = folder / str(number)
            handle, victim = _held(server.url, place)
            whole = next(one for one in pools if victim in one.family())
            pools.remove(whole)
            at = killed(whole.pid)
            _, _, began = noted(place, "a", 2)[1]
            found.append(began - at)
            _ends_once(handle, place)
            whole.process.wait()
    return found


def _two(stack: ExitStack, pools: list[Pool], url: str, folder: Path) -> None:
    """Two pools of one worker, however many are left of them."""
    while len(pools) < 2:
        own = Path(f"{folder}-{len(pools)}")
        pools.append(stack.enter_context(pool(url, own, n=1, lease=FAR, budget=60.0)))
        pools[-1].ready()


WAYS: dict[str, Callable[[Server, Path, int], list[float]]] = {"worker": _of_workers, "pool": _of_pools}


def said(found: list[float]) -> str:
    """Milliseconds."""
    cuts = [1e3 * cut for cut in quantiles(found, n=100, method="inclusive")]
    return f"{len(found)} times: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, most {max(found) * 1e3:.1f} ms"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("way", choices=WAYS, nargs="?", default="worker")
    arguments.add_argument("--times", type=int, default=200)
    given = arguments.parse_args()

    os.environ["GRAFLOW_CKPT_KEY"] = new_key()
    with tempfile.TemporaryDirectory() as name, Server({"appendonly": "yes"}) as server:
        print(f"{given.way}, {said(WAYS[given.way](server, Path(name), given.times))}")


if __name__ == "__main__":
    main()
