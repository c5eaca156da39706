"""Processes that die in the middle of what they were told to do: `python -m tests.crash.doomed`.

One process that has everything imported, and no thread, forks one for each order, a line of JSON:

    {"role": "save", "at": 7, "counted": "sqlite", "patience": 0.1, …}      the rest is the role's

The child makes itself ready (the store is open, the lease is its own) and says its pid; with the next
byte that comes it begins. What it does to a folder or a database is counted: before call number `at` it
kills itself. Whoever talks to a server is killed by the test, from the way to that server (ways.py), or
the server is, and the child waits for it for `patience` seconds. When it is dead, or has come to its end,
its exit status is told: 0, or REFUSED for an error that has a name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, KeepLast
from graflow_ckpt.checkpoint.care.copying import Move
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.errors import CheckpointError, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.engine.adopt import adopt, standing_at
from graflow_ckpt.fleet.client import at
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores import open_store, streams
from graflow_ckpt.stores.drivers.objects.store import ObjectsDriver
from graflow_ckpt.stores.drivers.postgres.driver import PostgresDriver
from graflow_ckpt.stores.drivers.postgres.link import Link
from graflow_ckpt.stores.drivers.postgres.names import parse
from graflow_ckpt.stores.drivers.postgres.schema import Schema
from graflow_ckpt.stores.drivers.redis.driver import RedisDriver
from graflow_ckpt.stores.drivers.sqlite.driver import SqliteDriver
from graflow_ckpt.stores.drivers.sqlite.file import FileConnection
from graflow_ckpt.stores.files.disk import Disk
from tests.crash import again
from tests.unit.checkpoint import stocked, trios

ROOT = Path(__file__).parents[2]
SESSION = "s"
NAMES = ("best", f"session_{SESSION}_step_1_17-1")
"""One that somebody has given, and one of the session's own: stores keep them in different ways."""

_KEPT = b"kept" * 25_000  # what all checkpoints have in common
_PIECE = 60_000  # too small to be stored by content
REFUSED = 3
Order = dict[str, Any]


def small_chunks(patch: pytest.MonkeyPatch) -> None:
    """So that a checkpoint of some pieces goes ahead of its commit, as one of many megabytes does."""
    for driver in (ObjectsDriver, PostgresDriver, RedisDriver, SqliteDriver):
        patch.setattr(driver, "chunk", 1 << 14 if driver is SqliteDriver else 1 << 16)
    patch.setattr(streams, "_AHEAD", 1 << 16)


def saved(store: CheckpointStore, name: str, sequence: int, lease: Lease | None = None) -> None:
    """A checkpoint with a value that all have, one that is shared by nobody, and many small ones."""
    values = {"kept": _KEPT, "own": b"%d" % sequence * 70_000}
    values |= {f"piece{number}": b"%d" % sequence * _PIECE for number in range(4)}
    state = trios.state(SESSION, *(("put", called, encode(value), -1) for called, value in values.items()))
    stocked.save(
        store, SESSION, sequence, name=f"{name}.pkl", of=state, lease=lease, epoch=lease.epoch if lease else 1
    )


# --- what they are told to do -----------------------------------------------------------------


def save(order: Order, ready: Callable[[], None]) -> None:
    """Both names anew, as the session's owner."""
    store = open_store(order["store"])
    lease = store.acquire(SESSION)
    ready()
    for name in NAMES:
        saved(store, name, order["sequence"], lease)


def prune(order: Order, ready: Callable[[], None]) -> None:
    CheckpointManager.prune(KeepLast(1), store=order["store"], dry_run=True)
    ready()
    done = CheckpointManager.prune(KeepLast(1), store=order["store"])
    if done.failed:
        raise CheckpointError(done.failed[0][1])


def copy(order: Order, ready: Callable[[], None]) -> None:
    origin, target = open_store(order["origin"]), open_store(order["store"])
    for store in (origin, target):
        next(iter(store.list()), None)
    ready()
    moved = Move(origin, target, trios.RING, trios.RING).session(SESSION)
    for error in (*(cut.error for cut in moved.cuts), moved.error):
        if error is not None:
            raise error
    assert {cut.state for cut in moved.cuts} == {"copied"}


def adopted(order: Order, ready: Callable[[], None]) -> None:
    """A checkpoint into its own session, a rewind, or into another one, a fork."""
    store = open_store(order["store"])
    standing = standing_at(f"{store.folder}/{order['name']}.pkl", order["store"])
    ready()
    adopt(standing, order["session"], store)


def open_database(order: Order, ready: Callable[[], None]) -> None:
    """Which makes a SQLite database, or brings it to this version."""
    ready()
    open_store(order["store"]).probe()


def run_again(order: Order, ready: Callable[[], None]) -> None:
    """A finished session in Redis, by its program or by its submitter, who is connected."""
    where = order["url"], order["session"], order["store"], 2
    if order["by"] == "program":
        context = again.opened(*where)
        ready()
        context.execute()
    else:
        at(order["url"])
        ready()
        again.submitted(*where)


def migrate(order: Order, ready: Callable[[], None]) -> None:
    schema = Schema(Link(parse(order["store"])))
    version = schema.status().version
    ready()
    if order["to"] > version:
        schema.upgrade(order["to"])
    else:
        schema.downgrade(order["to"])


ROLES = {
    "save": save, "prune": prune, "copy": copy, "adopt": adopted, "open": open_database, "migrate": migrate,
    "again": run_again,
}  # fmt: skip

# --- their end --------------------------------------------------------------------------------


class _Count:
    """`left`: the calls until the last one, which is not made; 0: there is no last one."""

    def __init__(self) -> None:
        self.left = 0

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self.left == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= self.left > 0
            return call(*args, **options)

        return counted


_CALLS = {
    "local": (Disk, ("create", "open_to_update", "open", "write", "write_at", "truncate", "sync", "sync_data",
                     "sync_folder", "rename", "unlink", "make_folder", "read")),
    "sqlite": (FileConnection, ("execute", "executemany")),
}  # fmt: skip


def _live(order: Order) -> None:
    count = _Count()
    owner, names = _CALLS.get(order["counted"], (None, ()))
    for name in names:
        setattr(owner, name, count.before(getattr(owner, name)))

    leases.PATIENCE = order.get("patience", leases.PATIENCE)

    def ready() -> None:
        _say(pid=os.getpid())
        os.read(0, 1)
        count.left = order["at"]

    ROLES[order["role"]](order, ready)


def _say(**facts: int) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def main() -> None:
    small_chunks(pytest.MonkeyPatch())  # until the end of this process
    while line := sys.stdin.readline():
        pid = os.fork()
        if not pid:
            status = 1
            try:
                _live(json.loads(line))
                status = 0
            except GraflowError:
                traceback.print_exc()
                status = REFUSED
            except BaseException:  # noqa: BLE001  the test sees the status, and stderr
                traceback.print_exc()
            finally:
                os._exit(status)
        _say(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Doomed:
    """That process, as the tests see it; it inherits the environment of this moment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def told(self, role: str, at: int, counted: str = "", **more: Any) -> int:
        """The pid of a process that is ready for it. `at`: 0 for one that is not to die by itself."""
        self._write(json.dumps({"role": role, "at": at, "counted": counted, **more}).encode() + b"\n")
        found = self._read()
        assert "pid" in found, "it has ended before it began; its traceback is on stderr"
        return found["pid"]

    def begins(self) -> None:
        self._write(b"!")

    def ended(self) -> int:
        """Its exit status."""
        return self._read()["status"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def _read(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks them has ended"
        found: dict[str, int] = json.loads(line)
        return found


if __name__ == "__main__":
    main()
