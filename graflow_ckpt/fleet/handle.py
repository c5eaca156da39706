"""A handle: what a caller holds of a session that a fleet runs.

It holds nothing itself: each question goes to Redis, and the session outlives whoever asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import NoSession, SessionError, TaskError, WorkflowCancelled
from graflow_ckpt.core.facts import RESULT, Op
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.fleet.status import Status, read
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.redis import RedisSession
from graflow_ckpt.sessions.tables import read_state

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client

_PAGE = 500
_LOOK = 0.05  # seconds between looks where nothing announces a change


class RemoteError(TaskError):
    """A task failed on a worker. `.type`, `.text` and `.traceback` are what is known of its exception."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened in a session."""

    kind: str  # "task" or "status"
    name: str  # of the task, or what the status is now
    step: int


class Handle:
    """One session of a fleet."""

    def __init__(self, client: Client, session: str) -> None:
        self.session = session
        self._client = client
        self._prefix = keys_of(session)
        self._cells = SealedCells(session, client.keyring)

    def __repr__(self) -> str:
        return f"<session {self.session} at {self._client.link.address}>"

    @property
    def _redis(self) -> Any:  # the node's redis.Redis
        return self._client.link.route.client_for(f"{self._prefix}c")

    # --- looking -----------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return self._client.link.address

    def status(self) -> Status:
        """How far it is, as of now."""
        found = read(self._client.link, self.session)
        if found is None:
            raise self._gone()
        return found

    def _gone(self) -> NoSession:
        return NoSession(
            f"There is no session {self.session} at {self._client.link.address}.",
            hint="It has expired, was purged, or lives elsewhere: graflow-ckpt sessions --url …",
            session=self.session,
        )

    def wait(self, timeout: float | None = None) -> Status:
        """Until it has ended or paused; TimeoutError if that takes longer."""
        for _ in self._changes(timeout):
            status = self.status()
            if status.over or status.status == "paused":
                return status
        raise TimeoutError(f"Session {self.session} has not ended after {timeout} s.")

    def _changes(self, timeout: float | None) -> Iterator[None]:
        """Whenever there may be something new to see, until the time is over."""
        deadline = None if timeout is None else monotonic() + timeout
        bell = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            bell.subscribe(f"{self._prefix}ev")
            bell.get_message(timeout=1.0)  # from here on nothing is missed
            while True:
                yield
                left = 1.0 if deadline is None else min(1.0, deadline - monotonic())
                if left <= 0:
                    return
                bell.get_message(timeout=left)
        finally:
            bell.close()

    def result(self, timeout: float | None = None) -> Any:
        """What the task that completed last returned; raises what the session has failed with."""
        status = self.wait(timeout)
        if status.status == "completed":
            last = self._redis.zrevrange(f"{self._prefix}done", 0, 0)
            return self.value(last[0].decode() + RESULT) if last else None
        raise self.error(status)

    def error(self, status: Status | None = None) -> SessionError | TaskError:
        """What went wrong, as an exception."""
        status = status or self.status()
        whole = (self._redis.hget(f"{self._prefix}h", "reason") or b"").decode(errors="replace")
        if status.status == "cancelled":
            return WorkflowCancelled(status.reason or "The session was cancelled.", session=self.session)
        first, _, traceback = whole.partition("\n")
        kind, _, text = first.partition(": ")
        if status.status == "failed":
            return RemoteError(
                f"Session {self.session} failed: {first}",
                hint=f"graflow-ckpt failed list --session {self.session}",
                session=self.session, type=kind, text=text, traceback=traceback,
            )  # fmt: skip
        return SessionError(
            f"Session {self.session} is {status.status}: {status.reason}", session=self.session
        )

    def value(self, name: str, default: Any = None) -> Any:
        """A value of the session's channel."""
        sender = RedisSession(self._client.link, self.session, self._cells)
        try:
            found = sender.read(name)
        finally:
            sender.close()
        return default if found is None else from_cells(name, found[0], found[2])

    def results(self, timeout: float | None = None) -> list[Any]:
        """Of a session made by `submit_many`: what each call returned, in order; None where it failed."""
        self.wait(timeout)
        workflow, calls = self._redis.hmget(f"{self._prefix}h", "workflow", "calls")
        if calls is None:
            raise SessionError(f"Session {self.session} was not made by submit_many().", session=self.session)
        names = [f"{workflow.decode()}[{i}]{RESULT}" for i in range(int(calls))]
        sender = RedisSession(self._client.link, self.session, self._cells)
        found: list[Any] = []
        try:
            for start in range(0, len(names), _PAGE):
                found += sender.read_all(names[start : start + _PAGE])
        finally:
            sender.close()
        return [
            None if f[0] is None else from_cells(n, f[0][0], f[0][2])
            for n, f in zip(names, found, strict=True)
        ]

    def failures(self) -> dict[str, str]:
        """The errors of the tasks that have failed, with their tracebacks."""
        table: dict[bytes, bytes] = self._redis.hgetall(f"{self._prefix}er")
        return {n.decode(): e[1:].decode(errors="replace") for n, e in table.items() if e[:1] == b"f"}

    def events(self, timeout: float | None = None) -> Iterator[Progress]:
        """Each completion in order, from the first step on, and what the session comes to at last."""
        step, last = 0, ""
        for _ in self._changes(timeout):
            while True:
                found = self._redis.zrangebyscore(
                    f"{self._prefix}done", f"({step}", "+inf", 0, _PAGE, withscores=True
                )
                for name, at in found:
                    step = int(at)
                    yield Progress("task", name.decode(), step)
                if len(found) < _PAGE:
                    break
            status = self.status()
            if status.status != last:
                last = status.status
                yield Progress("status", last, status.steps)
            if status.over and status.steps <= step:
                return

    # --- changing ----------------------------------------------------------------------

    def pause(self, reason: str = "paused by hand") -> None:
        """Hand out no more tasks; what runs is finished."""
        self._commit([("status", "paused", reason)])

    def resume(self, max_steps: int | None = None) -> None:
        """Go on: after a pause, a failure, or max_steps."""
        # ("claim", 0): nobody is asked for where nothing can run, so the session has to see here that it is over
        status = self.status()
        if status.status in ("completed", "cancelled"):
            raise SessionError(f"Session {self.session} is {status.status}: there is nothing to go on with.",
                               session=self.session)  # fmt: skip
        if status.status == "paused" and not status.failed and max_steps is None:
            self._commit([("status", "running", ""), ("claim", 0)])
        elif status.status != "running":
            epoch = int(self._redis.hget(f"{self._prefix}h", "epoch") or 1)
            self._commit([("reopen", epoch, max_steps or status.max_steps), ("claim", 0)])
        self._client.watch(self.session)

    def cancel(self, reason: str = "cancelled by hand", *, hard: bool = False) -> None:
        """For good. Running tasks are told; `hard`: their tokens are void, their code is ended."""
        self._commit([("status", "cancelled", reason), ("claim", 0)])
        if hard:
            for token in self._redis.hkeys(f"{self._prefix}own"):
                release(
                    self._client.link, self.session, self._cells, token.decode(), "it was cancelled",
                    forced=True, crashed=False,
                )  # fmt: skip

    def _commit(self, ops: list[Op]) -> None:
        sender = RedisSession(self._client.link, self.session, self._cells)
        sender.on_emitted = lambda token, queue: self._client.carrier.post(self.session, token, queue)
        try:
            sender.commit(ops)
        finally:
            sender.close()

    def purge(self) -> None:
        """Take away all that is kept of it."""
        with translated(self._client.link.address):
            self._redis.delete(f"{self._prefix}c")  # from here on nobody can add to the others
            keys = list(self._redis.scan_iter(match=f"{self._prefix.replace('[', '?')}*", count=1000))
            for start in range(0, len(keys), _PAGE):
                self._redis.delete(*keys[start : start + _PAGE])
        self._client.unlist(self.session)

    def declined(self) -> dict[str, str]:
        """The machines whose workers do not have its program now, and what they lack."""
        cold: dict[bytes, bytes] = self._redis.hgetall(f"{self._prefix}h")
        if b"declined" not in cold:
            return {}
        found = {name.decode(): why.decode(errors="replace") for name, why in cold.items()}
        return {n.partition(":")[2]: why for n, why in found.items() if n.startswith("declined:")}

    def pending(self) -> list[dict[str, Any]]:
        """What has still to run."""
        state = read_state(self._client.link, self.session, self._cells, values=False)
        return [spec._replace(task_data=None)._asdict() for spec in state.pending()]

    def facts(self) -> dict[str, Any]:
        """What is kept about the session beside its state."""
        cold: dict[bytes, bytes] = self._redis.hgetall(f"{self._prefix}h")
        names = ("workflow", "code", "starts", "store", "created", "host", "python", "epoch")
        found = {n: cold[n.encode()].decode() for n in names if n.encode() in cold}
        return {**found, "starts": json.loads(found.get("starts", "[]"))}
