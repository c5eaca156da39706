"""Cuts: when a checkpoint is taken, and what a commit has to leave on the disk.

Three things lead to a cut: a request that was committed, a policy that is due, and, with a
journal, a commit that no record can hold. A cut of live values waits until nothing is on loan;
until then no new task is claimed. A save that fails is an event; a journal that fails stops
the session.

    journal    every commit is a record, until one is larger than a record may be or changed a
               value that is still on loan elsewhere: then a cut is due, and what is committed
               until that cut is durable with it, not before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.journal import CellPickle
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.record import Bundles, Unrecordable, plain, record, too_large
from graflow_ckpt.checkpoint.retention import BUDGET
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.errors import CheckpointError, Fenced, GraflowError, NoJournal, ServerError
from graflow_ckpt.core.facts import RESULT, Claim, Done, Failed, Op, Outcome, Request
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import Budget, Since
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.random_state import capture_random, remember_random, restore_random
from graflow_ckpt.engine.home import Home
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.stores import keeps_journal

log = logging.getLogger("graflow_ckpt.checkpoint")

Emit = Callable[..., None]

LAST = frozenset({"end", "failure", "signal"})
"""Why the last cut of a run is taken."""


class Cutter:
    """Decides on cuts and takes them, for one session."""

    def __init__(
        self,
        graph: TaskGraph,
        session: MemorySession,
        settings: Settings,
        home: Home,
        emit: Emit,
        *,
        on_saved: Callable[[CheckpointMetadata], None],
        begun: Callable[[], Container[int]],
    ) -> None:
        self.graph = graph
        self.session = session
        self.settings = settings
        self.home = home
        self._waiting = False  # a cut is due and something is on loan
        self._emit = emit
        self._on_saved = on_saved
        self._begun = begun  # the specs that run beside a cut
        self._requests: list[Request] = []
        self._policy_due = False
        self._watches = settings.policy.watches and settings.durability != "none"
        self._auto = settings.durability == "auto"
        self._exposure = Exposure(Budget(), session.state.steps)
        self.recorder = Recorder(graph, session, settings, home, self._exposure)
        self._before: tuple[int, Callable[[], None]] | None = None  # an attempt, and how to undo its draws

    # --- around a commit ---------------------------------------------------------------

    def start(self, undriven: Sequence[tuple[int, float, list[Op]]]) -> None:
        """Record commits from now on; first what was changed while no run drove the session."""
        if not self.recorder.records:
            return
        try:
            self.recorder.start(undriven)
        except Unrecordable:
            self.save("journal", None, None)
            self.recorder.start()

    def starts(self, number: int, alone: bool) -> None:
        """Keep the random state before an attempt that runs alone: beside others its user is unknown."""
        kept = self.settings.rng and self.home.lease is not None
        self._before = None
        if alone and kept:
            recorded = self.session.state.rng if self.recorder.records else None  # of the last commit: free
            undo = partial(restore_random, recorded) if isinstance(recorded, bytes) else remember_random()
            self._before = (number, undo)

    def failed(self, claim: Claim, outcome: Failed) -> None:
        """Restore the random state after a failure that no retry follows."""
        before = self._before
        if before is not None and before[0] == claim.number and not outcome.is_tried_again(claim.spec):
            before[1]()

    def before_commit(self, ops: list[Op], attempt: Attempt | None = None) -> None:
        """Add the random state to a commit: with a journal it is part of what a commit has changed."""
        if not self.recorder.records:
            return
        self.recorder.note_attempt(attempt)
        if self.settings.rng and ops[0][0] not in ("claim", "round"):  # a loop keeps its own
            state = capture_random()
            if state != self.session.state.rng:  # which a commit that is refused has not changed
                ops.append(("rng", state))

    def after(self, outcome: Outcome, idle: bool) -> bool:
        """Cut after a commit if one is due and nothing is on loan; return True if one waits for that."""
        if isinstance(outcome, Done):
            if outcome.effects.request is not None:
                self._requests.append(outcome.effects.request)
            if self._auto and not self.recorder.records:
                self.recorder.open_gap(next(reversed(self.session.state.completed), "") + RESULT)
        return self.poll(idle)

    def after_round(self, request: Request | None, idle: bool) -> bool:
        """Cut after the commit of a round, as after that of a task."""
        self._exposure.round()
        if request is not None:
            self._requests.append(request)
        if self._auto and not self.recorder.records:
            self.recorder.open_gap("")
        return self.poll(idle)

    def poll(self, idle: bool) -> bool:
        """Cut if a policy has become due, or one that is due can be taken now. True: one waits."""
        if self._watches and not self._policy_due:
            self._policy_due = self.settings.policy.due(self._exposure.since(self.session.state.steps, idle))
        if self._requests or self._due():
            self._cut_if_still()
        return self._waiting

    def _due(self) -> bool:
        """Return True if a policy, the journal or the budget wants a checkpoint now."""
        exposure = self._exposure
        return self._policy_due or exposure.must or (self._auto and exposure.due(self.session.state.steps))

    def timer(self) -> float | None:
        """Return the seconds until a policy wants to be asked although nothing is committed."""
        steps = self.session.state.steps
        times = [self._exposure.left(steps) if self._auto and not self._exposure.must else None]
        if self._watches and not self._waiting:
            times.append(self.settings.policy.left(self._exposure.since(steps)))
        left = min((time for time in times if time is not None), default=None)
        return None if left is None else max(0.001, left)

    # --- cutting -----------------------------------------------------------------------

    def _cut_if_still(self) -> None:
        with self.session.still() as still:
            asked = bool(self._requests or self._policy_due or self._exposure.must)
            self._waiting = not still and (asked or self._exposure.holds())
            if still:
                requests, self._requests = self._requests, []
                for request in requests:
                    self._cut("request", request.metadata, request.handle)
                if self._due():  # still: a request may have sent its checkpoint elsewhere
                    cause = BUDGET if self._auto else "journal"
                    self._cut("policy" if self._policy_due else cause, {"auto": True})

    def now(self, user: dict[str, Any], path: str | None = None) -> Any:
        """Cut at once, outside of a run's commits, in any thread; None if something is on loan."""
        with self.session.still() as still:
            return self.save("request", user, path) if still else None

    def final(self, cause: str) -> None:
        """Take the last cut of a run; a failure is an event here too."""
        with self.session.still() as still:
            if still:
                self._cut(cause, None)
            else:
                log.warning("%s is on loan: the last checkpoint stands", ", ".join(self.session.on_loan()))

    def _cut(self, cause: str, user: dict[str, Any] | None, handle: Any = None) -> None:
        own = handle is None or self.home.finds(handle.path)
        self._policy_due = self._policy_due and not own
        began = monotonic()
        try:
            metadata = self.save(cause, user, None if handle is None else handle.path)
        except Fenced:
            raise
        except (CheckpointError, OSError) as error:
            if handle is not None:
                handle.failed(error)
            self._failed(error, cause, monotonic() - began, own)
            return
        if handle is not None:
            handle.written(metadata)

    def _failed(self, error: Exception, cause: str, seconds: float, own: bool) -> None:
        """Report a failed save; end the session if a journal waits for it, or with on_save_failure="fail"."""
        if own:
            self._exposure.failed(seconds, self.session.state.steps, counts=cause == BUDGET)
        self.home.tell_failed(self._emit, error, cause, seconds)
        if (own and self._exposure.must) or self.settings.on_save_failure == "fail":
            fatal = error if isinstance(error, GraflowError) else CheckpointError(str(error))
            self.session.close(fatal)
            raise fatal

    def save(self, cause: str, user: dict[str, Any] | None, path: str | None) -> Any:
        began = monotonic()
        state = self.session.state
        snapshot = capture(state, capture_random() if self.settings.rng else None, self._begun())
        metadata = self.home.cut(self.graph, snapshot, cause, user, path, self.settings.keep)
        seconds = monotonic() - began
        if self.home.resumable is metadata:  # else a resume does not have it
            self._exposure.saved(seconds, state, counts=cause == BUDGET)
            if self.session.recorder is not None:
                self.recorder.follow(state.sequence)
        self.home.tell_saved(self._emit, metadata, cause, seconds, self.settings.slow_save)
        self._on_saved(metadata)
        self.home.prune(self.settings.keep, emit=self._emit, last=cause in LAST)
        return metadata

    @property
    def unsaved(self) -> str:
        """The reason that the run's end is not durable; "" if it is, or if nothing durable was asked for."""
        return "" if self.recorder.has_all or self.home.save_error is None else str(self.home.save_error)


class Recorder:
    """Writes a record of each commit of a run into the session's journal, while records can hold the changes.

    A change that none can hold opens a gap: the journal has nothing of what follows, until a checkpoint does.
    """

    def __init__(
        self, graph: TaskGraph, session: MemorySession, settings: Settings, home: Home, exposure: Exposure
    ) -> None:
        self._graph = graph
        self._session = session
        self._home = home
        self._exposure = exposure
        self._auto = settings.durability == "auto"
        self.records = settings.recorded and (not self._auto or keeps_journal(home.store.url))
        self._bundles: Bundles  # from `start` on
        self._replaced = session.replaced  # when the bundles were looked at
        self._loans: Collection[str] = ()  # of the attempt that commits
        self._in_hand: Collection[str] | None = None  # live values that it has seen
        self._warned: set[str] = set()
        self._previous = 0  # the transition of the cut before the last: its journal is kept until the next

    @property
    def has_all(self) -> bool:
        """True if the journal holds all that was committed."""
        return self.records and not self._exposure.gap

    def start(self, undriven: Sequence[tuple[int, float, list[Op]]] = ()) -> None:
        """Record these transitions, then each commit; raise Unrecordable before any if one does not fit."""
        payloads = [_payload(sequence, now, plain(ops)) for sequence, now, ops in undriven]
        try:
            self._begin(undriven[0][0] - 1 if undriven else self._session.state.sequence)
            for payload in payloads:
                self._home.journal.append(payload)
        except NoJournal as error:
            if not self._auto:
                raise
            self.records = False
            log.warning("%s Checkpoints are saved instead.", error.message)
            return
        self._bundles = Bundles(self._session.state, stop=self._auto)
        self._session.record_with(self._record)

    def note_attempt(self, attempt: Attempt | None) -> None:
        """Note what the attempt that commits has in its hands: its own loans do not forbid a record."""
        live = None if attempt is None else attempt.live
        self._loans = () if live is None else live.on_loan()
        seen = () if live is None else live.seen
        self._in_hand = None if attempt is None else [*self._loans, *seen]

    def _record(self, state: SessionState, now: float, ops: Sequence[Op]) -> None:
        """Write one record per commit, under the session's lock."""
        if self._exposure.gap:
            self._bundles.forget(ops)
            return
        if self._replaced != self._session.replaced:
            self._bundles, self._replaced = Bundles(state, stop=self._auto), self._session.replaced
        try:
            with self._session.lending_nothing():
                kept = record(self._bundles, ops, self._is_elsewhere, self._in_hand)
            self._append(_payload(state.sequence, now, kept))
        except Unrecordable as why:
            name = why.name or next(reversed(state.completed), "") + RESULT
            if self._auto:
                self._append(journal.pack(state.sequence, now, [("gap", name, why.why)]))
            else:
                self._warn(name, why.why)
            self.open_gap(name)

    def follow(self, sequence: int) -> None:
        """Open a segment after the checkpoint; drop those before the previous checkpoint."""
        with self._gap_if_not_written():
            self._begin(sequence)
            self._home.journal.drop(self._previous)
            self._previous = sequence

    def _begin(self, after: int) -> None:
        self._home.journal.begin(after, self._home.open(), self._home.keyring)

    def _append(self, payload: bytes) -> None:
        with self._gap_if_not_written():
            self._home.journal.append(payload)
            self._exposure.recorded(len(payload))

    @contextmanager
    def _gap_if_not_written(self) -> Iterator[None]:
        """Open a gap if the journal cannot be written with "auto"; else the session stops here."""
        try:
            yield
        except Fenced:
            raise
        except (CheckpointError, ServerError, OSError) as error:
            if not self._auto:
                raise
            log.error("%s A checkpoint is to take the place of the journal.", error)
            self.open_gap("")

    def open_gap(self, name: str) -> None:
        """Open a gap. Nothing is claimed in it if a task must not run twice, or a journal was asked for."""
        tasks = (node for node in self._graph.nodes.values() if isinstance(node, Task))
        must = not self._auto or any(task.options.on_interrupted != "rerun" for task in tasks)
        self._exposure.open(name, must=must)

    def _is_elsewhere(self, name: str) -> bool:
        return self._session.on_loan_beside(name, int(name in self._loans))

    def _warn(self, name: str, why: str) -> None:
        """Warn once per value: it will be so at every commit."""
        if name not in self._warned:
            self._warned.add(name)
            log.warning(
                "the change of %r is %s: each time a checkpoint makes it durable",
                name,
                why,
                extra={"session": self._session.state.session},
            )


def _payload(sequence: int, now: float, ops: Sequence[Op]) -> bytes:
    """Return the record of a transition; raise Unrecordable if it is too large."""
    payload = journal.pack(sequence, now, ops)
    if len(payload) > journal.SIZE_LIMIT:
        op = max((op for op in ops if op[0] in ("put", "append", "end")), key=_weight, default=("", ""))
        raise too_large("" if op[0] == "end" else op[1], len(payload))
    return payload


def _weight(op: Op) -> int:
    cell = op[4] if op[0] == "end" and op[3] == "completed" else op[2]
    return len(cell.pickle) if isinstance(cell, CellPickle) else len(cell) if type(cell) is bytes else 0


LONGEST = 10_000
LARGEST = 64 << 20
"""Records, and bytes of records, after which a checkpoint takes the place of a journal."""

_ASK = 0.1  # seconds between two looks at what is on loan


class Exposure:
    """The commits that are not durable yet, and the time at which a checkpoint may make them so.

    With durability="auto" a commit whose change is too large for a record opens a *gap*: from it on the
    journal holds nothing, until a checkpoint closes the gap. A budget says when: saving takes a small share
    of the run's time, and a credit for values that no checkpoint of this run holds.

    A checkpoint waits until no value is on loan. While it waits nothing new is claimed, so waiting is paid
    like saving: when the budget is used up, tasks are claimed again, and the checkpoint is tried later.
    """

    def __init__(self, budget: Budget, steps: int) -> None:
        """Count from a session with so many steps, as from a cut."""
        self.gap = False
        self.must = False  # nothing is claimed before the gap is closed
        self._budget = budget
        self._began = self._cut_time = monotonic()
        self._cut_steps = steps
        self._spent = self._cost = 0.0
        self._opener = ""  # the value that has opened the gap
        self._saved: set[str] = set()
        self._records = self._bytes = 0
        self._rounds = 0
        self._held: float | None = None  # since when a checkpoint waits

    def open(self, name: str, *, must: bool) -> None:
        self.gap, self.must, self._opener = True, must, name

    def round(self) -> None:
        self._rounds += 1

    def recorded(self, size: int) -> None:
        self._records += 1
        self._bytes += size

    def saved(self, seconds: float, state: SessionState, *, counts: bool) -> None:
        """Note that a checkpoint holds all; `counts`: it was taken by the budget, which pays for it."""
        self.failed(seconds, state.steps, counts=counts)
        self.gap = self.must = False
        self._records = self._bytes = 0
        self._saved.update(state.values)

    def failed(self, seconds: float, steps: int, *, counts: bool) -> None:
        """Note that a checkpoint could not be saved: the next one has its time, too."""
        self._cut_steps, self._cut_time, self._rounds = steps, monotonic(), 0
        self._cost, self._held = seconds, None
        self._spent += seconds if counts else 0.0

    @property
    def wanted(self) -> bool:
        return self.gap or self._records >= LONGEST or self._bytes >= LARGEST

    def due(self, steps: int) -> bool:
        """Return True if a checkpoint is wanted, and the budget allows it; `steps`: of the session."""
        return self.wanted and self._budget.due(self.since(steps))

    def left(self, steps: int) -> float | None:
        """Return the seconds until it is due, or until a look whether it can be taken is due again."""
        if self._held is not None:
            return _ASK
        return self._budget.left(self.since(steps)) if self.wanted else None

    def holds(self) -> bool:
        """Return True if claims wait for a checkpoint that cannot be taken now."""
        now = monotonic()
        if self._held is None:
            self._held = now
        waited = now - self._held
        since = self.since(self._cut_steps + 1)
        if self._budget.due(since._replace(spent=since.spent + waited)):
            return True
        self._spent += waited
        self._held = None
        return False

    def since(self, steps: int, idle: bool = False) -> Since:
        """Return what there is to know for a policy, of a session with so many steps."""
        now, rounds = monotonic(), self._rounds
        more = steps - self._cut_steps + rounds
        first = not self._saved or self._opener not in self._saved
        return Since(
            more, now - self._cut_time, idle, now - self._began, self._spent, self._cost, more > 0, first,
            rounds,
        )  # fmt: skip
