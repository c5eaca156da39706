"""A key for those who seal, in the environment that processes of the tests inherit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.checkpoint.keys import new_key
from graflow_ckpt.fleet import client


@pytest.fixture
def fleet_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key for this test. Clients of others have another one, and know of programs that are gone by now."""
    key = new_key()
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", key)
    mine: dict[tuple[str, str], client.Client] = {}
    monkeypatch.setattr(client, "_clients", mine)
    yield key
    for one in mine.values():
        one.close()
