"""A part in a session that others work on, too: its cuts, its host for tasks, its token, and `execute`.

Bodies work on copies, so nothing is ever on loan: a cut is taken at once, by the worker that has
committed the request, or by the first that finds that a policy is due.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn

from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.plan import make_plan
from graflow_ckpt.checkpoint.program.program import saved_tasks, unpack_task
from graflow_ckpt.core import errors
from graflow_ckpt.core.decide import ANSWERS
from graflow_ckpt.core.facts import Cell, Claim, Done, Failed, Op, Outcome, Request, execution_of
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import Since
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine import notices, resuming
from graflow_ckpt.engine.adopt import KEPT
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.bind import Binding, takes_cuts
from graflow_ckpt.engine.body.task_context import PendingCheckpoint
from graflow_ckpt.engine.engine import Execution, doubts, paused
from graflow_ckpt.engine.invoke import Bodies, Invoker
from graflow_ckpt.engine.reaping import GRACE, Keeper, Kept, lasts, release_the_dead
from graflow_ckpt.engine.run import Inbox, Run, RunHost
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.links.complaints import readable
from graflow_ckpt.links.processes import myself
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import MadeSoFar
from graflow_ckpt.sessions.redis.facts import SharedFacts
from graflow_ckpt.sessions.redis.session import POLL, RedisSession

if TYPE_CHECKING:
    from graflow_ckpt.engine.body.coroutines import Loop
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.engine")

_PAGE = 1000  # tasks made at run time that are read at once

TURN = 5.0
"""Seconds for which a moment that passes waits for a cut that is being written."""

LEASE = 15.0
ENDS = frozenset({"completed", "failed", "cancelled", "stopped", "stalled"})


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
        self._rounds = 0  # committed here since the last cut
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

    def after_round(self, request: Request | None, idle: bool) -> bool:
        self._rounds += 1
        if request is not None:
            self._requested(request)
        return self._watches and self.poll(idle)

    def poll(self, idle: bool) -> bool:
        """Cut if the policy is due, and no other worker does; nothing waits for it, here or elsewhere."""
        if self._watches and (self._looked is None or self._due(idle)) and self._due_for_all(idle):
            with ExitStack() as stack:
                self._cut_in_turn(idle, stack)
        return False

    def _cut_in_turn(self, idle: bool, stack: ExitStack) -> None:
        # a worker that cuts now shows an earlier moment; this one comes again at the next commit, but not if
        # there is none, or if it is that nothing runs
        passes = self._session.status != "running" or not self._due(False)
        turn = self._home.facts.turn(TURN if passes else 0.0, self._session.patiently)
        try:
            mine = stack.enter_context(turn)
        except (errors.ServerError, errors.SessionError) as error:  # a full server answers, takes no writes
            self._failed(error, "policy", 0.0)
            return
        if mine and self._due_for_all(idle):  # others may have cut between the question and our turn
            if self.cut("policy", {"auto": True}) is not None:
                self._home.tidy(self._settings.keep, emit=self._emit)
            self._looked, self._rounds = (self._session.steps, monotonic()), 0

    def _due_for_all(self, idle: bool) -> bool:
        """Return True if a cut is due by what all workers have done; another one may run, or have cut."""
        facts, asks = self._home.facts, self._session.patiently
        steps, seconds = asks(facts.last_cut)
        self._looked = (steps, monotonic() - seconds)
        if not self._due(idle) or self._due(False):
            return self._due(idle)
        return int(asks(facts.line)["held"] or 0) <= len(self._session.held)

    def _due(self, idle: bool) -> bool:
        steps, at = self._looked or (0, monotonic())
        more = self._session.steps - steps + self._rounds
        return self._settings.policy.due(Since(more, monotonic() - at, idle, rounds=self._rounds))

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
        except (errors.CheckpointError, errors.SessionError, errors.ServerError, OSError) as error:
            found = error if isinstance(error, errors.GraflowError) else errors.CheckpointError(str(error))
            if handle is not None:
                handle.failed(found)
            self._failed(found, cause, monotonic() - began)
            return None
        self._on_saved(saved)
        self._home.tell_saved(self._emit, saved, cause, monotonic() - began, self._settings.slow_save)
        return saved

    def _failed(self, error: errors.GraflowError, cause: str, seconds: float) -> None:
        """Report an event; with on_save_failure="fail" pause the session for all workers."""
        self._home.tell_failed(self._emit, error, cause, seconds)
        with suppress(errors.GraflowError):  # the server may be what has failed
            self._home.facts.cut_failed(self._session.steps)
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
        return bool(self.last) and SharedFacts(link, session).last_make_is(self.times, self.last)


class SharedHost(RunHost):
    """A run of one worker, as seen from its tasks."""

    def __init__(
        self, graph: TaskGraph, session: RedisSession, announcer: Announcer, inbox: Inbox, home: SharedHome,
        made: Made | None = None, context: ExecutionContext | None = None, random: bool = True,
    ) -> None:  # fmt: skip
        run = session.execution
        super().__init__(
            graph, session, home, announcer, inbox, context=context, execution=run, random=random
        )
        self._shared, self._facts = session, home.facts
        self._cells = home.cells
        self.made = made or Made()

    def _reserved(self, metadata: dict[str, Any]) -> CheckpointMetadata:
        # a number that a lost reply has taken with it is missing in the paths, and that is all
        return self._shared.patiently(lambda: self._home.reserve(self._shared.steps + 1, metadata))

    def _made_before(self, name: str) -> Cell | None:
        if not self._shared.made.names:
            return None
        (sealed,) = self._shared.patiently(lambda: self._facts.made([name]))
        return None if sealed is None else self._cells.open(name, sealed, f"task {name}")

    @property
    def _transition(self) -> int:
        return self._shared.commits

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
        times, found = self._shared.patiently(self._facts.makes)
        self._join(found)
        self.made.have((), times, self._noted([times])[0])

    def _read_noted(self, times: int) -> None:
        """Read those that were made since; `self.made` stays behind if one is not there."""
        for first in range(self.made.times + 1, times + 1, _PAGE):
            noted = self._noted(range(first, min(first + _PAGE, times + 1)))
            if None in noted:
                return
            with readable(self.session_id, self._facts.link.address):
                names = [*dict.fromkeys(entry.partition(b" ")[2].decode() for entry in noted if entry)]
            records = self._shared.patiently(partial(self._facts.made, names))
            if None in records:
                return
            self._join(dict(zip(names, records, strict=True)))
            self.made.have(names, first + len(noted) - 1, noted[-1])

    def _noted(self, numbers: Iterable[int]) -> list[bytes | None]:
        return self._shared.patiently(partial(self._facts.makes_noted, [*numbers]))

    def _join(self, records: Mapping[str, Any]) -> None:
        for name, record in records.items():
            task, spawner, before = unpack_task(self._cells.open(name, record, f"task {name}"))
            if task.name not in self._graph.nodes or task.name in self._graph.made:
                self._graph.extend(spawner, task, before)
            self.made.names.add(name)


class Part:
    """The part of one process in a session that others work on, too: a token, and what runs under it.

    Promise: however it ends, what is held goes back into its queue, unless the token is void by then.
    `join`: takes what is made at run time into the graph. `on_lost`: the token is void while a body runs.
    """

    def __init__(
        self, session: RedisSession, graph: TaskGraph, bindings: dict[str, Binding], settings: Settings,
        home: SharedHome, keeper: Keeper, *,
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
        self.host = SharedHost(graph, session, self.announcer, self.inbox, home, made, context, settings.rng)
        session.when_made(join or self.host.made_since)
        self.cuts = SharedCuts(session, settings, home, self.announcer.emit, after_body, on_saved)
        invoker = Invoker(Bodies(graph, session, settings, self.host, bindings), loop=loop)
        self.run = Run(invoker, self.cuts, self.announcer, self.inbox, slots=slots)

    def keep(self, help_with: Callable[[], object], look_around: Callable[[], object] = lambda: None) -> None:
        """Have the lease renewed until the keeper forgets it. See Kept."""
        self._keeper.keep(Kept(self.session, self._news, help_with, look_around))

    def _news(self, news: str) -> None:
        """Handle news of the keeper: what has happened to the session while a body runs."""
        if not self.session.held:  # all is committed, the token may be retired: a checkpoint is still written
            return
        if news in ("fenced", "gone"):
            self.run.invoker.fence(errors.Fenced("The session's token was lost.", session=self.session.id))
            self._on_lost()
        elif news == "cancelled":
            self.run.invoker.fence(
                errors.WorkflowCancelled("The session was cancelled.", session=self.session.id)
            )

    def given_back(self) -> list[Op]:
        return [("release", key, claim.spec.crashes) for key, claim in self.session.held.items()]

    def leave(self) -> None:
        """Release what is still held, and the token; the next worker continues at once."""
        session = self.session
        if not (session.retired or session.broken is not None):
            session.commit([*self.given_back(), ("claim", 0)], mode="q")


class SharedExecution(Execution):
    """One call of execute on a session in Redis: this process works on it until it has ended, beside others.

    No operator has to supervise it: what a dead worker held is taken by one that still works.
    """

    def __init__(self, context: ExecutionContext, loop: Loop | None) -> None:
        super().__init__(context, loop)
        seat: Any = context  # typed for sessions in this process
        self.home: SharedHome = seat.home
        self._outside: RedisSession = seat.session
        self._at = self.home.facts.link, context.session_id, self.home.cells
        self._keeper = Keeper(LEASE)
        self._part: Part | None = None

    def _close(self) -> None:
        self._keeper.close()
        if self._part is not None:
            try:
                self._part.leave()
            except errors.GraflowError as error:  # its lease ends by itself
                session = self._outside.id
                log.warning("session %s is left: %s", session, error, extra={"session": session})
            self._part.session.close()

    def _workflow(self) -> str | None:
        return self.home.facts.get("workflow")

    def _open(self, start: str | None) -> bool:
        context, state = self.context, self.context.state
        if state.next_key > 1 and not context.basis.again:
            self._line = notices.continuing_line(context, state)
            self._notify()
        bindings = self._check(start, self._outside.names())
        self.home.describe(self.graph, self.settings)
        if takes_cuts(self.settings, bindings):  # no save fails for these later
            self.home.store.probe()
            _ = self.home.keyring
        if context.basis.again:
            self._line = notices.again_line(state.session, state.run)
            context.session.commit([] if start is None else [("clear",)])
            self.home.schedule(context)
            self._outside = RedisSession(*self._at)
            self._notify()
            start = None  # it has begun there
        self._reopen(start)
        context.begin()
        mine = self.home.facts.begin(json.dumps(asdict(myself()), separators=(",", ":")), lasts(LEASE))
        if mine is None:  # others have brought it to its end meanwhile
            return False
        self._set_up(RedisSession(*self._at, *mine), bindings)
        return True

    def _reopen(self, start: str | None) -> None:
        """Start it, start elsewhere, or continue."""
        context, was = self.context, self.context.status
        if not release_the_dead(*self._at):
            sleep(GRACE + POLL)
            release_the_dead(*self._at)
        state = context.state
        if was == "running" and state.status == "paused":  # a task has taken its last worker down
            raise paused(state.session, state.reason)
        limit = context.taken_limit()
        reopen: Op = ("reopen", state.epoch, limit)
        if state.next_key == 1:
            context.schedule_start()
            if limit != state.max_steps:
                self._outside.commit([reopen])
        elif start is not None:
            self.home.note_start(context)
            begun = [self.graph.routes[name].enqueue() for name in self.graph.starts]
            self._outside.commit([("clear",), reopen, *begun])
        else:
            changes = [*self._changes(state), *self._answers(state)]
            if changes or state.status != "running" or limit != state.max_steps:
                self._outside.commit([*changes, reopen])
        self.home.facts.note_program(self.home.program.known.facts, KEPT)

    def _changes(self, state: SessionState) -> list[Op]:
        """Return what a changed program has to run again; GraphChanged where results would not be its own."""
        known = self.home.facts.program()
        if known is None and self.context.found is not None:
            known = self.context.found.facts["graph"]
        if known is None or known.get("summary") == self.home.program.known.facts["summary"]:
            return []
        facts = resuming.facts_of({"graph": known}, state, state.claimed)
        tasks = self.home.program.tasks_of(self.graph)
        plan = make_plan(saved_tasks(facts), tasks, self.settings.changed)
        resuming.accept(plan, state.session)
        ops = resuming.changes_of(self.graph, plan, state)
        if ops and (others := self.home.facts.workers()):
            raise errors.SessionBusy(
                f"Tasks of session {state.session} are to run again with another program, and a worker "
                f"runs it: {others[0]}.",
                hint="Pause it and wait until its workers have left it.",
                session=state.session,
                owner=others[0],
            )
        return ops

    def _answers(self, state: SessionState) -> list[Op]:
        """Return the answers for what was set aside to ask the user; raise InDoubt if one is missing."""
        answers, waiting = dict(self.settings.in_doubt), doubts(state)
        asked = [name for name in waiting.values() if name not in answers]
        if asked:
            raise resuming.in_doubt(state.session, asked)
        return [("answer", key, ANSWERS.get(answers[name], "failed")) for key, name in waiting.items()]

    def _set_up(self, mine: RedisSession, bindings: dict[str, Binding]) -> None:
        context, home = self.context, self.home
        part = self._part = Part(
            mine, self.graph, bindings, self.settings, home, self._keeper,
            context=context, loop=self._loop, on_saved=context.note_checkpoint,
        )  # fmt: skip
        self._run = part.run
        part.host.remake()
        if self.stop.signal is not None:
            part.inbox.stop()
        # once a second: what dead workers held can be claimed again
        look_around = partial(release_the_dead, *self._at, patience=0.0)
        part.keep(lambda: None, look_around)
        if self.settings.observers:
            home.join_trace()
            home.trace.follow(self.settings.observers)
        self._emit("session_started", **context.facts(), line=self._line)
        home.keep_trace(first=False)
        if (asked := context.taken_request()) is not None:
            part.cuts.cut("request", asked)

    def _drive(self) -> Any:
        assert self._part is not None
        mine = self._part.session
        try:
            while True:
                self._part.run.drive()
                if self.stop.signal is not None:
                    self._leave(mine.status)
                if mine.status not in ("closing", "failing"):
                    break
                sleep(POLL)  # others finish what they run
                mine.commit([("claim", 0)])
            status = mine.status
        except errors.Fenced as error:  # the session has ended, or continues without this process
            status = self._outside.known().status
            if status not in ENDS:
                raise
            if mine.held:
                log.warning("session %s: %s", mine.id, error, extra={"session": mine.id})
        self._emit("session_ended", status=status, reason="", resume=self._command())
        result = self._result(status)
        if execution_of(mine.id, self._outside.known().run) != mine.execution:
            why = f"Session {mine.id} has ended, and was run again before its result was read."
            raise errors.Fenced(why, hint="Its last checkpoint before that has the result.", session=mine.id)
        return result

    def _leave(self, status: str) -> NoReturn:
        session, ended = self._outside.id, status == "completed"
        goes_on = f"session {session} stopped; it goes on with: {self._command()}"
        self._interrupted(f"session {session} is completed" if ended else goes_on, ended=ended)
