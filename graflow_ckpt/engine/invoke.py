"""Invoking a body: arguments in, Outcome out, wherever the body has to run.

Also what becomes of a spec that has no body to run, by how it was scheduled:

pass    a group is through: its successors are told
skip    a task that is not taken: what only it leads to is not taken either
jump    a join that is not taken, because branches jump past it: the session continues where they jump to
lost    a group with too few successes: it fails, like a body that raises
again   a group that had failed the session, which continues: it waits for its lost members once more
doubt   its worker died while it ran: its task says what then, or an answer of the user
left    the user has answered to continue without it
failed  the user has answered that it has failed

Or that must not run: a task that came round too often, a group with too few successes.

A body runs in the caller's thread if it is alone; else on a thread, on an event loop (`async def`) or in a
child process (`isolation="process"`). A body's exception ends here and becomes a Failed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.values.codec import decode, to_cell
from graflow_ckpt.checkpoint.values.pickles import check_picklable, live_bytes, load_live
from graflow_ckpt.core import errors
from graflow_ckpt.core.decide import given_up, in_doubt, pass_on
from graflow_ckpt.core.facts import RESULT, Cancelled, Cell, Claim, Done, Failed, Op, Outcome, TaskSpec, new
from graflow_ckpt.core.graph import Route, TaskGraph
from graflow_ckpt.core.state import NONE, SessionState
from graflow_ckpt.core.task import Group, OnInterrupted, Task
from graflow_ckpt.engine.announcer import Account
from graflow_ckpt.engine.body.attempt import Attempt
from graflow_ckpt.engine.body.bind import MISSING, SPREAD, Binding, bind, fill, is_coroutine
from graflow_ckpt.engine.body.live import checking
from graflow_ckpt.engine.body.random_state import look
from graflow_ckpt.engine.body.rounds import LeaveRounds, place_of
from graflow_ckpt.engine.body.task_context import Host, TaskExecutionContext
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.sessions.protocol import Session

if TYPE_CHECKING:
    from graflow_ckpt.engine.body.coroutines import Loop


class Running:
    """An attempt that runs elsewhere."""

    __slots__ = ("attempt", "claim", "deadline", "kill", "killed", "posted")

    def __init__(self, claim: Claim, attempt: Attempt | None, deadline: float | None = None) -> None:
        self.claim = claim
        self.attempt = attempt
        self.deadline = deadline
        self.kill: Callable[[], None] | None = None  # ends the code, where that can be done
        self.killed = False
        self.posted = False  # the body has ended, and its outcome is on its way

    def prolong(self, route: Route) -> float:
        """Begin the time of a round: each has that of an attempt. Return when it is over."""
        assert route.options.timeout is not None
        self.deadline = monotonic() + route.options.timeout
        return self.deadline

    def is_between_rounds(self) -> bool:
        """Return True if it waits for the commit of a round, or has begun another one since."""
        waits = self.attempt is not None and self.attempt.waiting is not None
        return waits or (self.deadline is not None and self.deadline > monotonic())

    def has_loans(self) -> bool:
        live = None if self.attempt is None else self.attempt.live
        return live is not None and bool(live.on_loan())

    def is_in_rounds(self) -> bool:
        """Return True if it comes to the end of a round, where what it has on loan counts as returned."""
        loops = None if self.attempt is None else self.attempt.loops
        return loops is not None and bool(loops.open)

    def ends_by(self, kill: Callable[[], None]) -> None:
        self.kill = kill

    def has_posted(self) -> None:
        self.posted = True

    def end(self, error: errors.GraflowError) -> None:
        """End the attempt: fence it, and end its code if that is possible."""
        if self.attempt is not None:
            self.attempt.end(error)
        if self.kill is not None:
            self.killed = True
            self.kill()

    def time_out(self, timeout: float | None) -> errors.TaskTimeout:
        """End the attempt as overdue; its thread, if it has one, gets the error in its next ctx call."""
        task = self.claim.spec.task_id
        error = errors.TaskTimeout(
            f"Task {task!r} passed its timeout of {timeout} s.",
            hint="" if self.kill else "Its thread cannot be ended; with isolation='process' its code can.",
            task=task,
        )
        self.end(error)
        return error


class Lapsed:
    """Counts that the state of a session that went back does not have: by task and cycle, how often."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, int]] = Counter()  # that failed
        self.races: Counter[tuple[str, int]] = Counter()  # that were lost
        self._places: dict[tuple[str, int], list[int]] = {}  # where loops were then

    def __bool__(self) -> bool:
        return bool(self._places)

    def count(self, claim: Claim, *, raised: bool) -> None:
        """Count an attempt after which the session goes back."""
        at = claim.spec.task_id, claim.spec.cycle
        (self.attempts if raised else self.races)[at] += 1
        self._places[at] = place_of(claim.rounds)

    def came_to(self, spec: TaskSpec, where: str) -> None:
        """Forget what was counted of a body that has come further than it was then."""
        at = spec.task_id, spec.cycle
        if at in self._places and place_of(where) > self._places[at]:
            del self._places[at]
            self.attempts.pop(at, None)
            self.races.pop(at, None)

    def attempts_of(self, spec: TaskSpec) -> int:
        return self.attempts[spec.task_id, spec.cycle]


NOTHING = Done(NONE)

_NONE_TAKEN: dict[str, Any] = {}

Post = Callable[[tuple[Running, Outcome | BaseException]], None]


class Bodies:
    """The bodies of a run's tasks: what each is called with, and the outcome of its call.

    Middleware stands around each. Not here: the thread, loop or process in which a body runs.
    """

    def __init__(
        self, graph: TaskGraph, session: Session, settings: Settings, host: Host,
        bindings: dict[str, Binding], *, lapsed: Lapsed | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.session, self.settings, self.host = graph, session, settings, host
        self.lapsed = Lapsed() if lapsed is None else lapsed
        self._bindings = bindings
        self._check = settings.durability != "none"
        self._watch, self._traced = checking(), session.traced
        self._goes_on = settings.on_failure == "continue"
        self.call = self._with_middleware()

    def binding(self, name: str) -> Binding:
        task = self.graph.routes[name].node
        found = self._bindings.get(task.name)
        if found is None or found.task is not task:  # a loop makes a task of that name in each round
            assert isinstance(task, Task)
            found = self._bindings[task.name] = bind(self.graph, task)
        return found

    def attempt(self, claim: Claim) -> Attempt:
        spec = claim.spec
        # Whatever may follow its failure but the end has to know whether it has changed a live value.
        goes_on = spec.max_retries > 0 or self._goes_on or self.graph.routes[spec.task_id].lenient
        return Attempt(self.session.reader(spec.key), claim, self._check, goes_on, self._watch)

    def given(self, claim: Claim, binding: Binding) -> dict[str, Any] | None:
        """Return the arguments of a call that gave them all, to a body that needs nothing else; else None."""
        cell = claim.spec.task_data
        if not isinstance(cell, bytes) or binding.context is not None or self.settings.middleware:
            return None
        try:
            data = decode(cell)
        except errors.CheckpointError:  # raised again where the body is called
            return None
        spread = type(data) is dict and SPREAD in data
        given: dict[str, Any] = data[SPREAD] if spread else {binding.data or "": data}
        return given if given.keys() == binding.parameters.keys() else None

    def arguments(
        self, claim: Claim, attempt: Attempt, binding: Binding, lent: Callable[[str], Any] | None = None
    ) -> dict[str, Any]:
        """Return what the body is called with; `lent` stands in for values of the channel."""
        data = MISSING if claim.spec.task_data is None else _open(claim.spec.task_data)
        given: dict[str, Any] = {}
        if type(data) is dict and SPREAD in data:
            given, data = data[SPREAD], MISSING
        values = attempt.values
        if not values.shares:  # all of them in one round trip
            values.prefetch(binding.reads(given if data is MISSING else (binding.data,)))

        def read(name: str) -> Any:
            if values.gave_nothing(name.removesuffix(RESULT)):
                return MISSING
            found = values.read(name)
            return MISSING if found is None else attempt.look(name, found, parameter=True)

        def own(name: str) -> Any:
            if values.read(name) is None:
                return MISSING
            return attempt.get(name, None, False) if lent is None else lent(name)

        arguments = fill(binding, claim.spec.task_id, data, read, own, given)
        if binding.context is not None:
            lapsed = self.lapsed.attempts_of(claim.spec) if self.lapsed.attempts else 0
            began = look() if self.host.keeps_random and binding.has_loops() else None
            arguments[binding.context] = TaskExecutionContext(attempt, self.host, lapsed, began=began)
        return arguments

    def ended(self, claim: Claim, attempt: Attempt, result: Any, error: BaseException | None) -> Outcome:
        """Return the outcome of a body that was called elsewhere."""
        try:
            return self.raised(claim, attempt, error) if error else self._done(claim, attempt, result)
        except Exception as refused:  # noqa: BLE001  what a body changed or returned
            return self.raised(claim, attempt, refused)

    def _with_middleware(self) -> Callable[..., Outcome]:
        if not self.settings.middleware:
            return self._call
        return lambda claim, attempt, *how: self.around(
            claim, attempt, lambda inner: self._call(inner, attempt, *how)
        )

    def around(self, claim: Claim, attempt: Attempt | None, body: Callable[[Claim], Outcome]) -> Outcome:
        """Call a body with the middleware around it."""
        call = body
        for middleware in reversed(self.settings.middleware):
            call = partial(middleware, call_next=call)
        try:
            return call(claim)
        except Exception as error:  # noqa: BLE001  what surrounds a body fails like one
            return self.raised(claim, attempt, error)

    def _call(
        self, claim: Claim, attempt: Attempt | None, binding: Binding, given: dict[str, Any] | None = None
    ) -> Outcome:
        try:
            if attempt is None:
                result = binding.func(**given) if given else binding.func()
                return NOTHING if result is None else Done(self._result(claim, result))
            result = binding.func(**self.arguments(claim, attempt, binding))
            return self._done(claim, attempt, result)
        except (Exception, LeaveRounds) as error:  # noqa: BLE001  a body
            return self.raised(claim, attempt, error)

    def _done(self, claim: Claim, attempt: Attempt, result: Any) -> Outcome:
        if isinstance(attempt.over, LeaveRounds):
            return attempt.over.left
        if attempt.over is not None and isinstance(attempt.over, errors.WorkflowCancelled):
            return Cancelled(attempt.over.message)  # a body that swallowed it
        changed = attempt.watch and attempt.watch.check()
        if changed:
            return self.failed(claim, changed)
        cell = NONE if result is None else self._result(claim, result)
        return new(Done, (cell, attempt.effects(cell)))

    def raised(self, claim: Claim, attempt: Attempt | None, error: BaseException) -> Outcome:
        """Return the outcome of what a body, or the middleware around it, has raised."""
        over = None if attempt is None else attempt.over
        if isinstance(over, LeaveRounds):
            return over.left
        if isinstance(over, errors.WorkflowCancelled):
            return Cancelled(over.message)
        if isinstance(error, LeaveRounds):  # fenced, or too late
            error = over or error
        changed = attempt and attempt.watch and attempt.watch.check(error)
        return self.failed(claim, changed or error, attempt)

    def _result(self, claim: Claim, result: Any) -> Cell:
        cell = to_cell(result)
        if self._check and not isinstance(cell, bytes):
            check_picklable(result, claim.spec.task_id + RESULT)
        return cell

    def failed(self, claim: Claim, error: BaseException, attempt: Attempt | None = None) -> Failed:
        """Return the outcome of an exception, with the time at which a retry may start."""
        spec = claim.spec if attempt is None else attempt.claim.spec
        due, retries = 0.0, spec.retry_count + self.lapsed.attempts_of(spec)
        again = retries < spec.max_retries and not isinstance(error, errors.ReadOnlyChanged)
        if again:
            backoff = self.graph.routes[spec.task_id].options.backoff
            if backoff.base:
                due = self.session.clock() + backoff.delay(retries, spread())
        return Failed(Account.of(error, traced=self._traced).text, error, due, retry=again)


class Invoker:
    """Runs bodies for one run: in the thread that commits, on another, on an event loop, in a process."""

    def __init__(self, bodies: Bodies, *, loop: Loop | None = None) -> None:
        self.bodies = bodies
        self.graph, self.session, self.settings = bodies.graph, bodies.session, bodies.settings
        self.running: dict[int, Running] = {}  # bodies that run elsewhere, by the numbers of their claims
        self._alone: Attempt | None = None  # the latest that ran in the thread that commits
        self._threads = Threads(f"graflow-{bodies.session.id}")
        self._loop = loop

    # --- in this thread ----------------------------------------------------------------

    def inline(self, claim: Claim) -> Binding | None:
        """Return the binding of a claim whose body may run in the thread that commits."""
        if claim.spec.execution_strategy != "direct":  # it has none
            return None
        binding = self.bodies.binding(claim.spec.task_id)
        return binding if binding.inline else None

    def on_loop(self, name: str) -> bool:
        """Return True if the body is a coroutine that no thread waits for."""
        task = self.graph.nodes[name]
        if not isinstance(task, Task) or task.options.isolation == "process" or self.settings.middleware:
            return False
        return is_coroutine(task.func)

    def call(self, claim: Claim, binding: Binding) -> tuple[Attempt | None, Outcome]:
        """Run the body here."""
        bodies = self.bodies
        given = _NONE_TAKEN if binding.plain else bodies.given(claim, binding)
        attempt = self._alone = bodies.attempt(claim) if given is None else None
        return attempt, bodies.call(claim, attempt, binding, given)

    def begun(self) -> set[int]:
        """Return the specs whose bodies run elsewhere now. Callable from any thread."""
        return {running.claim.spec.key for running in [*self.running.values()]}

    def fence(self, error: errors.GraflowError) -> None:
        """End all that runs: its next ctx call raises `error`. Callable from any thread."""
        for running in list(self.running.values()):
            running.end(error)
        if self._alone is not None:
            self._alone.end(error)

    # --- elsewhere ---------------------------------------------------------------------

    def start(self, claim: Claim, post: Post) -> Running:
        """Have the body run elsewhere; its outcome is posted."""
        binding = self.bodies.binding(claim.spec.task_id)
        options = self.graph.routes[claim.spec.task_id].options
        attempt = self.bodies.attempt(claim)
        deadline = None if options.timeout is None else monotonic() + options.timeout
        running = Running(claim, attempt, deadline)
        if options.isolation == "process":
            self._start_child(running, binding, post)
        elif is_coroutine(binding.func):
            self._start_coroutine(running, binding, post)
        else:
            self._on_thread(running, partial(self.bodies.call, claim, attempt, binding), post)
        return running

    def _on_thread(self, running: Running, call: Callable[[], Outcome], post: Post) -> None:
        def job() -> None:
            try:
                post((running, call()))
            except BaseException as error:  # noqa: BLE001  SystemExit and its like are for the caller's thread
                post((running, error))

        self._threads.submit(job)

    def _start_coroutine(self, running: Running, binding: Binding, post: Post) -> None:
        claim, attempt = running.claim, running.attempt
        assert attempt is not None
        if self._loop is None:
            from graflow_ckpt.engine.body.coroutines import Loop

            self._loop = Loop()
        loop = self._loop

        def outcome(result: Any, error: BaseException | None) -> Outcome | BaseException:
            if isinstance(error, SystemExit | KeyboardInterrupt):  # for the caller's thread
                return error
            return self.bodies.ended(claim, attempt, result, error)

        def begin(ended: Callable[[Any, BaseException | None], None]) -> None:
            coroutine = binding.func(**self.bodies.arguments(claim, attempt, binding))
            running.ends_by(loop.submit(coroutine, ended))

        def waited_for(claim: Claim) -> Outcome:
            ended: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
            begin(lambda *found: ended.put(found))
            found = outcome(*ended.get())
            if isinstance(found, BaseException):
                raise found
            return found

        if self.settings.middleware:
            self._on_thread(running, partial(self.bodies.around, claim, attempt, waited_for), post)
            return
        try:
            begin(lambda *found: post((running, outcome(*found))))
        except Exception as error:  # noqa: BLE001  what a body is to be given
            post((running, self.bodies.raised(claim, attempt, error)))

    def _start_child(self, running: Running, binding: Binding, post: Post) -> None:
        from graflow_ckpt.engine.child.process import Child, FromChannel

        child = Child(self.session, self.session.reader(running.claim.spec.key), self.bodies.host)
        running.ends_by(child.kill)

        def body(claim: Claim) -> Outcome:
            attempt = running.attempt
            assert attempt is not None
            try:
                arguments = self.bodies.arguments(claim, attempt, binding, FromChannel)
                return child.run(claim, binding, attempt, arguments, self.bodies.failed)
            except Exception as error:  # noqa: BLE001  what does not cross, in either direction
                return self.bodies.raised(claim, attempt, error)

        self._on_thread(running, partial(self.bodies.around, running.claim, running.attempt, body), post)

    def close(self) -> None:
        """End the run: fence what still runs."""
        for one in self.running.values():
            one.end(errors.Fenced("The session has stopped or gone back.", session=self.session.id))
        self._threads.close()
        if self._loop is not None:
            self._loop.close()


def _open(cell: Cell) -> Any:
    """Return task data for one attempt: a copy of its own, so that a retry and a cut have it as it was."""
    return decode(cell) if isinstance(cell, bytes) else load_live(live_bytes(cell.value))


def spread() -> float:
    """Return a random number, and leave the session's random state alone."""
    return int.from_bytes(os.urandom(4), "little") / 2**32


Job = Callable[[], None]


class Threads:
    """Hands jobs to idle threads and starts a thread when none is idle.

    They are daemons and few: a body that does not come back after its deadline keeps its thread, and must
    keep neither the run nor the interpreter from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, job: Job) -> None:
        with self._lock:
            start = self._idle == 0
            if start:
                self._count += 1
                number = self._count
            else:
                self._idle -= 1
        self._jobs.put(partial(copy_context().run, job))  # as in the caller's thread
        if start:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End idle threads now, busy ones after their job."""
        for _ in range(self._count):
            self._jobs.put(None)


# --- without a body ------------------------------------------------------------------------


def without_body(
    graph: TaskGraph, session: Session, claim: Claim, answers: Sequence[tuple[str, str]] = ()
) -> tuple[list[Op] | None, Claim]:
    """Return what is committed for a spec instead of running it; or None, and the claim to be run."""
    spec = claim.spec
    match spec.execution_strategy:
        case "again":
            lost = claim._replace(spec=spec._replace(execution_strategy="lost"))
            return _wait_again(graph, session.known(), claim), lost
        case "doubt":
            choice = graph.routes[spec.task_id].options.on_interrupted
            if choice == "ask":
                choice = _answered(dict(answers).get(spec.task_id))
            return in_doubt(graph, claim, choice), claim
        case "left":
            return in_doubt(graph, claim, "skip"), claim
        case "failed":
            return given_up(claim), claim
        case "lost":
            return None, claim
        case _:
            return pass_on(graph, claim), claim


def _answered(answer: str | None) -> OnInterrupted:
    match answer:
        case "rerun" | "skip" | "fail":
            return answer
        case _:
            return "ask"


def _wait_again(graph: TaskGraph, state: SessionState, claim: Claim) -> list[Op] | None:
    """Return the ops to wait for a group's lost members, which run again; None if too few can come."""
    failed = graph.nodes[claim.spec.task_id]
    assert isinstance(failed, Group)
    ops: list[Op] = [("end", claim.spec.key, claim.number, "dropped")]
    left = {*state.specs} - {claim.spec.key, *state.dead}
    waiting = {spec.task_id for spec in [*state.specs.values()] if spec.key in left}
    failed_last = state.errors.keys() - state.passed.keys()
    through = (state.completed.keys() | state.passed.keys()) - failed_last - state.skipped.keys()
    lost = [name for name in graph.nodes if name in failed_last and name not in waiting]
    if failed.name not in lost:
        return ops  # a later round has passed it: what follows it must not run once more
    groups = [n for n in graph.nodes.values() if isinstance(n, Group) and n.inside <= failed.inside]
    # what is inside a group that is through comes too late: it would open a gate that no task fills
    unsettled = failed.inside.difference(*(group.inside for group in groups if group.name in through))
    tasks = [name for name in lost if name in unsettled]
    for node in groups:
        if (name := node.name) in lost and node.inside & unsettled:
            ok = len(through.intersection(node.members))
            coming = sum(
                m not in through and any(graph.is_ancestor(n, m) for n in tasks) for m in node.members
            )
            whole = node.policy.need(len(node.members))
            need = -1 if 0 < whole <= ok else whole - ok
            ops += [("again", name), ("expect", name, 0, coming, need)]
            if need > coming or not coming:
                return None  # members that were skipped, or jumped elsewhere, will not come: it fails again
            if need < 0 < whole and name == failed.name:  # under another policy it would have been through
                return pass_on(graph, claim)
    return [*ops, *(graph.routes[name].enqueue() for name in tasks)]


def refused(graph: TaskGraph, claim: Claim) -> Failed | None:
    """Return the failure of a spec that must not run, or None."""
    spec = claim.spec
    if not spec.cycle and spec.execution_strategy != "lost":
        return None  # the first time: no limit is below one
    limit = graph.routes[spec.task_id].options.max_cycles
    error: errors.GraflowError
    if spec.execution_strategy == "lost":
        gate = f"group {spec.task_id!r}"
        error = errors.GroupFailed(f"Fewer members of {gate} succeeded than it needs.", task=spec.task_id)
    elif limit is not None and spec.cycle >= limit:
        error = errors.MaxCyclesExceeded(
            f"Task {spec.task_id!r} was to run for the {spec.cycle + 1}th time; max_cycles={limit}.",
            task=spec.task_id,
        )
    else:
        return None
    return Failed(f"{type(error).__name__}: {error}", error, retry=False)
