"""How soon others run what somebody ran who is gone: `python -m tests.crash.takeover worker --times 200`.

    worker    SIGKILL of a worker: the parent sees it and gives back what it held
    pool      SIGKILL of the parent: nobody is left to tell, and another pool of the machine has to see it
    machine   a proxy cuts the connections of a pool that goes on running: its lease runs out, and what it
              says later must be refused
    drain     SIGTERM of a pool in mid-session: the gap between its last task and the next one's

From the moment before the blow to the first line of a body in another process. Leases are so long that no
sweep by lease can help, but for `machine`, where it is one second and is not counted. No task may end twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.stores.around.keys import new_key
from tests.crash import fleet as tasks
from tests.crash.fleet import go, killed, lines, noted
from tests.crash.pools import pool, ready_pool
from tests.pools import Pool
from tests.proxy import Proxy
from tests.servers import Server
from tests.stretch import until

FAR = 600.0
LEASE = 1.0


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
            whole = next(one for one in pools if victim in one.pids())
            pools.remove(whole)
            at = killed(whole.pid)
            _, _, began = noted(place, "a", 2)[1]
            found.append(began - at)
            _ends_once(handle, place)
            whole.wait()
    return found


def _two(stack: ExitStack, pools: list[Pool], url: str, folder: Path) -> None:
    """Two pools of one worker, however many are left of them."""
    while len(pools) < 2:
        own = Path(f"{folder}-{len(pools)}")
        pools.append(stack.enter_context(pool(url, own, n=1, lease=FAR, budget=60.0)))
        pools[-1].ready()


def _of_machines(server: Server, folder: Path, times: int) -> list[float]:
    """Beyond the lease."""
    found = []
    for number in range(times):
        place = folder / str(number)
        place.mkdir()
        with Proxy(server) as proxy, pool(proxy.url, place / "far", n=1, lease=LEASE) as far:
            far.ready()
            handle = tasks.call(tasks.held, server.url, place, "a")
            _, zombie, _ = noted(place, "a")[0]
            with ready_pool(server.url, place / "near", n=1, lease=LEASE):
                at = time.monotonic()
                proxy.stall()
                _, other, began = noted(place, "a", 2)[1]
                assert other != zombie
                found.append(began - at - LEASE)
                go(place)
                handle.result(20)
                proxy.resume()
                noted(place, "a-over", 2)  # it has come to its end there, too
                until(lambda far=far: (facts := far.facts()) and facts.workers[0].state == "idle")
                assert handle.status().steps == 1, "a late commit was taken"
    return found


def _of_drains(server: Server, folder: Path, times: int) -> list[float]:
    found = []
    with ExitStack() as stack:
        pools: list[Pool] = []
        for number in range(times):
            _two(stack, pools, server.url, folder / f"pools-{number}")
            place = folder / str(number)
            place.mkdir()
            names = [f"t{n}" for n in range(60)]
            handle = tasks.naps.submit_many([(str(place), name, 0.02) for name in names], url=server.url)
            until(lambda place=place: len(lines(place)) > 10)
            old = lines(place)[-1][1]
            leaving = next(one for one in pools if old in one.pids())
            mine = leaving.pids()
            pools.remove(leaving)
            leaving.signal(signal.SIGTERM)
            assert handle.results(30) == names
            assert leaving.wait() == 0
            ran = lines(place)
            assert sorted(name for name, _, _ in ran) == sorted(names), "a task ran twice"
            last = max(at for _, pid, at in ran if pid in mine)
            found.append(min(at for _, pid, at in ran if pid not in mine and at > last) - last)
    return found


WAYS: dict[str, Callable[[Server, Path, int], list[float]]] = {
    "worker": _of_workers,
    "pool": _of_pools,
    "machine": _of_machines,
    "drain": _of_drains,
}


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
        found = WAYS[given.way](server, Path(name), given.times)
        beyond = f", beyond a lease of {LEASE:g} s" if given.way == "machine" else ""
        print(f"{given.way}, {said(found)}{beyond}")


if __name__ == "__main__":
    main()
