"""Each store keeps the contract of every store; those that have contents keep that of contents.

How many tests of the contract a store passes is counted: none can get lost in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.cached import Cached
from graflow_ckpt.stores.around.encoded import Compressed, Encrypted
from graflow_ckpt.stores.around.fallback import Fallback
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.retrying import Retrying
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.conformance.contracts.contents import ContentContract, ContentProcessContract
from tests.conformance.contracts.fencing import (
    FencingContract,
    FencingProcessContract,
    Snapshot,
)
from tests.conformance.contracts.journal import ProcessContract
from tests.conformance.contracts.store import InProcess, StoreContract, WithProcesses
from tests.conformance.contracts.trio import AlongContract, Contract, Opener, names_of_tests
from tests.conformance.restoring import in_head, in_memory, in_postgres, in_redis, in_sqlite
from tests.servers import Server, binaries
from tests.trios import own_name, put

SYNCED = {"appendonly": "yes", "appendfsync": "always"}  # else Redis keeps no journal


class InMemory(InProcess):
    """In a place that is empty before, and gone after."""

    url: str

    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        yield partial(MemoryStore, self.url)
        MemoryStore(self.url).forget()

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        return in_memory(self.url)


class TestMemory(InMemory, ContentContract):
    url = "memory://conformance"


class TestBoundedMemory(InMemory):
    url = "memory://bounded?max_bytes=100000000&max_checkpoints=2000"


class TestLocal(StoreContract, ProcessContract):
    """Its owners cannot lose a session while they live."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalStore, tmp_path / "checkpoints")


class TestSqlite(WithProcesses):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(SqliteStore, tmp_path / "checkpoints.db", lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Snapshot:
        return in_sqlite(tmp_path / "checkpoints.db")


class TestPostgres(WithProcesses):
    @pytest.fixture
    def opener(self, postgres_url: str) -> Opener:
        return partial(PostgresStore, postgres_url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, postgres_url: str) -> Snapshot:
        return in_postgres(postgres_url)


@pytest.fixture(scope="module", params=sorted(binaries()))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(SYNCED, binary=binaries()[request.param]) as server:
        yield server


class TestRedis(WithProcesses):
    """On each server that there is."""

    @pytest.fixture
    def opener(self, server: Server) -> Opener:
        server.ask("FLUSHALL")
        return partial(RedisStore, server.url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, server: Server) -> Snapshot:
        return in_redis(server)


class TestObjects(WithProcesses):
    """On a server that speaks like S3 (or Azurite)."""

    lease_seconds = 0.5

    @pytest.fixture
    def opener(self, objects_url: str) -> Opener:
        return partial(ObjectStore, objects_url, lease=self.lease_seconds)

    @pytest.fixture
    def snapshot(self, objects_url: str) -> Snapshot:
        return in_head(objects_url)


# --- stores that are wrapped: compressed, encrypted, a tenant's, cached -------------------


KEYRING = Keyring({"conformance": bytes(range(32))})
PLACE = "memory://wrapped"


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    """An empty one, for all that is opened in a test."""
    MemoryStore(PLACE).forget()
    yield MemoryStore(PLACE)
    MemoryStore(PLACE).forget()


class AroundMemory(InProcess):
    @pytest.fixture
    def snapshot(self, memory: MemoryStore) -> Snapshot:
        return in_memory(PLACE)


def encoded(inner: CheckpointStore) -> CheckpointStore:
    return Compressed(Encrypted(inner, KEYRING))


class TestEncodedMemory(AroundMemory, ContentContract):
    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        return lambda: encoded(MemoryStore(PLACE))


class TestEncodedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: encoded(LocalStore(tmp_path / "checkpoints"))


class TestCompressedMemory(AroundMemory):
    """Each encoding by itself, and each in another place."""

    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        return lambda: Compressed(MemoryStore(PLACE))


class TestEncryptedLocal(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: Encrypted(LocalStore(tmp_path / "checkpoints"), KEYRING)


def fill(store: Tenant) -> None:
    """What another tenant has, which is not to be seen. The lease is kept."""
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"of somebody else;")
    for name in ("best", own_name()):
        put(store, name, "elses")


class TestTenantInMemory(AroundMemory):
    @pytest.fixture
    def opener(self, memory: MemoryStore) -> Opener:
        fill(Tenant(memory, "other"))
        return lambda: Tenant(MemoryStore(PLACE), "acme")


class TestTenantInFolder(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        fill(Tenant(LocalStore(tmp_path / "checkpoints"), "acm"))
        return lambda: Tenant(LocalStore(tmp_path / "checkpoints"), "acme")


def all_but_the_cache(folder: Path) -> CheckpointStore:
    return Retrying(Fallback(LocalStore(folder / "checkpoints"), str(folder / "folder")))


class TestAroundAFolder(StoreContract, ProcessContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(all_but_the_cache, tmp_path)


@pytest.fixture(scope="module")
def wrapped_server() -> Iterator[Server]:
    with Server(binary=next(iter(binaries().values()))) as wrapped_server:
        yield wrapped_server


class TestCached(AroundMemory):
    @pytest.fixture
    def opener(self, wrapped_server: Server, memory: MemoryStore) -> Opener:
        wrapped_server.ask("FLUSHALL")
        return lambda: Cached(MemoryStore(PLACE), wrapped_server.url)


# --- all of them ---------------------------------------------------------------------------


# More is good news: change the numbers. Fewer is what they are for.
IN_PROCESS = 102
CONTENTS_IN_PROCESS = 16
WITH_PROCESSES = 132
IN_A_FOLDER = 93
IN_A_FOLDER_IN_PROCESS = 83
NUMBERS: dict[type[Contract], int] = {
    TestMemory: IN_PROCESS + CONTENTS_IN_PROCESS,
    TestBoundedMemory: IN_PROCESS,
    TestLocal: IN_A_FOLDER,
    TestSqlite: WITH_PROCESSES,
    TestPostgres: WITH_PROCESSES,
    TestRedis: WITH_PROCESSES,
    TestObjects: WITH_PROCESSES,
    TestEncodedMemory: IN_PROCESS + CONTENTS_IN_PROCESS,
    TestEncodedLocal: IN_A_FOLDER_IN_PROCESS,
    TestCompressedMemory: IN_PROCESS,
    TestEncryptedLocal: IN_A_FOLDER_IN_PROCESS,
    TestTenantInMemory: IN_PROCESS,
    TestTenantInFolder: IN_A_FOLDER_IN_PROCESS,
    TestAroundAFolder: IN_A_FOLDER,
    TestCached: IN_PROCESS,
}


@pytest.mark.parametrize("suite", NUMBERS)
def test_a_store_has_as_many_tests_as_it_had_and_changes_or_skips_none(suite: type[Contract]) -> None:
    assert len(names_of_tests(suite)) == NUMBERS[suite]
    assert changed_or_skipped(suite) == []


def test_no_piece_hides_a_test_of_another() -> None:
    pieces = [
        *StoreContract.__bases__, AlongContract, FencingContract, ProcessContract, FencingProcessContract,
        ContentContract, ContentProcessContract,
    ]  # fmt: skip

    assert sum(len(names_of_tests(piece)) for piece in pieces) == WITH_PROCESSES


def changed_or_skipped(suite: type[Contract]) -> list[str]:
    """What a suite, or a class of these tests that it is made of, says of a test itself."""
    own = [made for made in suite.__mro__ if made.__module__.startswith("tests.conformance.test_")]
    return [name for made in own for name in vars(made) if name.startswith("test_") or name == "pytestmark"]
