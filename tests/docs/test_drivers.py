"""Over the driver of docs/drivers.md, which its page tests, a store keeps the contract of stores. What such a
driver could get wrong between processes is convicted by the contract of drivers.
"""

from __future__ import annotations

import fcntl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.stores.keyed import KeyedStore
from graflow_ckpt.testing import AtomicDriverContract
from tests.conformance.contracts.contract import Opener
from tests.conformance.contracts.fencing import Snapshot
from tests.conformance.contracts.store import WithProcesses
from tests.conformance.restoring import in_folder
from tests.docs.test_docs import ROOT, blocks


@pytest.fixture(scope="module")
def driver_of_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its class, in a module that other processes find, too."""
    text = (ROOT / "docs/drivers.md").read_text(encoding="utf-8")
    (code,) = [
        each.code for each in blocks("drivers.md", text) if each.markers.get("file") == "json_driver.py"
    ]
    assert code.count("\n") <= 200
    folder = tmp_path_factory.mktemp("page")
    (folder / "json_driver.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("json_driver").JsonDriver
        del sys.modules["json_driver"]


def store_in(folder: Path, lease: float) -> KeyedStore:
    return KeyedStore(import_module("json_driver").JsonDriver(folder), f"json://{folder}", lease=lease)


class TestJsonStore(WithProcesses):
    @pytest.fixture
    def opener(self, tmp_path: Path, driver_of_the_page: Any) -> Opener:
        return partial(store_in, tmp_path / "things", self.lease_seconds)

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Snapshot:
        return in_folder(tmp_path / "things")


# --- broken ------------------------------------------------------------------------------

ALONE = threading.Lock()


def locks_threads_only(sound: Any) -> Any:
    class LocksThreadsOnly(sound):  # type: ignore[misc]
        """What other processes do comes between."""

        @contextmanager
        def _locked(self) -> Iterator[None]:
            with import_module(__name__).ALONE:
                self._carry_out()
                yield

    return LocksThreadsOnly


def carries_out_as_it_goes(sound: Any) -> Any:
    class CarriesOutAsItGoes(sound):  # type: ignore[misc]
        """Who is killed leaves the first keys of a batch, and nobody ends it."""

        @contextmanager
        def _locked(self) -> Iterator[None]:
            with open(self.folder / "lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                (self.folder / "decided").unlink(missing_ok=True)
                yield

    return CarriesOutAsItGoes


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (locks_threads_only, "test_no_change_is_lost_between_processes"),
        (carries_out_as_it_goes, "test_of_a_batch_of_a_process_that_is_killed_there_is_all_or_nothing"),
    ],
)
def test_a_driver_that_is_wrong_about_processes_is_convicted(
    driver_of_the_page: Any, tmp_path: Path, broken: Any, test: str
) -> None:
    kind = broken(driver_of_the_page)

    def run() -> None:
        for turn in range(20):  # what comes between two, or is killed, is a matter of luck
            getattr(AtomicDriverContract(), test)(partial(kind, tmp_path / str(turn)))

    with pytest.raises((AssertionError, OSError, ValueError)):  # or it finds halves of files itself
        run()
