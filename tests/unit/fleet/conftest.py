"""A client of a real server, and a key that seals what it stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

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
    with closing(Client(open_link(redis_url), keyring=keyring)) as client:
        yield client


@pytest.fixture
def redis(client: Client) -> Any:
    """That client's client of redis-py."""
    return client.link.client
