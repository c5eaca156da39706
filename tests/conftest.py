"""What holds for every test: nothing of the user's or the terminal's reaches it, and values are checked.
Servers for those that ask for one.

Set in the environment, before anything is imported, so that the processes which tests start inherit it.
Not here: fixtures of a single subject; they live beside their tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from graflow_ckpt.stores.around.keys import new_key
from tests import object_servers
from tests.object_servers import CREDENTIALS, ObjectServer
from tests.proxy import Proxy
from tests.servers import Server, binaries

if TYPE_CHECKING:
    from graflow_ckpt.links.redis import RedisLink
    from tests.postgres_servers import PostgresServer

# Settings, ours and those of libraries that speak to servers; the terminal, the language, the zone; proxies,
# which would be asked for servers of this machine.
OTHERS = ("GRAFLOW_CKPT_", "AWS_", "AZURE_", "GOOGLE_", "OTEL_", "PG", "RQ_", "LC_")
TERMINAL = [
    "TERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "LANG",
    "TZ",
]
for name in list(os.environ):
    if name.startswith(OTHERS) or name in TERMINAL or name.lower().endswith("_proxy"):
        del os.environ[name]
# What was compiled is kept: else each of the thousand processes that tests start compiles the package anew,
# which takes more than half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Thousands of tests sync what they write, and none looks for it after a power cut: they work in memory, where
# there is room for all of them and programs may be run. Half of their time was spent on waiting for a disk.
MEMORY = "/dev/shm"
with suppress(OSError):
    place = os.statvfs(MEMORY)
    if place.f_bavail * place.f_frsize > 8 << 30 and not place.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
os.umask(0o022)  # some tests look at the modes of files
os.environ["GRAFLOW_CKPT_SLOW_SAVE"] = "3600"  # the machine is shared: a slow save is no news
os.environ["GRAFLOW_CKPT_CHECK"] = "1"  # who changes a read-only value is named
# A shell that starts us in the background has it ignored, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine is shared and tests run side by side: a deadline would measure the neighbours. Failures print
# the blob that reproduces them, since the example database stays behind on the machine of the CI, where
# Hypothesis would try the same examples for ever, were it not told otherwise.
settings.register_profile("graflow_ckpt", deadline=None, print_blob=True, derandomize=False)
# For a long look: pytest tests/unit/sessions --hypothesis-profile=thorough
settings.register_profile("thorough", parent=settings.get_profile("graflow_ckpt"), max_examples=2000)
settings.register_profile("long", parent=settings.get_profile("graflow_ckpt"), max_examples=500)
settings.register_profile("fast", parent=settings.get_profile("graflow_ckpt"), max_examples=20)
settings.load_profile("graflow_ckpt")
# An assertion of a contract that fails shows the two sides, too.
pytest.register_assert_rewrite("tests.conformance.contracts")

SEED = "hypothesis_seed"
_numbers = count()


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks at it
def pytest_configure(config: pytest.Config) -> None:
    """Take another seed each time, unless one is asked for; a worker of xdist has that of its controller."""
    if config.getoption(SEED) is None:
        given: dict[str, str] = getattr(config, "workerinput", {})
        setattr(config.option, SEED, given.get(SEED) or str(SystemRandom().randrange(1_000_000)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[SEED] = node.config.getoption(SEED)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Any) -> None:
    """Leave nothing in memory, unless there is something to be looked at."""
    made: Path = session.config._tmp_path_factory.getbasetemp()
    if not session.testsfailed and not hasattr(session.config, "workerinput") and made.is_relative_to(MEMORY):
        shutil.rmtree(made, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {_the_same_again(config)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(f"the same examples again: {_the_same_again(config)}")


def _the_same_again(config: pytest.Config) -> str:
    return f"--hypothesis-seed={config.getoption(SEED)}"


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


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder for tests of what is said of folders that are in memory, and of others."""
    with TemporaryDirectory(prefix="graflow-ckpt-disk-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def own_data(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test keeps in the user's database is no other one's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(own_home / f"data-{next(_numbers)}"))


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No password of a server that had the port of this one before, no way to a bucket that is gone."""
    for module in ("links.addresses", "stores.drivers.objects.names", "stores.drivers.postgres.names"):
        monkeypatch.setattr(f"graflow_ckpt.{module}._known", {})


# --- servers ---------------------------------------------------------------------------


@pytest.fixture
def no_keepers() -> None:
    """Of leases that other tests have left: where epochs begin anew, they would renew what is another's."""
    for thread in threading.enumerate():
        if thread.name.startswith("lease-"):
            keep = getattr(thread, "_target", None)  # gone when the thread ends
            if (over := getattr(getattr(keep, "__self__", None), "_over", None)) is not None:
                over.set()
                thread.join()


@pytest.fixture(scope="session", params=sorted(binaries()))
def redis_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server without a disk for all tests of this process; see `redis_url`."""
    with Server(binary=binaries()[request.param]) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Server, no_keepers: None) -> str:
    """The address of an empty server."""
    redis_server.ask("FLUSHALL")
    return redis_server.url


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisLink]:
    """To an empty server."""
    from graflow_ckpt.links.redis import open_link

    link = open_link(redis_url)
    yield link
    link.close()


@pytest.fixture
def proxy(redis_server: Server, redis_url: str) -> Iterator[Proxy]:
    """In front of an empty server."""
    with Proxy(redis_server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for all tests of this process."""
    from tests.postgres_servers import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_database(postgres_server: PostgresServer) -> str:
    """The address of a database with the tables of the store; see `postgres_url`."""
    from graflow_ckpt.stores.drivers.postgres.store import PostgresStore

    url = postgres_server.database()
    store = PostgresStore(url)
    store.schema.upgrade()
    store.close()
    return url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_database: str, no_keepers: None) -> str:
    """The same, empty."""
    database = postgres_database.rpartition("/")[2]
    postgres_server.ask("delete from graflow_ckpt.things", database=database)
    return postgres_database


@pytest.fixture
def own_redis() -> Iterator[Callable[..., Server]]:
    """Starts servers for one test: `own_redis({"appendonly": "yes"})`; arguments: those of `Server`."""
    with ExitStack() as servers:
        yield lambda *args, **options: servers.enter_context(Server(*args, **options))


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServer]:
    """An S3 server (or Azurite) for all tests of this process; see `objects_url`."""
    with object_servers.object_server() as server:
        yield server


@pytest.fixture
def objects_url(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store in a bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return object_server.url


KINDS = ("memory", "local", "redis", "sqlite", "postgres", "objects")


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store, of each kind in turn; there is a key for those that are shared."""
    kind: str = request.param
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", new_key())
    if kind == "redis":
        return request.getfixturevalue("own_redis")().url  # type: ignore[no-any-return]
    if kind in ("postgres", "objects"):
        return request.getfixturevalue(f"{kind}_url")  # type: ignore[no-any-return]
    return {
        "memory": f"memory://{next(_numbers)}",
        "local": f"{tmp_path}/kept",
        "sqlite": f"sqlite:///{tmp_path}/kept.db",
    }[kind]
