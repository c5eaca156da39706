"""The sweeper: passes that come again, whatever has happened in the last one, until it is ended."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from graflow_ckpt.checkpoint.care.pruning import Sweeper
from graflow_ckpt.checkpoint.retention import KeepLast
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.protocols import CheckpointStore
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.stocked import left, line, save


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)


class Watched(Sweeper):
    """Tells when a pass is over; may be told to fail."""

    def __init__(self, *args: Any, fails: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fails, self.over = fails, threading.Semaphore(0)

    def sweep(self) -> Any:
        try:
            if self.fails:
                self.fails -= 1
                raise ConnectionResetError("the store is away")
            return super().sweep()
        finally:
            self.over.release()


def test_a_store_is_swept_at_once_and_again(store: CheckpointStore) -> None:
    line(store, "s", 3)
    with Watched(store.folder, KeepLast(1), every=0.001) as sweeper:
        assert sweeper.over.acquire(timeout=30)
        assert left(store) == ["s3"]
        save(store, "s", 4)
        while left(store) != ["s4"]:
            assert sweeper.over.acquire(timeout=30)

    assert not [t for t in threading.enumerate() if t.name == "graflow-ckpt sweeper"]


def test_a_pass_that_fails_is_logged_and_the_next_one_comes(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    line(store, "s", 3)
    with caplog.at_level(logging.ERROR), Watched(store.folder, KeepLast(1), every=0.001, fails=2) as sweeper:
        for _ in range(3):
            assert sweeper.over.acquire(timeout=30)

    assert caplog.text.count("the pass has failed") == 2
    assert left(store) == ["s3"]


def test_leaving_ends_a_pass_between_two_checkpoints(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(store, "s", 5)
    begun, go_on = threading.Event(), threading.Event()
    delete = type(store).delete

    def slowly(self: Any, path: str) -> bool:
        begun.set()
        assert go_on.wait(30)
        return delete(self, path)

    monkeypatch.setattr(type(store), "delete", slowly)
    sweeper = Sweeper(store.folder, KeepLast(1)).__enter__()
    assert begun.wait(30)
    ending = threading.Thread(target=sweeper.__exit__, args=(None, None, None))
    ending.start()
    while not sweeper._end.is_set():
        pass
    go_on.set()
    ending.join(30)

    assert left(store) == ["s2", "s3", "s4", "s5"]


def test_a_session_that_is_run_is_left_to_its_own_retention(store: CheckpointStore) -> None:
    line(store, "s", 3)
    lease = store.acquire("s")
    try:
        done = Sweeper(store.folder, KeepLast(1)).sweep()
    finally:
        lease.release()

    assert (done.cuts, {why for _, why in done.spared}) == ((), {"busy"})


def test_no_time_between_two_passes_is_refused(tmp_path: Any) -> None:
    with pytest.raises(GraphError, match="needs time"):
        Sweeper(tmp_path, every=0)
