"""A run over a session that others work on, too: its cuts, and what its tasks can ask of it.

Bodies work on copies, so nothing is ever on loan: a cut is taken at once, by the worker that has
committed the request, or by whoever finds first that a policy is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from graflow_ckpt.checkpoint.program import pack_task, unpack_task
from graflow_ckpt.core.errors import CheckpointError, GraflowError, ServerError, SessionError
from graflow_ckpt.core.facts import Cell, Claim, Done, Failed, Op, Outcome, Request
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import Since
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.attempt import Attempt
from graflow_ckpt.engine.run import Run, RunHost
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.engine.task_context import PendingCheckpoint, made_differently, same_task
from graflow_ckpt.links.complaints import readable
from graflow_ckpt.sessions.layout import keys_of
from graflow_ckpt.sessions.ops import Cells
from graflow_ckpt.sessions.redis import RedisSession
from graflow_ckpt.stores.places import path_at

log = logging.getLogger("graflow_ckpt.checkpoint")

TURN = 5.0
"""Seconds for which a moment that passes waits for a cut that is being written."""


class SharedCuts:
    """When a checkpoint of a shared session is taken."""

    waiting = False

    def __init__(
        self, session: RedisSession, settings: Settings, home: SharedHome, emit: Callable[..., None]
    ) -> None:
        self._session = session
        self._settings = settings
        self._home = home
        self._emit = emit
        self.on_saved: Callable[[Any], None] = lambda metadata: None
        self._watches = settings.policy.watches and settings.durability != "none"
        self._looked: tuple[int, float] | None = None  # step and time of the last cut, as far as known here

    def starts(self, number: int, alone: bool) -> None:
        """Random state belongs to a process, not to a shared session."""

    def failed(self, claim: Claim, outcome: Failed) -> None:
        """See starts."""

    def before_commit(self, ops: list[Op], attempt: Attempt | None = None) -> None:
        """See starts."""

    def timer(self) -> float | None:
        return self._settings.policy.period if self._watches else None

    def committed(self, outcome: Outcome, idle: bool) -> None:
        if type(outcome) is Done and outcome.effects.request is not None:
            self._requested(outcome.effects.request)
        if self._watches:
            self.poll(idle)

    def poll(self, idle: bool) -> None:
        """Cut if the policy is due, and nobody else does."""
        if not self._watches or (self._looked is not None and not self._due(idle)):
            return
        if not self._due_for_all(idle):
            return
        # who cuts now shows an earlier moment; this one comes again at the next commit, but not if there is
        # none, or if it is that nothing runs
        passes = self._session.status != "running" or not self._due(False)
        with self._home.turn(TURN if passes else 0.0) as mine:
            if mine and self._due_for_all(idle):  # others may have cut between the question and our turn
                if self.cut("policy", {"auto": True}) is not None:
                    self._home.tidy(self._settings.keep, emit=self._emit)
                self._looked = (self._session.steps, monotonic())

    def _due_for_all(self, idle: bool) -> bool:
        """By what all workers have done; somebody else may run something, and may have cut."""
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
            handle.metadata = saved
            handle.saved = True

    def cut(self, cause: str, user: dict[str, Any] | None, handle: PendingCheckpoint | None = None) -> Any:
        """One trio; a failure is an event."""
        began = monotonic()
        try:
            saved = self._home.cut(cause, user, path=handle.path if handle is not None else None)
        except (CheckpointError, SessionError, ServerError, OSError) as error:
            found = error if isinstance(error, GraflowError) else CheckpointError(str(error))
            if handle is not None:
                handle.error = found
            self._failed(found, cause, monotonic() - began)
            return None
        self.on_saved(saved)
        self._home.tell_saved(self._emit, saved, cause, monotonic() - began, self._settings.slow_save)
        return saved

    def _failed(self, error: GraflowError, cause: str, seconds: float) -> None:
        """An event; with on_save_failure="fail" nobody goes on with the session."""
        self._home.tell_failed(self._emit, error, cause, seconds)
        with suppress(GraflowError):  # the server may be what has failed
            self._home.has_failed(self._session.steps)
        if self._settings.on_save_failure == "fail":
            self._session.commit([("status", "paused", f"The checkpoint failed: {error.message}")])
            raise error


class SharedHost(RunHost):
    """A run of one worker, as seen from its tasks."""

    def __init__(
        self, graph: TaskGraph, session: RedisSession, run: Run, home: SharedHome, cells: Cells
    ) -> None:
        self.execution_context = None  # the caller has it, in another process
        self.session_id = self.execution = session.id
        self._run = run
        self._graph = graph
        self._session = session
        self._home = home
        self._cells = cells
        session.on_made = self.remake

    def reserve(self, task: str, metadata: dict[str, Any], storage: str | None = None) -> PendingCheckpoint:
        """A handle whose path is known before the checkpoint is there."""
        # a number that a lost reply has taken with it is missing in the paths, and that is all
        prepared = self._session.patiently(lambda: self._home.reserve(self._session.steps + 1, metadata))
        if storage is not None:
            prepared.path = path_at(storage, self._home.store, prepared.path)
        return PendingCheckpoint(prepared.path, prepared)

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell:
        """A task made at run time, as the session keeps it."""
        record = pack_task(task, spawner, before)
        if self._session.made:
            state = self._session.known()
            known = state.tasks.get(task.name)
            differs = known is not None and not same_task(known, record)
            if differs and task.name in [spec.task_id for spec in state.specs.values()]:
                raise made_differently(task.name)  # what is pending would run with what is new
        return record

    def remake(self) -> None:
        """Tasks that were made at run time, here or elsewhere, join the graph of this worker."""
        found = self._session.patiently(self._made)
        with readable(self.session_id, self._home.link.address):
            records = {name.decode(): record for name, record in sorted(found.items())}
        for name, record in records.items():
            task, spawner, before = unpack_task(self._cells.open(name, record, f"task {name}"))
            known = self._graph.nodes.get(task.name)
            if known is None or task.name in self._graph.made:
                self._graph.extend(spawner, task, before)

    def _made(self) -> dict[bytes, bytes]:
        key = f"{keys_of(self.session_id)}t"
        client: Any = self._home.link.client
        found: dict[bytes, bytes] = client.hgetall(key)
        return found
