"""What do observers cost a step, and wrappers that wait, fall back and count a save?

Method: CPU time of this process, so that neither disk nor neighbours count. "a step": a session in memory
that runs one task by `next_iteration`, with the observer and with one that does nothing; "saved": with
`EveryTask()` into a folder, and without any. "a put": a trio of 4 KB or 1 MB into a SQLite store, through
`retry+fallback+` and bare. Unit: µs. The floor is the same without what is asked about.
A regression: a lock, a copy of a part or a request to the store that is made while nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import place
from graflow_ckpt import EveryTask, task, workflow
from graflow_ckpt.core.events import Observer
from graflow_ckpt.core.policy import OnRequest, Policy
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.observers.opentelemetry import Tracing
from graflow_ckpt.observers.prometheus import PrometheusObserver
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from tests.trios import parts_of, path_of

NAME = "watching"
METRICS = PrometheusObserver()  # a registry takes it once
TRACES = Tracing()  # no SDK records: what every program pays that has it built in


def silent(event: object) -> None:
    """Whoever observes pays for the events."""


def steps(policy: Policy, count: int, smoke: int, *observers: Observer) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        number = run.size(count, smoke=smoke)

        @task(inject_context=True)
        def step(context: Any, data: int = 1) -> None:
            if data < number:
                context.next_iteration(data + 1)

        with workflow(
            "watched",
            "watched",
            durability="checkpoint",
            store=place(run),
            checkpoint=policy,
            observers=observers,
        ) as flow:
            flow.add(step)
            with run.timed(per=number):
                flow.execute(step)

    return side


def bare(run: Run, inner: CheckpointStore) -> CheckpointStore:
    return inner


def around(run: Run, inner: CheckpointStore) -> CheckpointStore:
    return Retrying(Fallback(inner, str(run.folder / "waiting")))


def puts(wrap: Callable[[Run, CheckpointStore], CheckpointStore], size: int) -> Callable[[Run], None]:
    def side(run: Run) -> None:
        count = run.size(50, smoke=3)
        store = wrap(run, SqliteStore(f"sqlite:///{run.folder}/c.db"))
        lease = store.acquire("s")
        parts = parts_of("one", size=size)
        store.put(path_of(store, "warm"), parts, lease=lease, stage="one")
        with run.timed(per=count):
            for _ in range(count):
                store.put(path_of(store, "warm"), parts, lease=lease, stage="one")
        lease.release()

    return side


def case(name: str, subject: Callable[[Run], None], floor: Callable[[Run], None], bar: float) -> Case:
    return Case(name, subject, floor, Ratio(bar), unit="µs", clock="cpu")


LOOP = (OnRequest(), 5_000, 100)
SAVED = (EveryTask(), 150, 10)

CASES = [
    case("a step, metrics", steps(*LOOP, METRICS), steps(*LOOP, silent), 1.5),
    case("a step, traces that nobody records", steps(*LOOP, TRACES), steps(*LOOP, silent), 1.5),
    case("a step that is saved, metrics and traces", steps(*SAVED, METRICS, TRACES), steps(*SAVED), 1.15),
    case("a put of 4 KB, retry+fallback+", puts(around, 4_000), puts(bare, 4_000), 1.25),
    case("a put of 1 MB, retry+fallback+", puts(around, 1_000_000), puts(bare, 1_000_000), 1.1),
]
