"""What all contracts share: where a store is opened, and how patient a test is with it.

    class TestMyStore(StoreContract, ProcessContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return partial(MyStore, tmp_path / "checkpoints")

A store that lacks a part of them takes the pieces that it keeps, and says so in its docstring; nothing is
skipped when the tests run. Not here: what a store is (core/protocols.py), and the contract of drivers
(graflow_ckpt/testing/drivers.py), which is all that a new place has to keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease

Opener = Callable[[], CheckpointStore]
"""Opens the store that is tested. Each call gives another handle to the same place."""


class Contract:
    """A class of tests gives `opener`; the two numbers are for stores that need time."""

    patience: float = 10.0
    """Seconds in which the session of a killed process becomes free."""

    lease_seconds: float = 0.0
    """After how many seconds of silence the store takes an owner for dead; 0: silence says nothing."""

    @pytest.fixture
    def opener(self) -> Opener:
        """An empty place. `ProcessContract` also sends it to other processes: it has to be pickled."""
        raise NotImplementedError("give the class a fixture `opener` that returns what opens your store")

    def acquired(self, store: CheckpointStore, session: str = "s") -> Lease:
        """The lease of a session whose owner was killed."""
        end = time.monotonic() + self.patience
        while True:
            try:
                return store.acquire(session)
            except SessionBusy:
                assert time.monotonic() < end, f"still busy after {self.patience} s, and its owner is dead"
                time.sleep(0.05)


def names_of_tests(suite: type[Contract]) -> list[str]:
    """The names of the tests that a class has: count them, so that none can get lost in silence."""
    return sorted(name for name in dir(suite) if name.startswith("test_"))
