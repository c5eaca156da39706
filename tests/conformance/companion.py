"""Another process that does a job in the store, and a line to it.

Promise: it is a fresh interpreter with the same import path; when the `with` block ends, it has ended,
killed if it had not yet. What it printed on stderr is part of the error if it ends before its time.

A job is a function that gets the store, and a line to the test: `say` tells it something, `heard` waits for
its word. Not here: what follows from it (contracts/journal.py).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

import cloudpickle

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Journal, Lease, Sink
from tests.trios import (
    content,
    meta_of,
    own_name,
    owning,
    parts_of,
    path_of,
    put,
    put_holding,
    put_own,
    read,
    writer,
)

if TYPE_CHECKING:
    from tests.conformance.contracts.trio import Opener  # the other process does without pytest

_PATIENCE = 60.0


class Silence(AssertionError):
    """The other process says nothing, and has not ended."""


class Companion:
    """`with Companion(opener, "own") as other: other.hear()`."""

    def __init__(self, opener: Opener, job: str | Callable[..., None], *arguments: Any) -> None:
        task = cloudpickle.dumps((opener, job, arguments)).hex()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.companion"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._said = b""
        self.say(task)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, word: Any = "go on") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(word).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, patience: float = _PATIENCE) -> Any:
        """The next thing that it says."""
        while b"\n" not in self._said:
            if not self._more(patience):
                raise AssertionError(f"the other process ended ({self.wait()}): {self._complaint()}")
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def rest(self) -> list[Any]:
        """Everything that it has said until it ended; what it was cut off in is not counted."""
        while self._more():
            pass
        lines, self._said = self._said.split(b"\n")[:-1], b""
        return [json.loads(line) for line in lines]

    def wait(self) -> int:
        return self._process.wait(_PATIENCE)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """Stop it in the middle of whatever it does; returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            _close(stream)

    def _more(self, patience: float = _PATIENCE) -> bool:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(patience):
                raise Silence(f"the other process says nothing: {self._complaint()}")
        found = os.read(self._process.stdout.fileno(), 1 << 16)
        self._said += found
        return bool(found)

    def _complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(BrokenPipeError):  # it was killed before it read everything
            stream.close()


def main() -> None:
    """In the other process."""

    def heard() -> Any:
        line = sys.stdin.readline()
        if not line:
            os._exit(1)  # the test has ended
        return json.loads(line)

    def say(word: Any) -> None:
        sys.stdout.write(json.dumps(word) + "\n")
        sys.stdout.flush()

    opener, job, arguments = cloudpickle.loads(bytes.fromhex(heard()))
    (job if callable(job) else globals()[job])(opener(), say, heard, *arguments)


# --- jobs ----------------------------------------------------------------------------------


Say = Callable[[Any], None]
Heard = Callable[[], Any]


def read_one(store: CheckpointStore, say: Say, heard: Heard, path: str) -> None:
    """Read a trio, and write another one of the same size."""
    found = read(store, path)
    say([found.stage, len(found.values)])
    with owning(store, "child") as lease:
        put_own(store, lease, 1, "child")
        journal = store.journal(lease, 1)
        journal.append(b"of the child;")
        journal.close()


def put_and_die(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """End in the moment in which everything has been confirmed."""
    lease = store.acquire("s")
    put_own(store, lease, 1)
    put(store, "best", "best", lease=lease)
    store.delete(put(store, "gone", "gone"))
    store.journal(lease, 1).append(b"frame;")
    say(lease.epoch)
    _die()


def die_in_a_put(store: CheckpointStore, say: Say, heard: Heard, part: str) -> None:
    """End in the middle of one part of two trios that are being written."""
    lease = store.acquire("s")
    say(lease.epoch)

    def die(sink: Sink) -> None:
        sink.write(b"x" * 300_000)
        _die()

    def nested(sink: Sink) -> None:
        parts = [(name, die if name == part else write) for name, write in parts_of("late", size=200_000)]
        store.put(path_of(store, own_name()), parts, lease=lease, stage="inner")

    parts = [*parts_of("late", size=200_000)[:2], ("meta.json", nested)]
    store.put(path_of(store, "best"), parts, lease=None, stage="late")


def write_until_killed(store: CheckpointStore, say: Say, heard: Heard, session: str) -> None:
    """Put, replace, delete and append, telling what has been confirmed."""
    lease = store.acquire(session)
    journal = store.journal(lease, 0)
    for turn in range(1, 100_000):
        put(store, "best", f"n{turn}", size=120_000)
        say(["best", turn])
        put_own(store, lease, turn)
        say(["own", turn])
        journal.append(b"%06d;" % turn)
        say(["frame", turn])
        if turn % 3 == 0:
            store.delete(path_of(store, own_name(session, turn - 1)))
            say(["deleted", turn - 1])


def delete_many(store: CheckpointStore, say: Say, heard: Heard, paths: list[str]) -> None:
    """Delete them in one call."""
    say("ready")
    store.delete_many(paths)
    say("done")


def save_contents_until_killed(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """Put checkpoints that have contents in common, and delete former ones."""
    lease = store.acquire("s")
    for turn in range(1, 100_000):
        some = [content(0), content(turn), content(turn + 1)]
        put_holding(store, own_name(sequence=turn), f"n{turn}", some, lease=lease, sequence=turn)
        say(turn)
        if turn % 2 == 0:
            store.delete(path_of(store, own_name(sequence=turn - 1)))


def own(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """Own the session until told to write, and tell what came of it."""
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"in time;")
    put_own(store, lease, 1, "former")
    say(lease.epoch)
    heard()
    outcomes = []
    for write in (
        lambda: put_own(store, lease, 1, "late"),
        lambda: put(store, "best", "late", lease=lease),
        lambda: journal.append(b"late;"),
        lease.check,
    ):
        try:
            write()
            outcomes.append("done")
        except Fenced:
            outcomes.append("fenced")
    say(outcomes)
    lease.release()


def compete(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """Try to acquire when told to; keep it until told to end."""
    say("ready")
    heard()
    try:
        lease = store.acquire("s")
    except SessionBusy as busy:
        owner = busy.ids["owner"]
        say(["busy", owner.pid if owner else 0])
        heard()
        return
    say(["owner", os.getpid()])
    heard()
    lease.check()
    lease.release()


def put_many(store: CheckpointStore, say: Say, heard: Heard, session: str, count: int) -> None:
    """Put own checkpoints, one of them of several chunks, and one that all others put, too; append."""
    say("ready")
    heard()
    with owning(store, session) as lease:
        journal = store.journal(lease, 0)
        for sequence in range(1, count + 1):
            size = 3_000_000 if sequence == 5 else 64
            name, stage = own_name(session, sequence), f"n{sequence}"
            put(store, name, stage, lease=lease, session=session, sequence=sequence, size=size)
            put(store, "best", f"{session}-{sequence}", size=120_000)
            journal.append(b"%d;" % sequence)
        journal.close()
    say("done")


def fork(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """Let a forked child write with the lease of its parent; tell what came of both."""
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"frame;")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = _written_by_a_fork(store, lease, journal)
            lease.release()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    put_own(store, lease, 2)
    journal.append(b"frame;")
    lease.check()
    lease.release()
    say(status)


def alone(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """A put whose meta is written only when the test says so."""
    lease = store.acquire("s")

    def wait(sink: Sink) -> None:
        say("in the put")
        heard()
        writer(meta_of("late"))(sink)

    try:
        parts = [*parts_of("late", size=200_000)[:2], ("meta.json", wait)]
        store.put(path_of(store, own_name()), parts, lease=lease, stage="late")
        say("done")
    except Fenced:
        say("fenced")


def _written_by_a_fork(store: CheckpointStore, lease: Lease, journal: Journal) -> int:
    """How much went through; 0 is what it has to be."""
    written = 0
    for write in (lambda: put_own(store, lease, 1, "forked"), lambda: journal.append(b"forked;")):
        with suppress(Fenced):
            write()
            written += 1
    return written


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returns to nobody")


if __name__ == "__main__":
    main()
