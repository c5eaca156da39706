"""Child processes: one killable process per attempt of a task with `isolation="process"`.

The child is a fresh interpreter that is sent the body and its arguments; `__main__` is not run
again. It asks for values and sends its outcome back over a pair of pipes; everything crosses as
a copy. A child that ends without an outcome has died, and the attempt with it.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.checkpoint.values.sharing import bundles
from graflow_ckpt.core.errors import WorkerDied, WorkflowCancelled
from graflow_ckpt.core.facts import Cancelled, Claim, Done, Effects, Failed, Left, Outcome, Request, Version
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.bind import Binding
from graflow_ckpt.engine.body.rounds import Answer, LeaveRounds, RoundEnd, left
from graflow_ckpt.engine.body.task_context import Host, PendingCheckpoint
from graflow_ckpt.sessions.protocol import Found, Session, Values

_SIZE = struct.Struct("<Q")


class FromChannel(NamedTuple):
    """Stands for a parameter that the child gets itself, so that a change in place counts as set."""

    name: str


class Pipe:
    """Whole messages over two file descriptors."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read, "rb")
        self._write = os.fdopen(write, "wb")

    def send(self, message: Any) -> None:
        data = live_bytes(message, "message")
        self._write.write(_SIZE.pack(len(data)) + data)
        self._write.flush()

    def receive(self) -> Any:
        """Return the next message; raise EOFError when the other side is gone."""
        head = self._read.read(_SIZE.size)
        if len(head) < _SIZE.size:
            raise EOFError
        size = _SIZE.unpack(head)[0]
        data = self._read.read(size)
        if len(data) < size:
            raise EOFError
        return load_live(data)

    def close(self) -> None:
        for file in (self._read, self._write):
            with suppress(OSError):  # the other side is gone, and with it the reader of the rest
                file.close()


class Child:
    """One attempt in one process."""

    def __init__(self, session: Session, values: Values, host: Host) -> None:
        self._session = session
        self._values = values
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: PendingCheckpoint | None = None  # of the checkpoint that the body asked for
        self._killed = False
        self._lock = threading.Lock()

    def run(
        self,
        claim: Claim,
        binding: Binding,
        attempt: Attempt,
        arguments: dict[str, Any],
        failed: Callable[[Claim, BaseException], Failed],
    ) -> Outcome:
        """Start the process, answer its questions, wait for its outcome."""
        pipe = self._start()
        if pipe is None:
            return failed(claim, WorkerDied("The attempt was ended before its process started."))
        try:
            context = None
            if binding.context is not None:
                context = (binding.context, arguments.pop(binding.context).attempt)
            host, seen = self._host, attempt.live_values().looked.items()
            known = host.session_id, host.execution, claim, attempt.checks, host.keeps_random
            pipe.send((sys.path, os.getcwd(), *known))
            looked = {name: (got.value, got.version, self._read(name)) for name, got in seen}
            pipe.send((binding.func, arguments, context, looked))
            while True:
                kind, *rest = pipe.receive()
                if kind == "outcome":
                    return self._outcome(attempt, rest[0], failed)
                pipe.send(self._round(attempt, *rest) if kind == "round" else self._answer(kind, rest))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return failed(attempt.claim, self._death(claim))
        finally:
            pipe.close()
            self.kill()

    def kill(self) -> None:
        """End the process and whatever it has started, also if it has ended by itself."""
        with self._lock:
            if self._process is not None and not self._killed:
                with suppress(ProcessLookupError, PermissionError):  # no process of its group is left
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._killed = True

    def _start(self) -> Pipe | None:
        ours, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        with self._lock:
            if self._killed:
                for fd in (ours, theirs_out, theirs_in, ours_out):
                    os.close(fd)
                return None
            command = [
                sys.executable,
                "-m",
                "graflow_ckpt.engine.child",
                str(theirs_in),
                str(theirs_out),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                command, pass_fds=(theirs_in, theirs_out), start_new_session=True, stdin=subprocess.DEVNULL
            )
        os.close(theirs_in)
        os.close(theirs_out)
        return Pipe(ours, ours_out)

    def _answer(self, kind: str, rest: list[Any]) -> Any:
        if kind == "read":
            return self._read(rest[0])
        if kind == "names":
            return self._values.names()
        if kind == "stopping":
            return self._host.stopping
        if kind == "reserve":
            self._handle = self._host.reserve(*rest)
            return self._handle.path, self._handle.metadata
        return getattr(self._host, kind)(*rest)

    def _read(self, name: str) -> dict[str, Found]:
        """Return a value, and those that share with it: one message, so that they share on the other side."""
        found = self._values.read(name)
        if found is None:
            return {}
        live = self._session.live()
        beside = self._values.together(name)
        if name in live and len(live) > 1:
            roots = {one: [cell.value for cell in cells] for one, cells in live.items()}
            names = next(names for names in bundles(roots) if name in names)
            read = {one: self._values.read(one) for one in names}
            beside = {one: of for one, of in read.items() if of is not None}
        return {**beside, name: found}

    def _round(
        self, attempt: Attempt, effects: Effects, where: str, names: tuple[str, ...]
    ) -> tuple[Version, Exception | None, bool]:
        """Commit a round of the body; what it is told of that."""
        answers: SimpleQueue[Answer] = SimpleQueue()
        end = RoundEnd(attempt, self._with_handle(effects), where, names, answers.put)
        attempt.waits_for(answers.put)
        self._host.commit_round(end)
        found = answers.get()
        attempt.waits_for(None)
        if found.version:
            attempt.committed(end, found.version)
        if found.leave is not None and attempt.over is None:
            attempt.end(LeaveRounds(found.leave))
        return found.version, found.error, attempt.over is not None

    def _with_handle(self, effects: Effects) -> Effects:
        if effects.request is None:
            return effects
        return effects._replace(request=Request(effects.request.metadata, self._handle))

    def _outcome(
        self, attempt: Attempt, found: Any, failed: Callable[[Claim, BaseException], Failed]
    ) -> Outcome:
        kind, claim = found[0], attempt.claim
        if kind == "done":
            return Done(found[1], self._with_handle(found[2]))
        if kind == "left":
            return left(attempt) or Left(attempt.over)
        error = found[1]
        if kind == "cancelled":
            return Cancelled(error.message if isinstance(error, WorkflowCancelled) else str(error))
        return failed(claim, error)

    def _death(self, claim: Claim) -> WorkerDied:
        assert self._process is not None
        code = self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return WorkerDied(
            f"The process of task {claim.spec.task_id!r} ended {how} without an outcome.",
            task=claim.spec.task_id,
            code=code,
        )
