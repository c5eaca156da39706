"""The tests of a driver: one that passes makes a store, by `KeyedStore`, that keeps all promises of stores.

    class TestMyDriver(DriverContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return partial(MyDriver, tmp_path / "things")

`AtomicDriverContract` is for a driver that changes several keys at once.
Not here: what the six calls promise (stores/driver.py), and how to write a driver (docs/drivers.md).
"""

from __future__ import annotations

from graflow_ckpt.core.errors import not_installed

try:
    import pytest
except ModuleNotFoundError as missing:
    raise not_installed(missing, "Drivers are tested with pytest", "testing") from missing

# Before it is loaded, so that an assertion that fails shows the two sides.
pytest.register_assert_rewrite("graflow_ckpt.testing.drivers")

from graflow_ckpt.testing.drivers import AtomicDriverContract, DriverContract  # noqa: E402

__all__ = ["AtomicDriverContract", "DriverContract"]
