"""The stores that have contents keep the contract of contents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.testing import ContentContract, ContentProcessContract, Contract, Opener, names_of_tests

IN_PROCESS = 15
WITH_PROCESSES = 17


class TestMemory(ContentContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield partial(MemoryStore, "memory://contents")
        MemoryStore("memory://contents").forget()


class TestSqlite(ContentContract, ContentProcessContract):
    lease_seconds = 5.0

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(SqliteStore, tmp_path / "runs.db")


class TestPostgres(ContentContract, ContentProcessContract):
    lease_seconds = 1.0

    @pytest.fixture
    def opener(self, postgres_url: str) -> Opener:
        return partial(PostgresStore, postgres_url, lease=self.lease_seconds)


class TestRedis(ContentContract, ContentProcessContract):
    lease_seconds = 1.0

    @pytest.fixture
    def opener(self, redis_url: str) -> Opener:
        return partial(RedisStore, redis_url, lease=self.lease_seconds)


class TestObjects(ContentContract, ContentProcessContract):
    lease_seconds = 0.5

    @pytest.fixture
    def opener(self, objects_url: str) -> Opener:
        return partial(ObjectStore, objects_url, lease=self.lease_seconds)


@pytest.mark.parametrize(
    ("suite", "number"),
    [
        (TestMemory, IN_PROCESS),
        (TestSqlite, WITH_PROCESSES),
        (TestPostgres, WITH_PROCESSES),
        (TestRedis, WITH_PROCESSES),
        (TestObjects, WITH_PROCESSES),
    ],
)
def test_a_store_has_as_many_tests_as_it_had(suite: type[Contract], number: int) -> None:
    assert len(names_of_tests(suite)) == number
