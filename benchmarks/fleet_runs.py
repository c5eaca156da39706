"""How the fleet and its peers are measured: one way for all of them.

Each call of a benchmark has a private server (AOF on, appendfsync everysec: the setting that everybody gets)
in its own folder and fresh worker processes, which have done a few tasks and are idle again.

    throughput   the workers stand still (SIGSTOP) while tasks are submitted; the clock runs from SIGCONT
                 until the results of all are there; then one is read through the contender's own interface
    hand-off     from the call that submits to an idle worker until the body of the task begins
    hop          from the beginning of a body to the beginning of the next one in a chain
    gain         the time that two workers need, as a share of what one needs for the same tasks
    memory       of worker processes that are idle; of the server, per task that is queued

Where one worker runs tasks that do nothing, it shares a core with its server, and we take another one. The
two wait for each other all the time, and where they happen to run decides by a factor of 2.5 (RQ, dramatiq),
3.5 (huey) and 5 (a bare connection) how fast that is: waking a core that sleeps costs more than the round
trip. Left alone, the scheduler chooses now this, now that; sharing a core is the best of both for each peer.
All else runs where it likes.

Not here: what a contender is made of (peers/, fleet_ours.py), which are compared (bench_fleet_*.py).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import Run
from benchmarks.peers.processes import Processes
from tests.servers import Server

PATIENCE = 120.0  # seconds until a run that does not end is given up
CALM = 0.05  # seconds after a task in which a worker becomes idle; a forked RQ worker needs 20 ms


class Contender:
    """A queue with its workers. Each call of a benchmark makes one, with the address of its server.

    A contender that has no part in a case need not have its method.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment: dict[str, str] = {}  # what its worker processes get besides ours

    def commands(self, workers: int) -> list[list[str]]:
        """The commands that start `workers` workers, as a user would start them."""
        raise NotImplementedError

    def ready(self, workers: int) -> bool:
        """All workers are up and wait for work."""
        raise NotImplementedError

    def bag(self, count: int) -> None:
        """Submits that many no-op tasks, the fastest way there is; returns when all are accepted."""
        raise NotImplementedError

    def chain(self, length: int) -> None:
        """Submits a chain: each no-op task causes the next one."""
        raise NotImplementedError

    def sessions(self, sessions: int, each: int) -> None:
        """Submits `sessions` runs of `each` no-op tasks."""
        raise NotImplementedError

    def spin(self, count: int) -> None:
        """Submits that many tasks of 5 ms of CPU time (`jobs.spin`)."""
        raise NotImplementedError

    def wait(self) -> None:
        """Until the results of everything submitted so far are there."""
        raise NotImplementedError

    def check(self) -> None:
        """Reads a result the way a user does; raises if the task did not succeed."""
        raise NotImplementedError

    def handoff(self) -> float:
        """Submits one task and returns when its body began (`jobs.stamp`)."""
        raise NotImplementedError

    def hops(self, length: int) -> list[float]:
        """Runs a chain to its end and returns when each body began, in order."""
        raise NotImplementedError


Make = Callable[[str], Contender]
Submit = Callable[[Contender], None]


def poll(probe: Callable[[], object], every: float = 0.002) -> None:
    """Until `probe` says yes. It has to be cheap for the server."""
    deadline = time.monotonic() + PATIENCE
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done after {PATIENCE:g} s")
        time.sleep(every)


@contextmanager
def serving(run: Run) -> Iterator[Server]:
    with Server({"appendonly": "yes", "appendfsync": "everysec", "dir": str(run.folder)}) as server:
        yield server


@contextmanager
def placed(cores: Iterable[int]) -> Iterator[None]:
    """This thread, and all processes that it starts meanwhile, run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def first_core() -> set[int]:
    return {min(os.sched_getaffinity(0))}


def other_cores() -> set[int]:
    """All of them where there is only one."""
    cores = os.sched_getaffinity(0)
    return cores - first_core() or cores


@contextmanager
def up(
    run: Run, make: Make, workers: int = 1, *, together: bool = False
) -> Iterator[tuple[Contender, Processes]]:
    """Server and idle workers, warm: what a worker loads with its first tasks is loaded.

    `together`: on one core, and this process on another.
    """
    every = os.sched_getaffinity(0)
    theirs, ours = (first_core(), other_cores()) if together else (every, every)
    with ExitStack() as stack:
        with placed(theirs):
            server = stack.enter_context(serving(run))
            contender = make(server.url)
            log = run.folder / "workers.log"
            started = Processes(contender.commands(workers), contender.environment, log)
        processes = stack.enter_context(started)
        stack.enter_context(placed(ours))
        poll(lambda: contender.ready(workers))
        contender.bag(4 * workers)
        contender.wait()
        time.sleep(CALM)
        yield contender, processes


# --- throughput --------------------------------------------------------------------------


def drained(
    run: Run, make: Make, submit: Submit, count: int, workers: int = 1, *, together: bool = False
) -> None:
    """Seconds per task, from the moment when the workers are let go."""
    with up(run, make, workers, together=together) as (contender, processes):
        processes.hold()
        submit(contender)
        run.start()
        processes.let_go()
        contender.wait()
        run.stop(per=count)
        contender.check()


def bag(run: Run, make: Make, full: int, *, smoke: int) -> None:
    count = run.size(full, smoke=smoke)
    drained(run, make, lambda contender: contender.bag(count), count, together=True)


def chain(run: Run, make: Make, full: int, *, smoke: int) -> None:
    count = run.size(full, smoke=smoke)
    drained(run, make, lambda contender: contender.chain(count), count, together=True)


def sessions(run: Run, make: Make, full: int, *, smoke: int, each: int = 100) -> None:
    """Many sessions, two workers."""
    many = run.size(full, smoke=smoke)
    drained(run, make, lambda contender: contender.sessions(many, each), many * each, workers=2)


def submitted(run: Run, make: Make, full: int, *, smoke: int) -> None:
    """Seconds per task until all are accepted; no worker runs."""
    count = run.size(full, smoke=smoke)
    with serving(run) as server:
        contender = make(server.url)
        contender.bag(1)
        with run.timed(per=count):
            contender.bag(count)


def gained(run: Run, make: Make) -> None:
    """Tasks of 5 ms of CPU: the time of two workers as a share of the time of one."""
    count = run.size(400, smoke=20)
    took = []
    for workers in (1, 2):
        clock = Run(run.folder / str(workers), "wall", run.smoke)
        clock.folder.mkdir()
        drained(clock, make, lambda contender: contender.spin(count), count, workers)
        assert clock.value is not None
        took.append(clock.value)
    run.report(took[1] / took[0])


# --- latency -----------------------------------------------------------------------------


def first_handoff(run: Run, make: Make) -> None:
    delays = []
    with up(run, make) as (contender, _):
        for _ in range(run.size(50, smoke=5)):
            time.sleep(CALM)
            sent = time.monotonic()
            delays.append(contender.handoff() - sent)
    run.report(statistics.median(delays))


def following_hop(run: Run, make: Make) -> None:
    with up(run, make, together=True) as (contender, _):
        began = contender.hops(run.size(200, smoke=20))
    run.report(statistics.median(later - sooner for sooner, later in pairwise(began)))


# --- memory ------------------------------------------------------------------------------


def idle_rss(run: Run, make: Make) -> None:
    """The largest of the processes that one worker consists of."""
    with up(run, make) as (_, processes):
        run.report(max(_memory(pid, "Rss") for pid in processes.members()))


def idle_pss(run: Run, make: Make) -> None:
    """All processes that one worker consists of; pages that they share count once."""
    with up(run, make) as (_, processes):
        run.report(sum(_memory(pid, "Pss") for pid in processes.members()))


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no {field}")


def queued_bytes(run: Run, make: Make, full: int, *, smoke: int) -> None:
    """What the server's memory grows by, per task that waits, without its buffers for clients and AOF."""
    count = run.size(full, smoke=smoke)
    with serving(run) as server:
        contender = make(server.url)
        contender.bag(1)
        before = _settled(server)
        contender.bag(count)
        run.report((_settled(server) - before) / count)


def _settled(server: Server) -> int:
    """Once it stays the same: what a server takes for its start and for large requests it gives back."""
    used = _used(server)
    while True:
        time.sleep(0.25)
        before, used = used, _used(server)
        if abs(used - before) < 4096:
            return used


def _used(server: Server) -> int:
    info = server.info()
    return int(info["used_memory"]) - int(info["mem_clients_normal"]) - int(info["mem_aof_buffer"])
