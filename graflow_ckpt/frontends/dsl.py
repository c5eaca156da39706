"""Decorated workflows: `@task`, `workflow(...)`, `>>` and `|`.

with workflow("etl", session_id="nightly") as ctx:
    extract >> (clean | enrich) >> load
    ctx.execute("extract")
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import fields, replace
from difflib import get_close_matches
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, overload

from graflow_ckpt.checkpoint.retention import DEFAULT, Retention
from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.events import Observer
from graflow_ckpt.core.graph import Node, TaskGraph
from graflow_ckpt.core.policy import OnRequest, Policy
from graflow_ckpt.core.task import Backoff, Isolation, OnInterrupted, Options
from graflow_ckpt.engine.settings import (
    Changed,
    Durability,
    Middleware,
    OnFailure,
    OnFinished,
    OnSaveFailure,
    Resume,
    Settings,
)
from graflow_ckpt.frontends.door import fleet
from graflow_ckpt.frontends.expressions import (
    Chain,
    Collector,
    DecoratedTask,
    Decorator,
    Expression,
    Parallel,
    add_to,
    called,
    collector,
    registered,
)
from graflow_ckpt.frontends.overrides import Planned, overrides
from graflow_ckpt.links import environment
from graflow_ckpt.stores import Place, address_of

if TYPE_CHECKING:  # the engine is loaded when something is executed
    from graflow_ckpt.engine.context import ExecutionContext
    from graflow_ckpt.fleet.client import Where
    from graflow_ckpt.fleet.handle import Handle


@overload
def task(func: Callable[..., Any], /) -> DecoratedTask: ...


@overload
def task(
    *,
    id: str | None = None,
    inject_context: bool = False,
    max_retries: int = 0,
    backoff: Backoff | float = 0.0,
    jitter: float | None = None,
    timeout: float | None = None,
    priority: int = 0,
    max_cycles: int | None = None,
    on_interrupted: OnInterrupted = "rerun",
    isolation: Isolation = "thread",
    queue: str = "default",
) -> Decorator: ...


def task(func: Callable[..., Any] | None = None, /, *, id: str | None = None, **options: Any) -> Any:  # noqa: A002
    """Make a task of a function: `@task`, or `@task(max_retries=3, timeout=60)`."""
    known = [field.name for field in fields(Options)] + ["jitter"]
    for name in options.keys() - known:
        near = get_close_matches(name, known, 1)
        raise GraphError(
            f"@task has no option {name!r}.",
            hint=f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(sorted(known))}.",
            option=name,
        )
    if func is not None and not callable(func):
        raise arguments.refused("@task", func, "a function; a name is given as @task(id=...)")
    if id is not None:
        arguments.text("id", id)
    backoff = options.get("backoff")
    if not isinstance(backoff, bool) and isinstance(backoff, Real):
        options["backoff"] = Backoff(float(backoff))
    if (jitter := options.pop("jitter", None)) is not None:
        options["backoff"] = replace(options.get("backoff", Backoff()), jitter=jitter)
    made = Options(**options)

    def decorate(function: Callable[..., Any]) -> DecoratedTask:
        name = id or getattr(function, "__name__", "")
        if not name:
            raise GraphError(f"{function!r} has no name.", hint="Give one: @task(id=...).")
        name = arguments.text("id", name)
        decorated = registered(DecoratedTask(name, function, made))
        current = collector.get()
        if isinstance(current, Workflow):
            current.graph_nodes.append(decorated)
        return decorated

    return decorate if func is None else decorate(func)


class Workflow:
    """A graph that is being written down, and the session in which it runs."""

    def __init__(self, name: str, session_id: str | None, store: str | None, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.graph_nodes: list[DecoratedTask] = []
        self._expressions: dict[int, Chain | Parallel] = {}  # by id
        self._graph = TaskGraph()
        self._session_id = session_id
        self._store = store
        self._context: ExecutionContext | None = None
        self.inputs: frozenset[str] | None = None  # the names that are declared; None: any
        self._tokens: list[Token[Collector | None]] = []
        overrides.meet(self)

    # --- writing the graph down --------------------------------------------------------

    def __enter__(self) -> Workflow:
        self._tokens.append(collector.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collector.reset(self._tokens.pop())

    def collect(self, expression: Chain | Parallel, parts: tuple[Expression, ...]) -> None:
        """Add a new expression; its parts count only in it."""
        for part in parts:
            self._expressions.pop(id(part), None)
        self._expressions.setdefault(id(expression), expression)

    def add(self, *expressions: Expression) -> Workflow:
        """Add tasks, chains and groups that were made elsewhere."""
        for expression in expressions:
            if isinstance(expression, DecoratedTask):
                self.graph_nodes.append(expression)
            else:
                self.collect(expression, ())
        return self

    @property
    def graph(self) -> TaskGraph:
        """The graph as far as it has been written down."""
        for node in self.graph_nodes:
            self._graph.add(node)
        for expression in self._expressions.values():
            add_to(self._graph, expression)
        self.graph_nodes.clear()
        self._expressions.clear()
        return self._graph

    # --- running it --------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        return self.execution_context.session_id

    @property
    def wanted_session(self) -> str | None:
        """The id that the program has given, if it has."""
        return self._session_id

    @property
    def execution_context(self) -> ExecutionContext:
        """The session; resolved when it is first touched."""
        if self._context is None:
            from graflow_ckpt.engine.context import open_session

            session, settings, store = overrides.apply(
                self.name, self._session_id, self.settings, self._store
            )
            self._context = open_session(self.graph, session, settings, store)
        return self._context

    def get_channel(self) -> Any:
        return self.execution_context.get_channel()

    def execute(
        self,
        start: str | DecoratedTask | None = None,
        max_steps: int | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run from `start` (default: the tasks that nothing leads to), or continue; return the result."""
        from graflow_ckpt.engine.engine import WorkflowEngine

        with self._running(start, max_steps, inputs) as context:
            return None if context is None else WorkflowEngine().execute(context)

    async def aexecute(
        self,
        start: str | DecoratedTask | None = None,
        max_steps: int | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute from a coroutine; `async def` tasks run on its loop."""
        from graflow_ckpt.engine.engine import WorkflowEngine

        with self._running(start, max_steps, inputs) as context:
            return None if context is None else await WorkflowEngine().aexecute(context)

    def submit(
        self,
        url: Where = None,
        start: str | DecoratedTask | None = None,
        max_steps: int | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        existing: OnFinished | None = None,
        ttl: float | None = None,
        store: str = "",
        ledger: bool | None = None,
        value_limit: int | None = None,
    ) -> Handle:
        """Have a fleet run it; returns a handle once the session has been accepted: with the id of this
        workflow, or a new one. `existing`: the words of `on_finished`, for one that is there; `ttl`:
        seconds for which it is kept once it has completed; with a `ledger` each commit leaves a line;
        `value_limit`: bytes that one value may take.
        """
        starts = self._starts(start)
        inputs = {**self._put_before(), **(inputs or {})}
        self._check_inputs(inputs, True)
        if overrides.planning:
            if overrides.wants(self.name):
                overrides.prepared(Planned(self, starts, inputs, max_steps))
            return cast("Handle", None)  # the program stops here
        door = fleet()
        terms = door.terms_of(
            self._session_id, existing=existing, max_steps=max_steps, ttl=ttl, store=store,
            ledger=self.ledger if ledger is None else ledger, value_limit=value_limit,
        )  # fmt: skip
        return cast("Handle", door.at(url).submit(self.graph, self.settings, starts, inputs, terms))

    ledger = False  # on a fleet: whether each commit leaves a line that is kept as long as the session
    _ended = False

    @contextmanager
    def _running(
        self, start: str | DecoratedTask | None, max_steps: int | None, inputs: Mapping[str, Any] | None
    ) -> Iterator[ExecutionContext | None]:
        """Yield the session, ready to run; None if another workflow is meant.

        What bodies decorate and join is theirs: it is no part of the block that they are run in.
        """
        context = self._prepared(start, max_steps, inputs)
        token = collector.set(None)
        try:
            yield context
        finally:
            collector.reset(token)
            self._ended |= context is not None

    def _prepared(
        self, start: str | DecoratedTask | None, max_steps: int | None, inputs: Mapping[str, Any] | None
    ) -> ExecutionContext | None:
        if max_steps is not None:
            arguments.whole("max_steps", max_steps, least=0)
        if inputs is not None:
            arguments.kind("inputs", inputs, Mapping, "a dict of names and values")
        if not overrides.wants(self.name):
            return None
        names = self._starts(start)
        if overrides.planning:
            overrides.prepared(Planned(self, names, {**self._put_before(), **(inputs or {})}, max_steps))
        self._renew()
        try:
            context = self.execution_context
            ours = overrides.concerns(self.name)
            given = {**(inputs or {}), **(overrides.inputs if ours else {})}
            self._check_inputs(given, context.found is None)
            for key, value in given.items():
                context.channel.set(key, value)
        except BaseException:
            if self._context is not None:
                self._context.home.close()
            raise
        state = context.state
        if context.found is None:
            state.start_at(names)
        limit = overrides.max_steps if ours and overrides.max_steps is not None else max_steps
        if limit is not None:
            state.limit_to(limit)
        return context

    def _check_inputs(self, given: Mapping[str, Any], new: bool) -> None:
        from graflow_ckpt.engine.body.bind import check_inputs

        if given and new:  # a session that continues compares them with those that it has
            check_inputs(self.graph, given, self.inputs)

    def _put_before(self) -> dict[str, Any]:
        """Return what was put into its channel before anything ran: inputs, wherever it runs."""
        if self._context is None or self._ended or self._context.found is not None:
            return {}
        channel = self._context.channel
        names = channel.keys()
        return {name: channel.get(name) for name in names}

    def _renew(self) -> None:
        """Make the next `execute` continue a session that has ended, if it can; else start another."""
        if self._ended and self._context is not None:
            ended, self._context = self._context, None
            self._ended = False
            if ended.home.resumable is not None and ended.status != "completed":
                self._session_id = ended.session_id

    def _starts(self, start: str | DecoratedTask | None) -> tuple[str, ...]:
        if start is None:
            return tuple(self.graph.roots())
        if isinstance(start, DecoratedTask):
            self.graph.add(start)
            return (start.name,)
        if start not in self.graph.nodes:
            self.graph.add(self._decorated_elsewhere(start))
        return (start,)

    def _decorated_elsewhere(self, name: str) -> Node:
        found = called(name)
        modules = sorted({task.func.__module__ for task in found})
        if len(modules) > 1:
            message = f"Several modules have a task {name!r}: {', '.join(modules)}."
            raise GraphError(message, hint="Give the task itself instead of its name.", task=name)
        return found[-1] if found else self.graph.get_node(name)  # which says what there is


def workflow(
    name: str,
    session_id: str | None = None,
    resume: Resume = "auto",
    *,
    durability: Durability | None = None,
    checkpoint: Policy | None = None,
    on_failure: OnFailure = "pause",
    max_parallel: int | None = None,
    store: Place | None = None,
    keep: Retention | None = None,
    on_save_failure: OnSaveFailure = "event",
    max_checkpoint_size_mb: float | None = None,
    changed: Changed | None = None,
    until_damage: bool = False,
    on_finished: OnFinished = "return",
    inputs: Sequence[str] | None = None,
    rng: bool = True,
    grace: float = 30.0,
    observers: Sequence[Observer] = (),
    middleware: Sequence[Middleware] = (),
) -> Workflow:
    """Return a workflow; tasks that are made and joined in its `with` block belong to it."""
    import graflow_ckpt.engine.engine  # noqa: F401 - it will be run: better now than between call and first task

    _check(
        name, session_id, observers=observers, middleware=middleware, inputs=() if inputs is None else inputs
    )
    settings = Settings(
        workflow=name,
        program=_file_of(sys._getframe(1).f_code.co_filename),
        durability=_durability() if durability is None else durability,
        resume=resume,
        policy=OnRequest() if checkpoint is None else checkpoint,
        keep=DEFAULT if keep is None else keep,
        on_failure=on_failure,
        on_save_failure=on_save_failure,
        max_checkpoint_size_mb=max_checkpoint_size_mb,
        changed=changed,
        until_damage=until_damage,
        on_finished=on_finished,
        max_parallel=max_parallel,
        rng=rng,
        grace=grace,
        observers=tuple(observers),
        middleware=tuple(middleware),
    )
    made = Workflow(name, session_id, None if store is None else address_of(store, name), settings)
    made.inputs = None if inputs is None else frozenset(inputs)
    return made


def _durability() -> Durability:
    """Return what the environment says; Settings refuse what is no durability."""
    return cast(Durability, os.environ.get(environment.variable("durability"), "auto"))


def _check(name: str, session_id: str | None, **lists: object) -> None:
    """Refuse arguments of wrong kinds, and report variables of the environment that nothing reads."""
    arguments.text("workflow", name)
    for mistyped in environment.unknown():
        environment.tell(mistyped)
    if session_id is not None:
        arguments.kind("session_id", session_id, str, "a session id")
    for what, value in lists.items():
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise arguments.refused(what, value, "a list")


def _file_of(defined: str) -> str:
    """Return the file that defines a workflow; "" for a notebook's cell or a prompt."""
    return os.path.abspath(defined) if os.path.isfile(defined) else ""
