"""What all contracts share: where a store is opened, and how patient a test is with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graflow_ckpt.core.protocols import CheckpointStore

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
