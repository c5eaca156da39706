"""A handle on a session that a fleet runs.

It holds nothing itself: each question goes to Redis, and the session outlives its callers. A server that
goes away while a caller waits is waited for; one that is away when a question is asked is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal

from redis import RedisError

from graflow_ckpt.checkpoint.manager import CheckpointManager
from graflow_ckpt.checkpoint.model import CheckpointMetadata, check_metadata
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core import arguments
from graflow_ckpt.core.decide import ANSWERS
from graflow_ckpt.core.errors import (
    NoSession,
    RemoteError,
    ServerGone,
    ServerRefuses,
    SessionError,
    TaskError,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import RESULT, Op
from graflow_ckpt.engine.announcer import Account
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.engine.resuming import in_doubt
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.fleet import declining
from graflow_ckpt.fleet.lists import LISTS, PURGE, asked
from graflow_ckpt.fleet.programs import check_proof
from graflow_ckpt.fleet.status import Failure, Status, failures, read
from graflow_ckpt.links.complaints import fact, readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state
from graflow_ckpt.stores import CheckpointPath, as_path

if TYPE_CHECKING:
    from graflow_ckpt.fleet.client import Client

__all__ = ["Failure", "Handle", "Progress", "RemoteError", "Status"]

_PAGE = 500
_CALLS = 10_000_000


class Handle:
    """One session of a fleet."""

    def __init__(self, client: Client, session: str) -> None:
        self.session = session
        self._client = client
        self._link = client.link
        self._prefix = keys_of(session)
        self._cells = SealedCells(session, client.keyring)

    def __repr__(self) -> str:
        return f"<session {self.session} at {self.address}>"

    def _cold(self, *names: str) -> list[Any]:  # bytes, or None
        with asked(self._link, **{f"{self._prefix}h": "hash"}):
            found: list[Any] = self._link.client.hmget(f"{self._prefix}h", *names)
        return found

    def _readable(self) -> AbstractContextManager[None]:
        return readable(self.session, self.address)

    # --- looking -----------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address of the session, without a password."""
        return self._link.address

    def status(self) -> Status:
        """Return how far it is, as of now."""
        found = read(self._link, self.session)
        if found is None:
            raise NoSession(
                f"There is no session {self.session} at {self.address}.",
                hint="It has expired, was purged, or lives elsewhere: graflow-ckpt sessions --url …",
                session=self.session,
            )
        return found

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until it has ended, or waits for the user (`paused`); TimeoutError if that takes longer."""
        status = self.status()
        if _rests(status):
            return status
        for status in self._looks(timeout):
            if _rests(status):
                return status
        raise TimeoutError(f"Session {self.session} has not ended after {timeout} s ({status.status}).")

    def _looks(self, timeout: float | None) -> Iterator[Status]:
        """Yield its status, whenever that may have changed."""
        changes = Changes(self._link, self.session, timeout)
        for _ in changes:
            try:
                status = self.status()
            except ServerGone as error:
                changes.lost(error)
                continue
            changes.found()
            yield status

    def events(self, timeout: float | None = None, *, after: int = 0) -> Iterator[Progress]:
        """Yield each completion in order, from a step on, and each status that is seen, until it has ended.

        A caller that continues later gives the last step that was seen. A task that completes again and
        again is reported with its latest completion, or with all of them if the session has a ledger.
        """
        before = ""
        self.status()
        for status in self._looks(timeout):
            try:
                for one in completions(self._link, self.session, after):
                    after = one.step
                    yield one
            except ServerGone:
                continue  # the next look says for how long
            if status.status != before:
                before = status.status
                yield Progress("status", before, status.steps)
            if status.over:
                return
        raise TimeoutError(f"Session {self.session} has not ended after {timeout} s.")

    # --- what came of it ---------------------------------------------------------------

    def result(self, timeout: float | None = None) -> Any:
        """Return what the task that completed last returned; raise how the session has ended instead."""
        status = self.wait(timeout)
        if status.status != "completed":
            raise self.error(status)
        with asked(self._link, **{f"{self._prefix}done": "zset"}):
            last = self._link.client.zrevrange(f"{self._prefix}done", 0, 0)
        with self._readable():
            return self.value(last[0].decode() + RESULT) if last else None

    def results(self, timeout: float | None = None, *, strict: bool = False) -> list[Any]:
        """Return what each call of a session made by `submit_many` returned, in order.

        A call that has failed has None, and `failures()` says why; with `strict` it is raised.
        """
        workflow, calls = self._cold("workflow", "calls")
        if calls is None and workflow is not None:
            raise SessionError(f"Session {self.session} was not made by submit_many().", session=self.session)
        status = self.wait(timeout)
        if status.status != "completed":
            raise self.error(status)
        if strict and (failed := self.failures()):
            raise self._of_calls(failed)
        with self._readable():
            names = _results_of(workflow.decode(), int(calls))
        found: list[Any] = []
        with closing(RedisSession(self._link, self.session, self._cells)) as reader:
            for start in range(0, len(names), _PAGE):
                page = names[start : start + _PAGE]
                read = zip(page, reader.read_all(page), strict=True)
                found += [None if f is None else from_cells(n, f[0], f[2]) for n, (f, _) in read]
        return found

    def value(self, name: str, default: Any = None) -> Any:
        """Return a value of the session's channel."""
        with closing(RedisSession(self._link, self.session, self._cells)) as reader:
            found = reader.read(name)
        return default if found is None else from_cells(name, found[0], found[2])

    def failures(self) -> dict[str, Failure]:
        """Return the tasks that have failed, with their errors."""
        return {failure.task: failure for failure in failures(self._link, self.session)}

    def reason(self) -> str:
        """Return why it has its status, in full: of a session that waits for its program, also the plan."""
        account = self._account()
        return f"{account.type}: {account.message}" if account.type else account.message

    def _account(self) -> Account:
        (reason,) = self._cold("reason")
        return Account.read((reason or b"").decode(errors="replace"))

    def error(self, status: Status | None = None) -> SessionError | TaskError:
        """Return what went wrong, as an exception."""
        status = status or self.status()
        account = self._account()
        if status.status == "cancelled":
            return WorkflowCancelled(status.reason or "The session was cancelled.", session=self.session)
        if status.status == "failed":
            return RemoteError(
                f"Session {self.session} failed: {account.line}",
                hint=f"(see: graflow-ckpt failed list --session {self.session})",
                session=self.session, type=account.type, text=account.message, traceback=account.traceback,
            )  # fmt: skip
        return SessionError(
            f"Session {self.session} is {status.status}: {self.reason() or 'nothing is known of it'}",
            session=self.session,
            status=status.status,
        )

    def _of_calls(self, failed: dict[str, Failure]) -> RemoteError:
        first = min(failed.values(), key=lambda failure: (len(failure.task), failure.task))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        return RemoteError(
            f"Of session {self.session} {first.task} failed: {first.type}: {first.message}{more}.",
            hint="results() without strict gives None for these; failures() has all errors.",
            session=self.session, task=first.task, type=first.type, text=first.message,
            traceback=first.traceback, tasks=tuple(failed),
        )  # fmt: skip

    # --- changing ----------------------------------------------------------------------

    def pause(self, reason: str = "paused by hand") -> None:
        """Pause: no more tasks are claimed; what runs is finished."""
        if self._commit([("status", "paused", reason)]) != "paused":
            raise self._cannot("be paused")

    def resume(self, max_steps: int | None = None, *, answers: Mapping[str, str] | None = None) -> None:
        """Resume: after a pause, a failure, or max_steps.

        `answers`: for tasks that ran when their worker died, where the user has to decide:
        `{"charge": "skip"}`, or `rerun`, or `fail`. InDoubt names those that lack one.
        """
        # ("claim", 0): no worker is asked for where nothing can run, so it has to see here that it is over
        if max_steps is not None:
            arguments.counted("max_steps", max_steps)
        status = self.status()
        if status.status in ("completed", "cancelled", "init"):
            raise self._cannot("go on")
        ops = as_ops(self._link, self.session, answers or {}) if status.failed or answers else []
        limit = status.max_steps if max_steps is None else max_steps
        declining.forget(self._link, self.session)
        if status.status == "paused" and status.failed <= len(ops) and max_steps is None:
            ops += [("status", "running", ""), ("claim", 0)]
        elif status.status != "running" or max_steps is not None:
            (epoch,) = self._cold("epoch")
            with self._readable():
                ops += [("reopen", int(epoch or 1), limit), ("claim", 0)]
        if ops and self._commit(ops) == "cancelled":  # meanwhile
            raise self._cannot("go on")
        self._client.watch(self.session)

    def answer(self, task: str, how: str) -> None:
        """Decide about one task that ran when its worker died: "rerun", "skip" or "fail".

        The session continues when none waits for an answer any more.
        """
        if doubts(self._link, self.session).keys() <= {task}:
            self.resume(answers={task: how})
        else:
            self._commit(as_ops(self._link, self.session, {task: how}, some=True))

    def cancel(self, reason: str = "cancelled by hand", *, hard: bool = False) -> None:
        """Cancel for good. Running tasks are notified; `hard`: their tokens are void, their code is ended."""
        if self._commit([("status", "cancelled", reason), ("claim", 0)]) != "cancelled":
            raise self._cannot("be cancelled")
        if not hard:
            return
        with asked(self._link, **{f"{self._prefix}own": "hash"}):
            tokens = self._link.client.hkeys(f"{self._prefix}own")
        for token in (token.decode(errors="replace") for token in tokens):
            why = "it was cancelled"
            release(self._link, self.session, self._cells, token, why, forced=True, crashed=False)

    def _commit(self, ops: list[Op]) -> str:
        """Commit one transition from outside; return the status that it leads to."""
        post = partial(self._client.post, self.session)
        with closing(RedisSession(self._link, self.session, self._cells, post=post)) as sender:
            sender.commit(ops)
            return sender.status

    def _cannot(self, what: str) -> SessionError:
        status = self.status().status
        return SessionError(
            f"Session {self.session} is {status}: it cannot {what}.", session=self.session, status=status
        )

    def checkpoint(
        self,
        metadata: dict[str, Any] | None = None,
        *,
        portable: bool = False,
        path: CheckpointPath | None = None,
    ) -> CheckpointMetadata:
        """Take one now, in this process. A portable one holds queue and values, too: for rewind and fork."""
        path = None if path is None else as_path(path)
        return self.home().cut("request", check_metadata(metadata), path=path, portable=portable)

    def home(self, store: str = "") -> SharedHome:
        """Return its checkpoints, in the store that it was submitted with or another one."""
        self.status()
        code, starts, own, known = (word or b"" for word in self._cold("code", "starts", "store", "proof"))
        with self._readable():
            digest, place = code.decode(), own.decode()
            check_proof(self._cells, known, digest, starts.decode(), place)
        program, keyring = self._client.programs.parcel(digest).program, self._client.keyring
        return SharedHome(self._link, self.session, self._cells, store or place, keyring, program)

    def rewind(self, path: str) -> None:
        """Rewind it to a portable checkpoint of it; refused while a worker runs it."""
        found = CheckpointManager.verify(path)
        if found.session_id != self.session:
            raise SessionError(
                f"Checkpoint {path} is of session {found.session_id}, not of {self.session}.",
                hint="fork() makes another session of it.",
                session=self.session,
                path=path,
            )
        self._client.rewind(path)

    def fork(self, session_id: str | None = None, *, path: str | None = None) -> Handle:
        """Return another session that begins as this one is now, or was at a portable checkpoint."""
        return self._client.fork(path or self.checkpoint(portable=True).path, session_id)

    def purge(self) -> None:
        """Delete all that is kept of it."""
        with asked(self._link):
            keys = list(self._link.client.scan_iter(match=f"{self._prefix.replace('[', '?')}*", count=1000))
        self._link.script(PURGE)([f"{self._prefix}c", *LISTS], keys)

    # --- more to look at ---------------------------------------------------------------

    def declined(self) -> dict[str, str]:
        """Return the machines whose workers do not have its program now, and what they lack."""
        return declining.declined(self._link, self.session)

    def pending(self) -> list[dict[str, Any]]:
        """Return what has still to run."""
        state = read_state(self._link, self.session, self._cells, values=False)
        return [spec._replace(task_data=None)._asdict() for spec in state.pending()]

    def facts(self) -> dict[str, Any]:
        """Return what is kept about the session in addition to its state."""
        names = ("workflow", "code", "starts", "store", "created", "host", "python", "epoch")
        values = self._cold(*names)
        with self._readable():
            found = {n: v.decode() for n, v in zip(names, values, strict=True) if v is not None}
            return {**found, "starts": fact("starts", found.get("starts", "[]"))}


def _results_of(task: str, calls: int) -> list[str]:
    """Return the names of the calls' results. Redis says how many there were, and nothing confirms that."""
    if not 0 <= calls <= _CALLS:
        raise ValueError(f"it says that it has {calls} calls")
    return [f"{task}[{i}]{RESULT}" for i in range(calls)]


def _rests(status: Status) -> bool:
    return status.over or status.status == "paused"


LOOK = 0.5
"""Seconds between looks where nothing announces a change."""

AWAY = 60.0
"""Seconds for which a server that was there, and is away, is waited for."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened in a session."""

    kind: Literal["task", "status"]  # a task has completed; the status is another one now
    name: str  # of the task, or what the status is
    step: int


class Changes:
    """Whenever there may be something new to see, until the time is over: `for _ in changes: …`.

    Most commits send a message; the rest is found by looking now and then. Nothing depends on the message:
    each look continues from the last step that was seen, so a connection that is lost, and a follower that
    begins again with `after`, miss nothing that is still kept.
    """

    def __init__(self, link: RedisLink, session: str, timeout: float | None) -> None:
        self._link = link
        self._channel = f"{keys_of(session)}ev"
        if timeout is not None:
            arguments.kind("timeout", timeout, (int, float), "a number of seconds")
        self._deadline = None if timeout is None else monotonic() + timeout
        self._bell: Any = None  # a redis.client.PubSub
        self._deaf = False  # the user may read no channels: a look now and then has to do
        self._away: float | None = None  # until when the server is waited for

    def __iter__(self) -> Iterator[None]:
        try:
            self._listen()  # from here on nothing is missed
            while True:
                yield
                left = LOOK if self._deadline is None else min(LOOK, self._deadline - monotonic())
                if left <= 0:
                    return
                self._wait(left)
        finally:
            self._hang_up()

    def lost(self, error: ServerGone) -> None:
        """Note that the server did not answer; raise if it has not for too long."""
        self._hang_up()
        now = monotonic()
        if self._away is None:
            self._away = now + AWAY
        elif now > self._away:
            raise error

    def found(self) -> None:
        """Note that the server has answered."""
        self._away = None

    def _listen(self) -> None:
        if self._deaf:
            return
        try:
            with asked(self._link):
                self._bell = self._link.client.pubsub(ignore_subscribe_messages=True)
                self._bell.subscribe(self._channel)
                self._bell.get_message(timeout=1.0)
        except ServerRefuses:
            self._deaf = True
            self._hang_up()

    def _wait(self, seconds: float) -> None:
        try:
            if self._bell is None:
                self._listen()
            if self._deaf:
                sleep(min(seconds, 0.1))
                return
            self._bell.get_message(timeout=seconds)
            while self._bell.get_message(timeout=0) is not None:
                pass  # many commits, one look
        except (RedisError, ServerGone):
            self._hang_up()
            sleep(min(seconds, 0.1))

    def _hang_up(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            with suppress(RedisError):
                bell.close()


def completions(link: RedisLink, session: str, after: int) -> Iterator[Progress]:
    """Yield completions in order, from a step on; of a repeated task all, if there is a ledger."""
    prefix = keys_of(session)
    names = {f"{prefix}ledger": "list", f"{prefix}done": "zset"}
    with asked(link, **names):
        whole = bool(link.client.exists(f"{prefix}ledger"))
    with readable(session, link.address):
        yield from (_of_ledger if whole else _of_tasks)(link, prefix, after)


def _of_tasks(link: RedisLink, prefix: str, after: int) -> Iterator[Progress]:
    while True:
        with asked(link, **{f"{prefix}done": "zset"}):
            found = link.client.zrangebyscore(f"{prefix}done", f"({after}", "+inf", 0, _PAGE, withscores=True)
        for name, step in found:
            after = int(step)
            yield Progress("task", name.decode(), after)
        if len(found) < _PAGE:
            return


def _of_ledger(link: RedisLink, prefix: str, after: int) -> Iterator[Progress]:
    """Yield completions from a ledger: one line per end of any kind, at least as many as steps."""
    at = after
    while True:
        with asked(link, **{f"{prefix}ledger": "list"}):
            found = link.client.lrange(f"{prefix}ledger", at, at + _PAGE - 1)
        at += len(found)
        for line in found:
            _, step, task, _, _, how, *_ = line.decode(errors="replace").split("\x1f")
            if how == "completed" and int(step) > after:
                after = int(step)
                yield Progress("task", task, after)
        if len(found) < _PAGE:
            return


def doubts(link: RedisLink, session: str) -> dict[str, int]:
    """Return the tasks that wait for an answer, and the keys of their specs."""
    key = f"{keys_of(session)}dead"
    with asked(link, **{key: "hash"}):
        records: dict[bytes, bytes] = link.client.hgetall(key)
    found = {}
    with readable(session, link.address):
        for number, record in records.items():
            _, size, rest = record.split(b"\x1e", 2)
            fields = rest[int(size) :].split(b"\x1f", 6)
            if fields[5] == b"doubt":
                found[fields[1].decode()] = int(number)
    return found


def as_ops(link: RedisLink, session: str, answers: Mapping[str, str], *, some: bool = False) -> list[Op]:
    """Return the answers as ops. InDoubt if one is lacking, unless `some` will do; SessionError for a task
    that is not in doubt, or an answer that is none."""
    wrong = [how for how in answers.values() if how not in ANSWERS]
    if wrong:
        raise SessionError(f"{wrong[0]!r} is no answer.", hint=f"There are: {', '.join(ANSWERS)}.")
    asked_for = doubts(link, session)
    strange = [task for task in answers if task not in asked_for]
    if strange:
        raise SessionError(
            f"Task {strange[0]!r} of session {session} does not wait for an answer.",
            hint=f"Those do: {', '.join(asked_for) or 'none'}.",
            session=session,
            task=strange[0],
        )
    lacking = [task for task in asked_for if task not in answers]
    if lacking and not some:
        raise in_doubt(session, lacking)
    return [("answer", asked_for[task], ANSWERS[how]) for task, how in answers.items()]
