"""ExecutionContext: the caller's handle on a session, under the names that users know.

A thin view: facts are read from the session, and every change is a transition of its own. Where the tables
are is the business of two collaborators: `session` commits and reads, `home` has the checkpoints. In this
process they are a MemorySession and a Home; in Redis a RedisSession and a SharedHome, and any process that
knows the session's id can hold a context of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.model import CheckpointMetadata, Document, check_metadata
from graflow_ckpt.checkpoint.program.program import unpack_code
from graflow_ckpt.checkpoint.snapshot import capture, restore
from graflow_ckpt.checkpoint.values.codec import apart, check_storable
from graflow_ckpt.checkpoint.values.pickles import collector_at_rest
from graflow_ckpt.core.errors import CheckpointError, InputsChanged, NoSession, SessionError
from graflow_ckpt.core.facts import RESULT, Cell, Op, TaskSpec, check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.policy import EveryN
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine import resuming
from graflow_ckpt.engine.adopt import standing_at
from graflow_ckpt.engine.body.attempt import digest_of
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.engine.body.random_state import capture_random
from graflow_ckpt.engine.cuts import Cutter
from graflow_ckpt.engine.home import Home
from graflow_ckpt.engine.resuming import Basis, Written
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.sessions.views import (
    InMemoryTaskQueue,
    MemoryChannel,
    RedisChannel,
    RedisTaskQueue,
    Tables,
    TaskQueue,
    ValueChannel,
)
from graflow_ckpt.stores import CheckpointPath, as_path, open_store, store_of
from graflow_ckpt.stores.places import path_at

if TYPE_CHECKING:
    from graflow_ckpt.engine.engine import Execution


class ExecutionContext:
    """One session of one graph."""

    def __init__(
        self,
        graph: TaskGraph,
        session_id: str | None = None,
        *,
        settings: Settings | None = None,
        store: str = "checkpoints",
        auto_checkpoint_interval: int | None = None,
    ) -> None:
        self.graph = graph
        self.settings = settings or Settings()
        if auto_checkpoint_interval is not None:
            self.settings = replace(self.settings, policy=EveryN(auto_checkpoint_interval))
        self.named = session_id is not None  # the user will come back for it
        if not self.named and self.settings.durability == "auto":
            self.settings = replace(self.settings, durability="checkpoint")
        self.session_id = check_session_id(uuid.uuid4().hex[:12] if session_id is None else session_id)
        self.session = MemorySession(SessionState(self.session_id))
        written = Written(self.settings.workflow, self.settings.program)
        self.home = Home(open_store(store), self.session_id, written)
        self.executed_by: type[Execution] | None = None  # None: by this process alone
        self.basis = Basis()
        self.created_at = time.time()
        self.checkpoint_metadata: dict[str, Any] = {}
        self.checkpoint_requested = False
        self.checkpoint_request_metadata: dict[str, Any] | None = None
        self.cutter: Cutter | None = None  # while a run is under way
        self.undriven: list[tuple[int, float, list[Op]]] = []  # transitions that no run has recorded yet
        self.started = False  # what is set before that is an input
        self.limit: int | None = None  # max_steps of the next execution, instead of the session's

    @classmethod
    def create(
        cls,
        graph: TaskGraph,
        start_node: str | None = None,
        *,
        session_id: str | None = None,
        max_steps: int | None = None,
        queue_backend: str = "memory",
        channel_backend: str = "memory",
        config: Mapping[str, Any] | None = None,
        auto_checkpoint_interval: int | None = None,
        settings: Settings | None = None,
        store: str = "checkpoints",
    ) -> ExecutionContext:
        """Return a new session that will start at `start_node`, or else with the tasks that nothing leads to.

        In Redis (`queue_backend="redis", channel_backend="redis"`) under an id that is known there: that one.
        """
        backend = one_backend(queue_backend, channel_backend)
        context = cls(
            graph, session_id, settings=settings, store=store,
            auto_checkpoint_interval=auto_checkpoint_interval,
        )  # fmt: skip
        if backend == "redis":
            from graflow_ckpt.engine.shared_context import made

            return made(context, start_node, max_steps, config, store)
        context.state.start_at((start_node,) if start_node else ())
        context.state.limit_to(max_steps)
        return context

    # --- facts -------------------------------------------------------------------------

    @property
    def found(self) -> Found | None:
        """The checkpoint that this session continues from."""
        return self.basis.found

    @property
    def replayed(self) -> int:
        """The number of journal records that follow the checkpoint."""
        return self.basis.replayed

    @property
    def state(self) -> SessionState:
        return self.session.state

    @property
    def start_node(self) -> str:
        return self.state.start_node

    @property
    def steps(self) -> int:
        return self.session.head.steps

    @property
    def max_steps(self) -> int | None:
        return self.session.head.max_steps

    @property
    def status(self) -> str:
        return self.session.head.status

    @property
    def completed_tasks(self) -> set[str]:
        return set(self.state.completed)

    @property
    def cycle_controller(self) -> CycleController:
        return CycleController(self.state)

    @property
    def cycle_counts(self) -> dict[str, int]:
        return self.cycle_controller.cycle_counts

    def get_next_task(self) -> str | None:
        """Return the task that would run next."""
        return next(iter(self.task_queue.get_pending_tasks()), None)

    # Any: whatever a task has returned.
    def get_result(self, task: str, default: Any = None) -> Any:
        """Return what a task returned when it last completed."""
        return self.channel.get(task + RESULT, default)

    def result(self) -> Any:
        """Return what the task that completed last returned."""
        last = next(reversed(self.session.known().completed), None)
        return None if last is None else self.get_result(last)

    @property
    def last_checkpoint_path(self) -> str | None:
        return self.home.last_path

    @property
    def last_save_error(self) -> Exception | None:
        """The error of the last save; None if it succeeded, or if there was none."""
        return self.home.save_error

    @property
    def task_queue(self) -> TaskQueue:
        kind = InMemoryTaskQueue if self.home.alone else RedisTaskQueue
        return kind(self.session, lambda name, data: apart(self.to_cell(name, data)), from_cells)

    @property
    def channel(self) -> Inputs:
        return (Channel if self.home.alone else SharedChannel)(self, self.session)

    def get_channel(self) -> Inputs:
        return self.channel

    def facts(self) -> dict[str, Any]:
        """Return what observers are told of a session that starts or continues."""
        state = self.state
        return {
            "workflow": self.settings.workflow,
            "resumed": self.basis.resumed,
            "path": self.found.path if self.found is not None else None,
            "replayed": self.replayed,
            "completed": len(state.completed),
            "pending": len(state.specs),
            "max_steps": state.max_steps,
            **self.home.told(),
            "trace_context": self.home.trace.former,
            "original_trace_id": self.home.trace.original,
        }

    # --- changes -----------------------------------------------------------------------

    def collect(self) -> None:
        """Keep what is changed while no run drives the session: the next one records it first."""
        self.session.record_with(self._note_undriven)

    def _note_undriven(self, state: SessionState, now: float, ops: Sequence[Op]) -> None:
        self.undriven.append((state.sequence, now, list(ops)))

    def begin(self) -> None:
        """Begin the run: what is set from now on is no input any more."""
        self.started = True

    def driven_by(self, cutter: Cutter) -> list[tuple[int, float, list[Op]]]:
        """Let a run drive the session, and return what was changed since the last run, for it to record."""
        self.cutter = cutter
        if self.session.recorder == self._note_undriven:
            self.session.record_with(None)
        changes, self.undriven = self.undriven, []
        return changes

    def driven_no_more(self) -> None:
        self.cutter = None
        self.collect()

    def is_under_way(self) -> None:
        """Forget what led to the first transition, which has been made."""
        self.basis = replace(self.basis, again=False, damage=None)

    def add_to_queue(self, task: TaskSpec | Task | str) -> None:
        """Queue one more execution of a task."""
        if isinstance(task, TaskSpec):
            self.task_queue.enqueue(task)
            return
        name = task if isinstance(task, str) else task.name
        node = self.graph.get_node(name)
        options = node.options if isinstance(node, Task) else None
        priority, retries = (options.priority, options.max_retries) if options else (0, 0)
        self.task_queue.enqueue(TaskSpec(name, priority=priority, max_retries=retries))

    def mark_task_completed(self, task_id: str) -> None:
        """Count a task as completed without running it."""
        if not self.home.alone:
            session = self.session_id
            raise SessionError(
                f"Session {session} is in Redis: only who holds a task can say that it has completed.",
                hint="Run it, or write its result into the channel before its successors need it.",
                session=self.session_id,
            )
        if self.status != "running" or self.steps == self.max_steps:
            raise SessionError(
                f"Session {self.session_id} is {self.status} at step {self.steps}: nothing is added."
            )
        enqueue = ("enqueue", task_id, None, 2**31, 0, "default", "direct")
        claims = self.session.commit([enqueue, ("claim", 1)])
        self.session.commit([("end", claims[0].spec.key, claims[0].number, "completed", b"\xc0")])

    def request_checkpoint(self, metadata: dict[str, Any] | None = None) -> None:
        """Ask for a checkpoint: outside of a task it is taken by the next `execute`, first thing."""
        self.checkpoint_request_metadata = check_metadata(metadata)
        self.checkpoint_requested = True

    def taken_request(self) -> dict[str, Any] | None:
        """Return the metadata of a checkpoint that was asked for, once; None if none was."""
        asked, self.checkpoint_requested = self.checkpoint_requested, False
        return self.checkpoint_request_metadata if asked else None

    # --- checkpoints -------------------------------------------------------------------

    def get_checkpoint_state(self) -> Document:
        """Return the control facts as a checkpoint would hold them."""
        with self.session.still():
            return {**capture(self.state).facts, "backend": dict(self.home.tables)}

    def checkpoint(
        self, path: CheckpointPath | None = None, metadata: dict[str, Any] | None = None,
        storage: str | None = None,
        *, portable: bool = False,
    ) -> tuple[str, CheckpointMetadata]:  # fmt: skip
        """Write a checkpoint now. Of a session in Redis only a `portable` one holds queue and values."""
        path = None if path is None else as_path(path)
        if storage is not None:
            path = path_at(storage, self.home.store, self.home.own_path(self.steps), path)
        if path is not None:
            open_store(path if "://" in path else store_of(path))  # refuses what cannot be written to
        metadata = check_metadata(metadata)
        saved = None
        with self.session.still() as still, self._owning():
            if self.cutter is not None:  # which may be of a session that this one has just gone back behind
                saved = self.cutter.now(metadata, path)
            elif still:
                self.schedule_start()
                saved = self.home.take(self, metadata, path, portable)
        if saved is None:
            names = ", ".join(self.session.on_loan())
            raise CheckpointError(
                f"A running task works on {names}, or a failed one has left that changed: "
                "no consistent checkpoint can be taken now.",
                hint="Call context.checkpoint() in a task instead: it waits for the right moment.",
                session=self.session_id,
            )
        self.note_checkpoint(saved)
        return saved.path, saved

    def random_state(self) -> Cell | None:
        """Return what the next run begins with."""
        return self.state.rng or (capture_random() if self.settings.rng else None)

    def schedule_start(self) -> None:
        """Queue the start of a session that has never run; of two processes that try one does."""
        if not self.graph.routes:
            self.graph.compile(self.state.starts or self.graph.roots())
        if self.session.head.next_key == 1 or (self.basis.again and not self.home.alone):
            self.home.schedule(self)

    def note_checkpoint(self, metadata: CheckpointMetadata) -> None:
        """Keep what spec/002 requires of the last checkpoint."""
        self.checkpoint_metadata = {
            **metadata.user_metadata,
            "created_at": time.time(),
            "session_id": self.session_id,
            "start_node": metadata.start_node,
            "steps": metadata.steps,
            "completed_tasks": len(self.state.completed),
            "backend": dict(self.home.tables),
        }

    def save(self, path: str) -> None:
        self.checkpoint(path)

    @classmethod
    def load(cls, path: CheckpointPath) -> ExecutionContext:
        return cls.resume(path)

    @classmethod
    def resume(cls, path: CheckpointPath) -> ExecutionContext:
        """Return the session as it was at a checkpoint; one in Redis, as it is now."""
        from graflow_ckpt.checkpoint.manager import CheckpointManager

        return CheckpointManager.resume_from_checkpoint(path)[0]

    @classmethod
    def rewind(
        cls, path: CheckpointPath, *, redis_url: str | None = None, store: str | None = None
    ) -> ExecutionContext:
        """Rewind the session in Redis to a portable checkpoint; refused while a worker runs it."""
        return cls._adopted(path, None, redis_url, store)

    @classmethod
    def fork(
        cls,
        path: CheckpointPath,
        session_id: str | None = None,
        *,
        redis_url: str | None = None,
        store: str | None = None,
    ) -> ExecutionContext:
        """Return a new session in Redis that begins at a checkpoint: a portable one, or one of memory."""
        from graflow_ckpt.engine.shared_context import new_id

        return cls._adopted(path, new_id(session_id), redis_url, store)

    @classmethod
    def _adopted(
        cls, path: CheckpointPath, session: str | None, redis_url: str | None, store: str | None
    ) -> ExecutionContext:
        from graflow_ckpt.engine.shared_context import adopt_into, destination

        standing = standing_at(path, store)
        place = adopt_into(standing, session, destination(standing, redis_url))
        context = cls(
            standing.graph, place.session.id, settings=standing.settings, store=standing.carried["store"]
        )
        context.move_to(*place)
        context.is_there(standing.found)
        return context

    def execute(self, max_steps: int | None = None) -> Any:
        """Run, or continue."""
        from graflow_ckpt.engine.engine import WorkflowEngine

        self.limit = max_steps
        return WorkflowEngine().execute(self)

    def taken_limit(self) -> int | None:
        """Return the limit of steps that was asked for, once; else the session's."""
        asked, self.limit = self.limit, None
        return self.max_steps if asked is None else asked

    @contextmanager
    def _owning(self) -> Iterator[None]:
        owned = self.home.lease is not None
        try:
            yield
        finally:
            if not owned and self.cutter is None:
                self.home.close()

    # --- inputs ------------------------------------------------------------------------

    def to_cell(self, name: str, value: Any) -> Cell:
        return check_storable(name, value)

    @property
    def goes_on(self) -> bool:
        """True if what is set now is an input of a session that has started before."""
        if self.started or self.basis.named or not self.basis.resumed:
            return False
        return self.session.head.next_key > 1

    def note_inputs(self) -> None:
        """Record what is in the channel when a new session starts."""
        self.home.program.says(inputs={n: digest_of(cell) for n, (cell, _) in self.state.values.items()})

    # --- pickles -----------------------------------------------------------------------

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> ExecutionContext:
        """Return what a plain `pickle.load` of a `.pkl` gives: values and graph; no control facts."""
        context = cls(TaskGraph(), payload["session_id"])
        facts = capture(SessionState(payload["session_id"], payload["starts"])).facts
        context.stand_on(Basis(payload=payload), restore(facts, payload))
        return context

    def resumed(self, found: Found, store: str) -> ExecutionContext:
        """Return the session of a checkpoint that a user named: as it was there, or where it is live."""
        place = found.facts.get("redis")
        if place is not None and not place["portable"]:
            from graflow_ckpt.engine.shared_context import attach

            graph, settings = self.graph_from_code(), settings_in(found)
            session = found.facts["session_id"]
            return attach(ExecutionContext(graph, session, settings=settings, store=store), found)
        self.return_to(found, restore(found.facts, self.payload), store)
        return self

    def stand_on(self, basis: Basis, state: SessionState) -> None:
        """Continue from here, with this state; nothing of what was before is in it."""
        self.basis, self.session = basis, MemorySession(state)
        self.undriven.clear()
        self.collect()

    # Any: types of modules that need a package for Redis
    def move_to(self, session: Any, home: Any, executed_by: type[Execution] | None) -> None:
        """Have the session and its checkpoints there, under the same names."""
        self.session, self.home, self.executed_by = session, home, executed_by

    def is_there(self, found: Found | None = None) -> None:
        """Note that the session was there before, as a checkpoint of it shows."""
        self.basis = Basis(found, named=found is not None, there=True)

    def return_to(self, found: Found, state: SessionState, store: str) -> None:
        """Become the session as it was at a checkpoint that a user named."""
        self.graph = self.graph_from_code()
        self.settings = settings_in(found)
        self.named = True
        self.home = Home(open_store(store), self.session_id)
        self.home.continue_from(found)
        self.stand_on(replace(self.basis, found=found, named=True), state)
        self.checkpoint_metadata = dict(found.metadata.user_metadata)

    @property
    def payload(self) -> dict[str, Any]:
        assert self.basis.payload is not None
        return self.basis.payload

    def graph_from_code(self) -> TaskGraph:
        """Return the graph that the checkpoint carries."""
        return unpack_code(self.payload["code"], lambda task: task, self.payload["python"])


def settings_in(found: Found) -> Settings:
    """Return the settings that a checkpoint keeps."""
    named = Settings(workflow=found.meta.get("workflow", "workflow"))
    return named.with_stored(found.meta.get("settings"))


@collector_at_rest()
def open_session(
    graph: TaskGraph, session_id: str | None, settings: Settings, store: str
) -> ExecutionContext:
    """Return a new session, or the one of that id as it was left."""
    context = ExecutionContext(graph, session_id, settings=settings, store=store)
    if session_id is None and settings.resume == "must":
        raise NoSession("resume='must' needs a session id.", hint='Give session_id="..." or --session.')
    if session_id is not None:
        resuming.open_newest(context)
    return context


BACKENDS = ("memory", "redis")


def one_backend(queue: str, channel: str) -> str:
    """Return the backend of both, views of one session: one commit has to span both."""
    for name, backend in (("queue", queue), ("channel", channel)):
        if backend not in BACKENDS:
            raise SessionError(
                f"{name}_backend={backend!r} is not available.", hint=f"There are: {', '.join(BACKENDS)}."
            )
    if queue != channel:
        raise SessionError(
            f"queue_backend={queue!r} and channel_backend={channel!r} do not agree.",
            hint="Queue and channel are two views of one session: give both the same.",
        )
    return queue


class CycleController:
    """The number of rounds of each task."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    @property
    def cycle_counts(self) -> dict[str, int]:
        return {task: n - 1 for task, n in [*self._state.counts.items()] if n > 1}

    def get_count(self, task_id: str) -> int:
        return max(0, self._state.counts.get(task_id, 0) - 1)


class Inputs(ValueChannel):
    """The session's values for its caller; what is set before `execute` is an input."""

    def __init__(self, context: ExecutionContext, session: Tables) -> None:
        super().__init__(session, context.to_cell, from_cells)
        self._context = context

    def set(self, key: str, value: Any) -> None:
        """Commit at once; on a resumed session an equal input is dropped, another refused."""
        if not (self._context.goes_on and self._repeats(key, value)):
            super().set(key, value)

    def _repeats(self, key: str, value: Any) -> bool:
        """Return True if a write before `execute` repeats an input of a resumed session; refuse another."""
        known = self._context.home.inputs.get(key)
        if known is None or known != digest_of(check_storable(key, value)):
            raise InputsChanged(
                f"Session {self._context.session_id} was started with "
                f"{'another' if known else 'no'} input {key!r}.",
                hint="Give the same inputs, none at all, or use a new session id.",
                session=self._context.session_id,
                name=key,
            )
        return True

    def append(self, key: str, item: Any) -> None:
        """Commit at once; on a resumed session refuse it before `execute`: it would be there twice."""
        if self._context.goes_on:
            raise InputsChanged(
                f"Session {self._context.session_id} goes on and appends to the input {key!r} again.",
                hint="Before execute, set() the whole list: an equal one is taken as the same input.",
                session=self._context.session_id,
                name=key,
            )
        super().append(key, item)


class Channel(Inputs, MemoryChannel):
    """The channel of a session in this process."""


class SharedChannel(Inputs, RedisChannel):
    """The channel of a session in Redis."""
