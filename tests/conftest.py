"""What holds for every test: no key, session id or setting of the user's reaches it, and values are checked.

Set in the environment, before anything is imported, so that the processes which tests start inherit it.
Not here: fixtures of a single subject; they live beside their tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

for name in [name for name in os.environ if name.startswith("GRAFLOW_CKPT_")]:
    del os.environ[name]
os.environ["GRAFLOW_CKPT_CHECK"] = "1"  # who changes a read-only value is named

# The machine is shared and tests run side by side: a deadline would measure the neighbours. Failures print
# the blob that reproduces them, since the example database stays behind on the machine of the CI.
settings.register_profile("graflow_ckpt", deadline=None, print_blob=True)
settings.load_profile("graflow_ckpt")


@pytest.fixture(scope="session", autouse=True)
def own_home() -> Iterator[Path]:
    """A home of the tests' own: the local key is made in it, never in the user's state folder."""
    with TemporaryDirectory(prefix="graflow-ckpt-home-") as folder:
        own = {
            "HOME": folder,
            "XDG_STATE_HOME": f"{folder}/.local/state",
            "XDG_CONFIG_HOME": f"{folder}/.config",
        }
        users = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        yield Path(folder)
        for name, value in users.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
