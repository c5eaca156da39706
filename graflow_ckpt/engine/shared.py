"""A run over a session that others work on, too: its cuts, what its tasks can ask of it, and its token.

Bodies work on copies, so nothing is ever on loan: a cut is taken at once, by the worker that has
committed the request, or by the first that finds that a policy is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import pack_task, unpack_task
from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    GraflowError,
    ServerError,
    SessionError,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import Cell, Claim, Done, Failed, Op, Outcome, Request
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import Since
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.attempt import Attempt
from graflow_ckpt.engine.bind import Binding
from graflow_ckpt.engine.invoke import Invoker
from graflow_ckpt.engine.reaping import Keeper, Kept
from graflow_ckpt.engine.run import Inbox, Run, RunHost
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.engine.task_context import PendingCheckpoint, made_differently
from graflow_ckpt.links.complaints import readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import MadeSoFar
from graflow_ckpt.sessions.redis.keys import keys_of, notes_what_is_made
from graflow_ckpt.sessions.redis.ops import Cells
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.stores.places import path_at

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext
    from graflow_ckpt.engine.coroutines import Loop

log = logging.getLogger("graflow_ckpt.checkpoint")

_PAGE = 1000  # tasks made at run time that are read at once

TURN = 5.0
"""Seconds for which a moment that passes waits for a cut that is being written."""


class SharedCuts:
    """The checkpoints that a worker takes of a shared session."""

    def __init__(
        self, session: RedisSession, settings: Settings, home: SharedHome, emit: Callable[..., None],
        after_body: Callable[[], None] = lambda: None,
        on_saved: Callable[[CheckpointMetadata], None] = lambda metadata: None,
    ) -> None:  # fmt: skip
        self._session = session
        self._after_body = after_body
        self._settings = settings
        self._home = home
        self._emit = emit
        self._on_saved = on_saved
        self._watches = settings.policy.watches and settings.durability != "none"
        self._looked: tuple[int, float] | None = None  # step and time of the last cut, as far as known here

    def starts(self, number: int, alone: bool) -> None:
        """Do nothing: random state belongs to a process, not to a shared session."""

    def failed(self, claim: Claim, outcome: Failed) -> None:
        """See starts."""

    def before_commit(self, ops: list[Op], attempt: Attempt | None = None) -> None:
        self._after_body()

    def timer(self) -> float | None:
        return self._settings.policy.period if self._watches else None

    def after(self, outcome: Outcome, idle: bool) -> bool:
        if type(outcome) is Done and outcome.effects.request is not None:
            self._requested(outcome.effects.request)
        return self._watches and self.poll(idle)

    def poll(self, idle: bool) -> bool:
        """Cut if the policy is due, and no other worker does; nothing waits for it, here or elsewhere."""
        if self._watches and (self._looked is None or self._due(idle)) and self._due_for_all(idle):
            self._cut_in_turn(idle)
        return False

    def _cut_in_turn(self, idle: bool) -> None:
        # a worker that cuts now shows an earlier moment; this one comes again at the next commit, but not if
        # there is none, or if it is that nothing runs
        passes = self._session.status != "running" or not self._due(False)
        with self._home.turn(TURN if passes else 0.0) as mine:
            if mine and self._due_for_all(idle):  # others may have cut between the question and our turn
                if self.cut("policy", {"auto": True}) is not None:
                    self._home.tidy(self._settings.keep, emit=self._emit)
                self._looked = (self._session.steps, monotonic())

    def _due_for_all(self, idle: bool) -> bool:
        """Return True if a cut is due by what all workers have done; another one may run, or have cut."""
        steps, seconds = self._home.last_cut()
        self._looked = (steps, monotonic() - seconds)
        if not self._due(idle):
            return False
        return self._due(False) or not self._home.others_run(len(self._session.held))

    def _due(self, idle: bool) -> bool:
        steps, at = self._looked or (0, monotonic())
        return self._settings.policy.due(Since(self._session.steps - steps, monotonic() - at, idle))

    def _requested(self, request: Request) -> None:
        handle: PendingCheckpoint = request.handle
        saved = self.cut("request", request.metadata, handle)
        if saved is not None:
            handle.written(saved)

    def cut(self, cause: str, user: dict[str, Any] | None, handle: PendingCheckpoint | None = None) -> Any:
        """Write one trio; a failure is an event."""
        began = monotonic()
        try:
            saved = self._home.cut(cause, user, path=handle.path if handle is not None else None)
        except (CheckpointError, SessionError, ServerError, OSError) as error:
            found = error if isinstance(error, GraflowError) else CheckpointError(str(error))
            if handle is not None:
                handle.failed(found)
            self._failed(found, cause, monotonic() - began)
            return None
        self._on_saved(saved)
        self._home.tell_saved(self._emit, saved, cause, monotonic() - began, self._settings.slow_save)
        return saved

    def _failed(self, error: GraflowError, cause: str, seconds: float) -> None:
        """Report an event; with on_save_failure="fail" pause the session for all workers."""
        self._home.tell_failed(self._emit, error, cause, seconds)
        with suppress(GraflowError):  # the server may be what has failed
            self._home.has_failed(self._session.steps)
        if self._settings.on_save_failure == "fail":
            self._session.commit([("status", "paused", f"The checkpoint failed: {error.message}")])
            raise error


class Made:
    """The tasks made at run time that a graph has; kept with the graph from one slice to the next.

    A session notes each time that one is made, in order, with a nonce of its own: so a worker that has so
    many of them, the last one as it is noted, has read what the session was made of, and needs only the rest.
    """

    def __init__(self) -> None:
        self.times = 0
        self.last = b""
        self.names: set[str] = set()

    def have(self, names: Iterable[str], times: int, last: bytes | None) -> None:
        """Note that the graph has these as well, and with them all that were noted so far."""
        self.names.update(names)
        self.times, self.last = times, last or b""

    def of(self, link: RedisLink, session: str) -> bool:
        """Return True if the session, as it is now, continues from these."""
        if not self.last:
            return False
        pipe: Any = link.client.pipeline(transaction=False)
        keys = keys_of(session)
        number, last = pipe.hget(f"{keys}c", "format").hget(f"{keys}h", f"m:{self.times}").execute()
        return notes_what_is_made(number) and last == self.last


class SharedHost(RunHost):
    """A run of one worker, as seen from its tasks."""

    def __init__(
        self, graph: TaskGraph, session: RedisSession, announcer: Announcer, inbox: Inbox, home: SharedHome,
        cells: Cells, made: Made | None = None, context: ExecutionContext | None = None,
    ) -> None:  # fmt: skip
        self.execution_context = context  # None: the caller has it, in another process
        self.session_id = self.execution = session.id
        self._announcer, self._inbox = announcer, inbox
        self._graph = graph
        self._session = session
        self._home = home
        self._keys = keys_of(session.id)
        self._cells = cells
        self.made = made or Made()
        self._pending: tuple[int, frozenset[str]] = (-1, frozenset())

    def reserve(self, task: str, metadata: dict[str, Any], storage: str | None = None) -> PendingCheckpoint:
        """Return a handle whose path is known before the checkpoint is there."""
        # a number that a lost reply has taken with it is missing in the paths, and that is all
        prepared = self._session.patiently(lambda: self._home.reserve(self._session.steps + 1, metadata))
        if storage is not None:
            prepared = replace(prepared, path=path_at(storage, self._home.store, prepared.path))
        return PendingCheckpoint(prepared.path, prepared)

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell:
        """Return a task made at run time, as the session keeps it."""
        name, record = task.name, pack_task(task, spawner, before)
        if self._session.made.names:
            sealed = self._session.patiently(lambda: self._client.hget(f"{self._keys}t", name))
            differs = sealed is not None and self._cells.open(name, sealed, f"task {name}") != record
            if differs and self._is_pending(name):
                raise made_differently(name)  # what is pending would run with what is new
        return record

    def _is_pending(self, task: str) -> bool:
        """Return True if it is pending; asked once for all that an attempt makes, again before a refusal."""
        commits = self._session.commits
        if self._pending[0] != commits or task in self._pending[1]:
            specs = self._session.known().specs.values()
            self._pending = commits, frozenset(spec.task_id for spec in specs)
        return task in self._pending[1]

    # --- tasks that were made at run time ------------------------------------------------

    def made_since(self, made: MadeSoFar, own: Sequence[str]) -> None:
        """Add those that the graph lacks; it has `own`, which this worker has just made."""
        known = self.made
        if own and made.times == known.times + len(own):
            known.have(own, made.times, made.last)
        else:
            self._read_noted(made.times)
        if known.times != made.times or len(known.names) != made.names:
            self.remake()  # a worker of a version before has noted none, or the session was rewritten

    def remake(self) -> None:
        """Read all of them."""
        times, found = self._session.patiently(
            lambda: (self._client.hget(f"{self._keys}h", "makes"), self._client.hgetall(f"{self._keys}t"))
        )
        with readable(self.session_id, self._home.link.address):
            self._join({name.decode(): record for name, record in sorted(found.items())})
            made = int(times or 0)
        self.made.have((), made, self._noted([made])[0])

    def _read_noted(self, times: int) -> None:
        """Read those that were made since; `self.made` stays behind if one is not there."""
        for first in range(self.made.times + 1, times + 1, _PAGE):
            noted = self._noted(range(first, min(first + _PAGE, times + 1)))
            if None in noted:
                return
            with readable(self.session_id, self._home.link.address):
                names = [*dict.fromkeys(entry.partition(b" ")[2].decode() for entry in noted if entry)]
            records = self._session.patiently(partial(self._client.hmget, f"{self._keys}t", names))
            if None in records:
                return
            self._join(dict(zip(names, records, strict=True)))
            self.made.have(names, first + len(noted) - 1, noted[-1])

    def _noted(self, numbers: Iterable[int]) -> list[bytes | None]:
        fields = [f"m:{number}" for number in numbers]
        found: list[bytes | None] = self._session.patiently(
            lambda: self._client.hmget(f"{self._keys}h", fields)
        )
        return found

    def _join(self, records: Mapping[str, bytes]) -> None:
        for name, record in records.items():
            task, spawner, before = unpack_task(self._cells.open(name, record, f"task {name}"))
            if task.name not in self._graph.nodes or task.name in self._graph.made:
                self._graph.extend(spawner, task, before)
            self.made.names.add(name)

    @property
    def _client(self) -> Any:  # a redis.Redis, whose types allow a coroutine
        return self._home.link.client


class Part:
    """The part of one process in a session that others work on, too: a token, and what runs under it.

    Promise: however it ends, what is held goes back into its queue, unless the token is void by then.
    `join`: takes what is made at run time into the graph. `on_lost`: the token is void while a body runs.
    """

    def __init__(
        self, session: RedisSession, graph: TaskGraph, bindings: dict[str, Binding], settings: Settings,
        home: SharedHome, cells: Cells, keeper: Keeper, *,
        context: ExecutionContext | None = None, loop: Loop | None = None, slots: int | None = None,
        made: Made | None = None, join: Callable[[MadeSoFar, Sequence[str]], None] | None = None,
        after_body: Callable[[], None] = lambda: None,
        on_saved: Callable[[CheckpointMetadata], None] = lambda metadata: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.session = session
        self.home = home
        self._keeper = keeper
        self._on_lost = on_lost
        self.announcer, self.inbox = Announcer(session, settings.observers), Inbox()
        self.host = SharedHost(graph, session, self.announcer, self.inbox, home, cells, made, context)
        session.when_made(join or self.host.made_since)
        self.cuts = SharedCuts(session, settings, home, self.announcer.emit, after_body, on_saved)
        invoker = Invoker(graph, session, settings, self.host, bindings, loop=loop)
        self.run = Run(invoker, self.cuts, self.announcer, self.inbox, slots=slots)

    def keep(self, help_with: Callable[[], object], look_around: Callable[[], object] = lambda: None) -> None:
        """Have the lease renewed until the keeper forgets it. See Kept."""
        self._keeper.keep(Kept(self.session, self._news, help_with, look_around))

    def _news(self, news: str) -> None:
        """Handle news of the keeper: what has happened to the session while a body runs."""
        if news in ("fenced", "gone"):
            self.run.invoker.fence(Fenced("The session's token was lost.", session=self.session.id))
            self._on_lost()
        elif news == "cancelled":
            self.run.invoker.fence(WorkflowCancelled("The session was cancelled.", session=self.session.id))

    def given_back(self) -> list[Op]:
        return [("release", key, claim.spec.crashes) for key, claim in self.session.held.items()]

    def leave(self) -> None:
        """Release what is still held, and the token; the next worker continues at once."""
        session = self.session
        if not (session.retired or session.broken is not None):
            session.commit([*self.given_back(), ("claim", 0)], mode="q")
