"""Metrics for Prometheus: what sessions report, and what stores hold.

    workflow(..., observers=[PrometheusObserver()])     saves, restores, tasks and sessions of this process
    StoreCollector("sqlite:///c.db").register()         what a store holds, read at each scrape

Promise: times are in seconds, sizes in bytes; no label holds an id of a session or a path, so that the
number of series is bounded by the program. A scrape opens no pickle.
Not here: serving them (`prometheus_client.start_http_server`), dashboards and alerts (docs/observing).
"""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from graflow_ckpt.checkpoint.care.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.retention import Taken
from graflow_ckpt.core.errors import GraflowError, not_installed
from graflow_ckpt.core.events import Event
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import backend_of, open_store
from graflow_ckpt.stores.around.fallback import Fallback, entries
from graflow_ckpt.stores.around.wrapper import layers

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise not_installed(missing, "There can be no metrics", "prometheus") from missing

log = logging.getLogger("graflow_ckpt.observers")

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BYTES = tuple(float(4**power) for power in range(5, 17))  # 1 KiB to 4 GiB
_OPERATIONS = {
    "checkpoint_failed": "save", "restore_failed": "restore", "journal_damaged": "restore",
    "list_failed": "list", "delete_failed": "delete",
}  # fmt: skip
"""What has failed with an event."""
AGES = (("1h", 3600.0), ("1d", 86_400.0), ("7d", 604_800.0), ("older", float("inf")))


class PrometheusObserver:
    """Counts what the sessions of this process report. Two may share a registry only if they are one."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        seconds = partial(Histogram, buckets=SECONDS, registry=registry)
        counter = partial(Counter, registry=registry)
        self._saves = seconds(
            "checkpoint_save_duration_seconds", "Time to save a checkpoint.", ("backend", "status")
        )
        self._restores = seconds(
            "checkpoint_restore_duration_seconds", "Time to load a checkpoint.", ("backend",)
        )
        self._sizes = Histogram(
            "checkpoint_size_bytes", "Values and control facts of a saved checkpoint.", ("backend",),
            buckets=BYTES, registry=registry,
        )  # fmt: skip
        self._errors = counter(
            "checkpoint_errors_total", "Checkpoints that failed.", ("operation", "error_type")
        )
        self._failed = counter("checkpoint_save_errors_total", "Saves that failed.", ("backend",))
        self._tasks = counter("graflow_tasks_total", "Attempts of tasks that have ended.", ("outcome",))
        self._ends = counter("graflow_sessions_total", "Executions that have ended.", ("status",))
        self._under_way: set[str] = set()
        self._running = Gauge(
            "graflow_sessions_running",
            "Executions under way.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if (operation := _OPERATIONS.get(event.kind)) is not None:
            self._errors.labels(operation, facts["error_type"]).inc()
        match event.kind:
            case "checkpoint_saved":
                status = "synced" if facts["synced"] else "accepted"
                self._saves.labels(facts["backend"], status).observe(facts["seconds"])
                self._sizes.labels(facts["backend"]).observe(facts["bytes"])
            case "checkpoint_failed":
                self._saves.labels(facts["backend"], "failed").observe(facts["seconds"])
                self._failed.labels(facts["backend"]).inc()
            case "checkpoint_restored":
                self._restores.labels(facts["backend"]).observe(facts["seconds"])
            case "task_ended":
                self._tasks.labels(facts["outcome"]).inc()
            case "session_started":
                self._under_way.add(event.session)  # it may be there: a session that goes back starts again
                self._running.set(len(self._under_way))
            case "session_ended":
                self._under_way.discard(event.session)
                self._running.set(len(self._under_way))
                self._ends.labels(facts["status"]).inc()
            case _:
                pass  # what will be reported one day is no metric yet


class StoreCollector(Collector):
    """The contents of a store, counted at a scrape, and at most once in `every` seconds.

    `orphans` says how many checkpoints cannot be used: if not given, those whose meta cannot be read.
    A store that is away gives no numbers and counts as down; the scrape continues.
    """

    def __init__(
        self,
        store: str | CheckpointStore,
        *,
        every: float = 60.0,
        orphans: Callable[[CheckpointStore, Inventory], int] = lambda store, known: len(known.unreadable),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = open_store(store) if isinstance(store, str) else store
        self._backend = backend_of(self._store.url)
        self._every = every
        self._orphans = orphans
        self._clock = clock
        self._seen: tuple[float, list[Metric]] | None = None

    def register(self, registry: CollectorRegistry = REGISTRY) -> None:
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: else registering would read the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if self._seen is None or self._clock() - self._seen[0] >= self._every:
            self._seen = (self._clock(), list(self._read()))
        yield from self._seen[1]

    def _read(self) -> Iterator[Metric]:
        yield from self._waiting()
        up = partial(self._whole, "checkpoint_store_up", "Whether the store could be read.")
        try:
            known = inventory(self._store)
            orphans = self._orphans(self._store, known)
        except (GraflowError, OSError) as error:
            log.warning("the store %s cannot be read for metrics: %s", self._store.url, error)
            yield up(0)
            return
        yield up(1)
        yield from self._families(known, orphans)

    def _waiting(self) -> Iterator[Metric]:
        """Yield what was saved while a store was away; most useful while it is."""
        waiting = GaugeMetricFamily(
            "checkpoints_waiting", "Checkpoints in the folder of a fallback.", labels=("backend", "state")
        )
        folders = [layer.waits for layer in layers(self._store) if isinstance(layer, Fallback)]
        for folder in folders:
            waiting.add_metric((self._backend, "waiting"), len(folder.waiting()))
            waiting.add_metric((self._backend, "refused"), len(list(entries(folder.refused))))
        if folders:
            yield waiting

    def _families(self, known: Inventory, orphans: int) -> Iterator[Metric]:
        now = time.time()
        counts, sizes, ages = Tally[str](), Tally[str](), Tally[str]()
        newest: dict[str, float] = {}
        taken = Taken()  # what several have in common is stored once
        for cut in known.cuts:
            counts[cut.workflow] += 1
            sizes[cut.workflow] += taken.add(cut)
            ages[next(name for name, limit in AGES if now - cut.created <= limit)] += 1
            if cut.created != float("inf"):  # a time that cannot be read is no time
                newest[cut.workflow] = max(newest.get(cut.workflow, 0.0), cut.created)
        yield self._gauge("checkpoints_per_flow", "Checkpoints of a workflow.", "flow", counts)
        yield self._gauge("checkpoint_stored_bytes", "Bytes of a workflow's checkpoints.", "flow", sizes)
        yield self._gauge(
            "checkpoint_newest_timestamp_seconds", "When a workflow was saved last.", "flow", newest
        )
        yield self._gauge(
            "checkpoints_by_age", "Checkpoints up to that age.", "age", {name: ages[name] for name, _ in AGES}
        )
        yield self._whole("orphaned_checkpoints_total", "Checkpoints that cannot be used.", orphans)

    def _whole(self, name: str, text: str, number: int) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("backend",))
        family.add_metric((self._backend,), number)
        return family

    def _gauge(self, name: str, text: str, label: str, found: Any) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("backend", label))
        for value, number in sorted(found.items()):
            family.add_metric((self._backend, value), number)
        return family


__all__ = ["PrometheusObserver", "StoreCollector"]
