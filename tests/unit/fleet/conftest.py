"""A client of a real server, and a key that seals what it stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.fleet.client import Client
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores.around.keys import Keyring, new_key


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    return Keyring.load()


@pytest.fixture
def client(redis_url: str, keyring: Keyring) -> Iterator[Client]:
    client = Client(open_link(redis_url), keyring=keyring)
    yield client
    client.close()
