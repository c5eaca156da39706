"""One run: claims specs, has their bodies invoked, commits the outcomes, cuts when it is due.

    claim -> invoke -> decide -> commit + claim -> cut if due -> …

Only the caller's thread decides and commits; a task that is alone ready also runs in it. Other
bodies run on threads, on an event loop or in child processes, and hand their outcome back
through one queue, together with signals and deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import pack_task
from graflow_ckpt.core.decide import decide
from graflow_ckpt.core.errors import (
    GraphError,
    TooLarge,
    WorkerDied,
    WriteConflict,
)
from graflow_ckpt.core.facts import Cell, Claim, Done, Failed, Left, Live, Op, Outcome, Request, Spawned
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.between import Between, resume
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.bind import Binding
from graflow_ckpt.engine.body.live import GoBack, TornValues
from graflow_ckpt.engine.body.rounds import Answer, RoundEnd
from graflow_ckpt.engine.body.task_context import PendingCheckpoint, made_differently, same_task
from graflow_ckpt.engine.invoke import Invoker, Running, refused, without_body
from graflow_ckpt.engine.settings import Slots
from graflow_ckpt.sessions.protocol import Session
from graflow_ckpt.stores.places import path_at

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext
    from graflow_ckpt.engine.home import CheckpointPlace

log = logging.getLogger("graflow_ckpt.engine")


class Deadlines:
    """Claim numbers by when their attempts end; those that have ended stay until they are the first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def add(self, when: float, number: int) -> None:
        heappush(self._heap, (when, number))

    def left(self) -> float | None:
        """Return the seconds until the first one, negative once it has passed; None without any."""
        return self._heap[0][0] - monotonic() if self._heap else None

    def passed(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= monotonic()

    def pop(self) -> int:
        return heappop(self._heap)[1]


TICK = 0.5
"""Seconds between looks at signals: one that comes right before a wait does not end it."""

Message = tuple[Running, Outcome | BaseException] | RoundEnd


class Inbox:
    """Filled by any thread and by signal handlers, emptied by the run's."""

    def __init__(self) -> None:
        self.stopping = False  # nothing more is to be started
        self._here: tuple[int, Callable[[RoundEnd], None] | None] = (0, None)
        self._messages: SimpleQueue[Message | BaseException | None] = SimpleQueue()

    def post(self, message: tuple[Running, Outcome | BaseException]) -> None:
        """Post that a body has ended."""
        message[0].has_posted()  # it was in time, however long the message lies here
        self._messages.put(message)

    def emptied_here(self, commit: Callable[[RoundEnd], None]) -> None:
        """Note that this thread is the run's, and how it commits a round of a body that it runs itself."""
        self._here = get_ident(), commit

    def commit(self, end: RoundEnd) -> None:
        """Have a round committed: here, or by the run, for whose answer the body waits."""
        thread, commit = self._here
        if commit is not None and thread == get_ident():
            commit(end)
        else:
            self._messages.put(end)

    def knock(self) -> None:
        """Wake the run, so that it looks at its session again."""
        self._messages.put(None)

    def stop(self) -> None:
        """Stop the run: what runs is finished, and nothing more is started."""
        self.stopping = True
        self.knock()

    def leave(self, error: BaseException) -> None:
        """Raise `error` in the thread that waits."""
        self._messages.put(error)

    def get(self, patience: float) -> Message | None:
        """Return the next message, None to look again; raise `Empty` after so many seconds."""
        while True:
            try:
                message = self._messages.get(timeout=min(patience, TICK))
            except Empty:
                if patience <= TICK:
                    raise
                patience -= TICK
                continue
            if isinstance(message, BaseException):
                raise message
            return message


class Cuts(Protocol):
    """The checkpoints of a run: see cuts.py."""

    def after(self, outcome: Outcome, idle: bool) -> bool:
        """Cut after a commit if that is due; return True if nothing may be claimed until a cut is taken."""
        ...

    def poll(self, idle: bool) -> bool:
        """Cut if that is due, whatever was committed; return the same."""
        ...

    def starts(self, number: int, alone: bool) -> None: ...
    def failed(self, claim: Claim, outcome: Failed) -> None: ...
    def before_commit(self, ops: list[Op], attempt: Attempt | None = None) -> None: ...
    def timer(self) -> float | None: ...

    def after_round(self, request: Request | None, idle: bool) -> bool:
        """Cut after the commit of a round if that is due; return the same."""
        ...


CONFLICT_BUDGET = 20
"""How often a task may lose a race for a value before that counts as a failure."""

FAIR = 3
"""After so many lost races a task runs with nothing beside it."""

CRASH_BUDGET = 3
"""How often a task may take its process down before that counts as a failure."""


class FreeSlots:
    """The slots that are free beside attempts that run elsewhere; a spec that loses races has them all."""

    def __init__(self, slots: Slots, invoker: Invoker) -> None:
        self.met_coroutines = False
        self.got_all = False  # the last commit since then returned as many claims as it was asked for
        self.unlucky: set[int] = set()  # specs that have lost as many as FAIR; until each is through one runs
        self._lost: dict[int, int] = {}
        self._slots, self._threads = slots, slots.threads
        self._invoker, self._running = invoker, invoker.running
        self._on_loop: set[int] = set()  # claims of those that are coroutines

    def enter(self, running: Running) -> None:
        claim = running.claim
        self._running[claim.number] = running
        if self._invoker.on_loop(claim.spec.task_id):
            if not self.met_coroutines:
                self.met_coroutines = self.got_all = True
            self._on_loop.add(claim.number)

    def leave(self, number: int) -> Running | None:
        self._on_loop.discard(number)
        return self._running.pop(number, None)

    def got(self, claims: int, limit: int) -> None:
        self.got_all = claims == limit

    def loses(self, key: int) -> int:
        """Count a race for a value that a spec has lost; return how many these are."""
        lost = self._lost[key] = self._lost.get(key, 0) + 1
        if lost >= FAIR:
            self.unlucky.add(key)
        return lost

    def left(self, claimed: Sequence[Claim]) -> int:
        """Return how many attempts may start now, beside these."""
        if self.met_coroutines and not self.unlucky:
            return self._beside_coroutines(claimed)
        left = (1 if self.unlucky else self._threads) - len(self._running) - len(claimed)
        return left if left > 0 else 0

    def _beside_coroutines(self, claimed: Sequence[Claim]) -> int:
        """Return the same once coroutines have been met: a claim's kind is known when it is there."""
        on_loop = len(self._on_loop) + sum(self._invoker.on_loop(claim.spec.task_id) for claim in claimed)
        on_threads = len(self._running) + len(claimed) - on_loop
        loop, threads = self._slots.coroutines - on_loop, self._threads - on_threads
        left = self._slots.together - on_loop - on_threads
        if loop > 0 and threads > 0:
            return max(0, min(loop, threads, left))
        following = self._invoker.session.following()
        if following is None or left <= 0:
            return 0
        return int((loop if self._invoker.on_loop(following.task_id) else threads) > 0)


class Run:
    """Drives one session until nothing is left to do, or until it is told to stop."""

    def __init__(
        self, invoker: Invoker, cuts: Cuts, announcer: Announcer, inbox: Inbox, *, slots: int | None = None
    ) -> None:
        self.invoker = invoker
        self.cuts = cuts
        self.announcer = announcer
        self.inbox = inbox
        self.graph, self.session, self.settings = invoker.graph, invoker.session, invoker.settings
        self.left_behind = False  # a body that cannot be ended still runs, its attempt being over
        self._free = FreeSlots(Slots(slots, slots, slots) if slots else self.settings.slots, invoker)
        self._torn = TornValues(self.graph, self.session, self.settings.on_failure)
        self._running = invoker.running
        self._between = Between(self.graph, self.session, invoker, inbox, cuts)
        self._holds = False  # nothing is claimed: a cut is due, and something is on loan
        self._deadlines = Deadlines()
        self._watched = bool(self.settings.observers)

    # --- the loop ----------------------------------------------------------------------

    def drive(self) -> None:
        """Run until the session has ended, stopped, or was told to stop."""
        self.inbox.emptied_here(self._round_here)
        try:
            claims = self._claim()
            while True:
                if claims and self.inbox.stopping:
                    claims = self._hand_back(claims)
                alone = len(claims) == 1 and not self._running and self.session.due() is None
                if alone and (binding := self.invoker.inline(claims[0])) is not None:
                    claims = self._step(claims[0], binding)
                    continue
                for claim in claims:
                    self._start(claim)
                if claims and self._free.got_all and self.session.has_ready():
                    # as many as threads are free, until there is no room for coroutines
                    claims = self._claim()
                    if claims:
                        continue
                if self._running:
                    claims = self._wait()
                elif self.inbox.stopping or self.session.over:
                    return
                else:  # something will be due
                    self._holds = self._holds and self.cuts.poll(idle=True)
                    claims = self._wait() if self.session.due() is not None else self._claim()
        finally:
            self.invoker.close()

    def _hand_back(self, claims: list[Claim]) -> list[Claim]:
        """Release what was claimed and not started: it is not in doubt."""
        ops = [("release", claim.spec.key, claim.spec.crashes) for claim in reversed(claims)]
        return self._commit([*ops, ("claim", 0)])

    def _step(self, claim: Claim, binding: Binding) -> list[Claim]:
        """Claim in, next claims out, all in this thread: the hot path."""
        if claim.spec.cycle and (refusal := refused(self.graph, claim)) is not None:
            return self._finish(claim, None, refusal)
        if self._watched:
            self.announcer.emit("task_started", claim.spec.task_id, attempt=claim.spec.retry_count + 1)
        self.cuts.starts(claim.number, alone=True)
        attempt, outcome = self.invoker.call(claim, binding)
        return self._finish(claim if attempt is None else attempt.claim, attempt, outcome)

    def _start(self, claim: Claim) -> None:
        refusal = refused(self.graph, claim)
        if refusal is not None:
            running = self._running[claim.number] = Running(claim, None)
            self.inbox.post((running, refusal))
            return
        if self._watched:
            self.announcer.emit("task_started", claim.spec.task_id, attempt=claim.spec.retry_count + 1)
        self.cuts.starts(claim.number, alone=not self._running)
        running = self.invoker.start(claim, self.inbox.post)
        self._free.enter(running)
        if running.deadline is not None:
            self._deadlines.add(running.deadline, claim.number)

    def _wait(self) -> list[Claim]:
        """Wait for one message: an outcome, a round, a signal, or a deadline that has passed."""
        for number in self._between.wake(self._holds):
            running = self._running.get(number)
            if running is not None and running.deadline is not None:
                self._deadlines.add(running.prolong(self.graph.routes[running.claim.spec.task_id]), number)
        if self._deadlines.passed():  # also while others keep the inbox full
            return self._overdue()
        try:
            message = self.inbox.get(self._patience())
        except Empty:
            return self._overdue()
        if message is None:
            return self._claim()
        if isinstance(message, RoundEnd):
            return self._round_elsewhere(message)
        running, outcome = message
        if self._free.leave(running.claim.number) is None:
            if not running.killed:
                self.announcer.late(running.claim.spec.task_id)
            return self._claim()
        if isinstance(outcome, Done | Failed) or not isinstance(outcome, BaseException):
            claim = running.claim if running.attempt is None else running.attempt.claim
            return self._finish(claim, running.attempt, outcome)
        raise outcome  # KeyboardInterrupt, SystemExit and their like leave the run as they are

    def _patience(self) -> float:
        """Return the seconds until the run has to look at the clock."""
        times = [self._deadlines.left(), self.cuts.timer(), self._between.left()]
        due = self.session.due()
        if due is not None and self._may_claim():
            times.append(due - self.session.clock())
        return max(0.0, min((seconds for seconds in times if seconds is not None), default=inf))

    def _overdue(self) -> list[Claim]:
        while self._deadlines.passed():
            running = self._running.get(self._deadlines.pop())
            if running is not None and not running.posted:  # one at a time, so that its slot counts once
                if running.is_between_rounds():
                    continue  # it came to the end of one in time; with its answer another time begins
                claim = running.claim if running.attempt is None else running.attempt.claim
                self._free.leave(claim.number)
                error = running.time_out(self.graph.routes[claim.spec.task_id].options.timeout)
                self.left_behind |= not running.killed
                return self._finish(claim, running.attempt, self.invoker.bodies.failed(claim, error))
        self._holds = self.cuts.poll(idle=not self._running)
        return self._claim()

    # --- ends of attempts --------------------------------------------------------------

    def _finish(self, claim: Claim, attempt: Attempt | None, outcome: Outcome) -> list[Claim]:
        """Decide and commit; the next claims ride in the same transition."""
        if isinstance(outcome, Left):
            return self._left(claim, attempt, outcome.error)
        crashes = claim.spec.crashes + 1
        if type(outcome) is Failed and isinstance(outcome.exception, WorkerDied) and crashes < CRASH_BUDGET:
            log.warning("%s It runs again.", outcome.error, extra={"task": claim.spec.task_id})
            return self._again(claim, crashes)  # no failure yet: crashes have a budget of their own
        conflict: WriteConflict | TooLarge | GraphError | None = None
        made: Sequence[Spawned] = ()
        undo: Sequence[Callable[[], None]] = ()
        try:
            if isinstance(outcome, Done):
                made = outcome.effects.spawned
            elif isinstance(outcome, Failed):
                self._torn.check(claim, self._torn.note(attempt), outcome)
                self.cuts.failed(claim, outcome)
            else:
                self._torn.note(attempt)
            try:
                if made:
                    undo = [self.graph.extend(claim.spec.task_id, m.task, m.before) for m in made]
                ops = decide(self.graph, claim, outcome, self.settings.on_failure)
                if self._free.unlucky:
                    self._free.unlucky.discard(claim.spec.key)
                ops.append(("claim", self._unused()))
                claims = self._commit(ops, attempt)
            except BaseException:
                for forget in reversed(undo):  # else the graph of a worker has what its session has not
                    forget()
                raise
        except (WriteConflict, TooLarge, GraphError) as error:  # nothing was committed
            conflict = error
            names = self._torn.note(attempt)
        finally:
            if attempt is not None and attempt.live is not None:
                attempt.live.give_back()
        if isinstance(conflict, TooLarge | GraphError):  # as if the body had raised it
            why = conflict.of(claim.spec.task_id) if isinstance(conflict, TooLarge) else conflict
            failed = self.invoker.bodies.failed(claim, why)
            self._torn.check(claim, names, failed)
            return self._finish(claim, None, failed)
        if conflict is not None:
            return self._conflict(claim, conflict, names)
        if self._watched or type(outcome) is not Done:
            self.announcer.ended(claim, outcome)
        held, self._holds = self._holds, self.cuts.after(outcome, not self._running)
        return self._going_on(claims, held)

    # --- rounds: see rounds.py ---------------------------------------------------------

    def _round_here(self, end: RoundEnd) -> None:
        """Commit a round of the body that runs in this thread."""
        try:
            _, answer = self._between.commit(end, 0, self._commit)
            if answer.version:
                self._holds = self._between.cut(end)
        except BaseException as error:  # noqa: BLE001  raised again once the body is left
            answer = Answer(leave=Left(error))
        resume(end, answer)

    def _round_elsewhere(self, end: RoundEnd) -> list[Claim]:
        """Commit a round of a body that waits for it."""
        number = end.attempt.claim.number
        running = self._running.get(number)
        if running is None:  # the attempt is over, and has been told so
            return self._claim()
        try:
            claims, answer = self._between.commit(end, self._unused(), self._commit)
            held = self._holds
            if answer.version:
                self._holds = self._between.cut(end)
        except BaseException as error:
            resume(end, Answer(leave=Left(error)))
            raise
        self._between.rest(end, answer)
        return self._going_on(claims, held)

    def _left(self, claim: Claim, attempt: Attempt | None, error: BaseException | None) -> list[Claim]:
        """Release the claim of a body that has left its loops between two rounds."""
        names = self._torn.note(attempt)
        if attempt is not None and attempt.live is not None:
            attempt.live.give_back()
        if isinstance(error, WriteConflict):
            return self._conflict(claim, error, names)
        if error is not None:
            raise error
        return self._again(claim, claim.spec.crashes)

    def _going_on(self, claims: list[Claim], held: bool) -> list[Claim]:
        """Return what is started now: nothing while a cut is due, what was held back once it is taken."""
        if self._holds:
            return self._hand_back(claims) if claims else []
        return self._claim() if held else self._with_bodies(claims)

    def _commit(self, ops: list[Op], attempt: Attempt | None = None) -> list[Claim]:
        if not self._free.met_coroutines:
            self.cuts.before_commit(ops, attempt)
            return self.session.commit(ops)
        limit = ops[-1][1]  # each transition of a run ends with a claim
        self.cuts.before_commit(ops, attempt)
        claims = self.session.commit(ops)
        self._free.got(len(claims), limit)
        return claims

    def _claim(self) -> list[Claim]:
        """Claim for the free slots, in a transition of its own."""
        session = self.session
        if not self._may_claim():
            return []
        if self._running and not session.has_ready() and session.due() is None:
            return []
        return self._with_bodies(self._commit([("claim", self._unused())]))

    def _may_claim(self) -> bool:
        return self._unused() > 0 and self.session.status == "running"

    def _unused(self, claimed: Sequence[Claim] = ()) -> int:
        """Return how many attempts may start now, beside these."""
        return 0 if self.inbox.stopping or self._holds else self._free.left(claimed)

    def _with_bodies(self, claims: list[Claim]) -> list[Claim]:
        """Pass on at once groups that are through and tasks that are not taken."""
        if len(claims) == 1 and claims[0].spec.execution_strategy == "direct":  # the hot path
            return claims
        found: list[Claim] = []
        while claims:
            claim = claims.pop(0)
            if claim.spec.execution_strategy != "direct":
                ops, claim = without_body(self.graph, self.session, claim, self.settings.in_doubt)
                if ops:
                    # a slot is free for all that follows, not for this claim's own successor alone
                    claims += self._commit([*ops, ("claim", self._unused([*found, *claims]))])
                    continue
            found.append(claim)
        return found

    def _conflict(self, claim: Claim, conflict: WriteConflict, names: list[str]) -> list[Claim]:
        spec = claim.spec
        lost = self._free.loses(spec.key)
        failed = Failed(f"WriteConflict: {conflict}", conflict, retry=False)
        if lost + self.invoker.bodies.lapsed.races[spec.task_id, spec.cycle] > CONFLICT_BUDGET:
            conflict.ids["task"] = spec.task_id
            self._torn.check(claim, names, failed)
            return self._finish(claim, None, failed)
        if names:
            raise GoBack(claim, failed, names)
        log.info("%s; task %s runs again", conflict.message, spec.task_id)
        return self._again(claim, spec.crashes)

    def _again(self, claim: Claim, crashes: int) -> list[Claim]:
        """Run the same spec once more, before all others of its priority."""
        claims = self._commit([("release", claim.spec.key, crashes), ("claim", self._unused())])
        held, self._holds = self._holds, self.cuts.poll(idle=not self._running)
        return self._going_on(claims, held)


class RunHost:
    """A run, as seen from its tasks."""

    def __init__(
        self, graph: TaskGraph, session: Session, home: CheckpointPlace, announcer: Announcer, inbox: Inbox,
        *, context: ExecutionContext | None = None, execution: str = "", keeps: bool = True,
        random: bool = True,
    ) -> None:  # fmt: skip
        self.execution_context = context  # None: the caller has it, in another process
        self.session_id = session.id
        self.execution = execution or session.id
        self._graph = graph
        self._session = session
        self._home = home
        self._announcer, self._inbox = announcer, inbox
        self._keeps = keeps  # False: nothing of the session outlives the process
        self.keeps_random = random and keeps
        self._pending: tuple[int, frozenset[str]] = (-1, frozenset())  # as of a transition

    def commit_round(self, end: RoundEnd) -> None:
        self._inbox.commit(end)

    def look_again(self) -> None:
        self._inbox.knock()

    def task_of(self, name: str) -> Task | None:
        node = self._graph.nodes.get(name)
        return node if isinstance(node, Task) else None

    def is_made(self, name: str) -> bool:
        return name in self._graph.made

    def is_join(self, name: str) -> bool:
        route = self._graph.routes.get(name)
        return route is not None and route.waits

    def successors_of(self, name: str) -> Sequence[str]:
        return self._graph.routes[name].forward

    def progress(self, task: str, done: float, total: float | None) -> None:
        self._announcer.emit("task_progress", task, done=done, total=total)

    def reserve(self, task: str, metadata: dict[str, Any], storage: str | None = None) -> PendingCheckpoint:
        """Return a handle whose path is known before the checkpoint is there."""
        prepared = self._reserved(metadata)
        if storage is not None:
            prepared = replace(prepared, path=path_at(storage, self._home.store, prepared.path))
        return PendingCheckpoint(prepared.path, prepared)

    def _reserved(self, metadata: dict[str, Any]) -> CheckpointMetadata:
        state = self._session.known()
        return self._home.reserve(state.steps + 1, metadata, state.start_node)

    def code_of(self, task: Task, spawner: str, before: tuple[str, ...]) -> Cell:
        """Return a task made at run time, as the session keeps it."""
        made = (task, spawner, before)
        record: Cell = pack_task(*made) if self._keeps else Live(made)
        known = self._made_before(task.name)
        if known is not None and not same_task(known, record) and self._is_pending(task.name):
            raise made_differently(task.name)  # what is pending would run with what is new
        return record

    def _made_before(self, name: str) -> Cell | None:
        return self._session.known().tasks.get(name)

    def _is_pending(self, task: str) -> bool:
        """Return True if it is pending; asked once for all that an attempt makes, again before a refusal."""
        transition = self._transition
        if self._pending[0] != transition or task in self._pending[1]:
            specs = self._session.known().specs
            self._pending = transition, frozenset(spec.task_id for spec in [*specs.values()])
        return task in self._pending[1]

    @property
    def _transition(self) -> int:
        """The number of the session's last one, as far as it is known here."""
        return self._session.known().sequence

    @property
    def stopping(self) -> bool:
        return self._inbox.stopping
