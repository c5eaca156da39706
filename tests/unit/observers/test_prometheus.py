"""Metrics: what a scrape finds after saves, failures and resumes; and packages that are missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from graflow_ckpt import EveryTask, KeepLast
from graflow_ckpt.checkpoint.retention import DEFAULT, Retention
from graflow_ckpt.core.errors import CheckpointError, NoGoodCheckpoint, ServerGone
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.observers.prometheus import PrometheusObserver, StoreCollector
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.loops import pair
from tests.trios import put, put_meta
from tests.unit.stores.outages import Cable, Far


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def observer(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)


@pytest.fixture
def room() -> Iterator[str]:
    yield "memory://observed"
    MemoryStore("memory://observed").forget()


def value(registry: CollectorRegistry, name: str, **labels: str) -> Any:
    return registry.get_sample_value(name, labels)


def run(
    observer: PrometheusObserver,
    session: str = "s",
    store: str | CheckpointStore = "kept",
    *,
    keep: Retention = DEFAULT,
    fails: bool = False,
) -> None:
    durable: dict[str, Any] = {"durability": "checkpoint", "checkpoint": EveryTask(), "observers": [observer]}
    pair(session=session, store=store, keep=keep, fails=fails, **durable).execute()


def test_each_save_is_timed_by_backend_and_status(
    registry: CollectorRegistry, observer: PrometheusObserver, room: str
) -> None:
    run(observer)
    run(observer, store=room)

    saved, accepted = (
        value(registry, "checkpoint_save_duration_seconds_count", backend=backend, status=status)
        for backend, status in (("file", "synced"), ("memory", "accepted"))
    )
    assert (saved, accepted) == (3, 3)
    assert value(registry, "checkpoint_save_duration_seconds_sum", backend="file", status="synced") > 0
    assert value(registry, "checkpoint_size_bytes_count", backend="file") == 3
    assert value(registry, "checkpoint_size_bytes_sum", backend="file") > 300
    assert value(registry, "graflow_sessions_total", status="completed") == 2
    assert value(registry, "graflow_tasks_total", outcome="done") == 4
    assert value(registry, "graflow_sessions_running") == 0


def test_a_save_that_fails_is_counted_with_its_error_and_is_no_size(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    run(observer, store="memory://observed-small?max_checkpoints=1")

    assert value(registry, "checkpoint_save_errors_total", backend="memory") == 2
    assert value(registry, "checkpoint_errors_total", operation="save", error_type="TooLarge") == 2
    assert value(registry, "checkpoint_save_duration_seconds_count", backend="memory", status="failed") == 2
    assert value(registry, "checkpoint_size_bytes_count", backend="memory") == 1


def test_a_restore_is_timed_and_what_was_passed_over_is_an_error(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    with pytest.raises(OSError, match="not yet"):
        run(observer, fails=True)
    newest = max(Path("kept").glob("*.pkl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    newest.write_bytes(b"damaged")

    run(observer)

    assert value(registry, "checkpoint_restore_duration_seconds_count", backend="file") == 1
    assert (
        value(registry, "checkpoint_errors_total", operation="restore", error_type="CheckpointCorrupt") == 1
    )
    assert value(registry, "graflow_sessions_total", status="failed") == 1


def test_a_session_of_which_nothing_is_good_is_an_error_and_no_restore(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    with pytest.raises(OSError, match="not yet"):
        run(observer, fails=True)
    for path in Path("kept").glob("*.pkl"):
        path.write_bytes(b"damaged")

    with pytest.raises(NoGoodCheckpoint):
        run(observer)

    assert value(registry, "checkpoint_errors_total", operation="restore", error_type="NoGoodCheckpoint") == 1
    assert value(registry, "checkpoint_restore_duration_seconds_count", backend="file") is None


def test_a_scrape_says_what_a_store_holds_by_workflow(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    run(observer)
    run(observer, session="t")
    StoreCollector("kept").register(registry)

    assert value(registry, "checkpoints_per_flow", backend="file", flow="w") == 6
    stored = value(registry, "checkpoint_stored_bytes", backend="file", flow="w")
    assert stored == sum(path.stat().st_size for path in Path("kept").glob("session_*"))
    assert value(registry, "checkpoints_by_age", backend="file", age="1h") == 6
    assert value(registry, "checkpoints_by_age", backend="file", age="older") == 0
    assert value(registry, "checkpoint_store_up", backend="file") == 1
    assert value(registry, "orphaned_checkpoints_total", backend="file") == 0


def test_what_nobody_can_read_is_an_orphan(registry: CollectorRegistry, room: str) -> None:
    put_meta(open_store(room), "broken", b"{")

    StoreCollector(room).register(registry)

    assert value(registry, "orphaned_checkpoints_total", backend="memory") == 1


def test_a_store_is_read_once_per_period_however_often_somebody_scrapes(
    registry: CollectorRegistry, room: str
) -> None:
    now = [0.0]
    StoreCollector(room, every=60, clock=lambda: now[0]).register(registry)
    assert value(registry, "orphaned_checkpoints_total", backend="memory") == 0
    put_meta(open_store(room), "broken", b"{")

    assert value(registry, "orphaned_checkpoints_total", backend="memory") == 0
    now[0] = 60.0
    assert value(registry, "orphaned_checkpoints_total", backend="memory") == 1


@pytest.mark.parametrize("error", [ServerGone("away"), CheckpointError("broken"), OSError("disk")])
def test_a_store_that_is_away_is_down_and_the_scrape_goes_on(
    registry: CollectorRegistry, observer: PrometheusObserver, error: Exception
) -> None:
    class Away(MemoryStore):
        def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
            raise error

    StoreCollector(Away("memory://observed")).register(registry)

    found = generate_latest(registry).decode()

    assert 'checkpoint_store_up{backend="memory"} 0.0' in found
    assert "checkpoints_per_flow" not in found
    assert "graflow_sessions_running" in found


def test_what_retention_could_neither_read_nor_delete_is_counted_by_operation(
    registry: CollectorRegistry, observer: PrometheusObserver, tmp_path: Path
) -> None:
    class Stubborn(LocalStore):
        """Lists once, and deletes nothing."""

        lists = 0

        def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
            self.lists += session is None
            if self.lists > 1:
                raise CheckpointError("the server is away")
            return super().list(session, pattern)

        def delete(self, path: str) -> bool:
            raise PermissionError(path)

    run(observer, store=Stubborn(tmp_path / "kept"), keep=KeepLast(1))

    deleted, listed = (
        value(registry, "checkpoint_errors_total", operation=operation, error_type=error)
        for operation, error in (("delete", "PermissionError"), ("list", "CheckpointError"))
    )
    assert (deleted, listed) == (1, 1)


def test_what_waits_for_a_store_can_be_scraped_while_that_is_away(
    registry: CollectorRegistry, room: str, tmp_path: Path
) -> None:
    far = Far(MemoryStore(room), Cable(tmp_path / "cut"))
    store = Fallback(far, str(tmp_path / "folder"))
    far.cable.cut()
    put(store, "best", "one")

    StoreCollector(store).register(registry)

    assert value(registry, "checkpoints_waiting", backend="far", state="waiting") == 1
    assert value(registry, "checkpoints_waiting", backend="far", state="refused") == 0
    assert value(registry, "checkpoint_store_up", backend="far") == 0


# --- packages that are missing --------------------------------------------------------


PROGRAM = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from graflow_ckpt import task, workflow
from graflow_ckpt.core.errors import PackageMissing
try:
    import graflow_ckpt.observers.{module}
except PackageMissing as error:
    print(error.extra, error)
with workflow("w") as flow:
    @task
    def a():
        return 1
    assert flow.execute() == 1
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, extra: str) -> None:
    program = PROGRAM.format(module=module, package=package)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"{extra} There can be no")
    assert f"pip install 'graflow-ckpt[{extra}]'" in done.stdout


def test_a_run_without_observers_loads_neither() -> None:
    program = PROGRAM.format(module="", package="nothing").split("try:")[0] + (
        "with workflow('w') as flow:\n    @task\n    def a(): ...\n    flow.execute()\n"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
