"""Parameters: where each argument of a body comes from.

A parameter is filled from, in this order: the spec's data (`next_iteration(data)`), an
argument bound to the task, the result of a direct predecessor of that name, a channel value of
that name, its default. What can be known before the run is checked before the run: two sources
for one parameter, or none, is a GraphError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import compress
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from graflow_ckpt.checkpoint.program.program import Missing
from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraphError, TaskError
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Group, Task
from graflow_ckpt.engine.settings import Settings

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.engine")

MISSING: Any = object()
SPREAD = "**graflow"
"""The only key of data that holds several arguments."""

CONTEXT_NAMES = ("context", "ctx")

_COROUTINE = 0x80  # inspect.CO_COROUTINE


@dataclass(slots=True, eq=False)
class Parameter:
    """One parameter of a body."""

    name: str
    default: Any  # the user's, or MISSING
    result: str | None  # the value name of a direct predecessor's result
    group: tuple[str, ...] | None  # the members of a preceding group
    bound: Any  # an argument bound to the task, or MISSING

    @property
    def required(self) -> bool:
        """True if a call has to give it."""
        return self.default is MISSING and self.bound is MISSING


class Binding:
    """The parameters that one task's body takes."""

    __slots__ = ("context", "data", "func", "inline", "parameters", "plain", "task", "_loops")

    def __init__(
        self, task: Task, preds: dict[str, str], groups: dict[str, tuple[str, ...]], plain: bool = False
    ) -> None:
        self.task = task
        self.func = task.func
        o = task.options
        self.inline = o.timeout is None and o.isolation == "thread" and not is_coroutine(task.func)
        self.plain = plain
        self._loops: bool | None = None
        self.context: str | None = None
        self.parameters: dict[str, Parameter] = {}
        self.data: str | None = None
        if plain:  # as most tasks of a large graph are
            return
        names, defaults = signature(task.func)
        if o.inject_context:
            self.context = _context(task, names)
        unknown = sorted(set(task.arguments) - set(names)) if task.arguments else ()
        if unknown:
            raise GraphError(
                f"Task {task.name!r} takes no parameter {unknown[0]!r}.", task=task.name, parameter=unknown[0]
            )
        self.plain = not names
        for n in names:
            if n != self.context:
                default, bound = defaults.get(n, MISSING), task.arguments.get(n, MISSING)
                self.parameters[n] = Parameter(n, default, preds.get(n), groups.get(n), bound)
        self.data = "data" if "data" in self.parameters else next(iter(self.parameters), None)

    def has_loops(self) -> bool:
        """Return True if the body may have a loop of rounds: it, or a function that it calls by name."""
        if self._loops is None:
            self._loops = may_call(self.func, "rounds")
        return self._loops

    def reads(self, given: Container[str | None] = ()) -> list[str]:
        """Return the names of the values that may be read where a call has given these parameters."""
        names: list[str] = []
        for p in self.parameters.values():
            if p.bound is MISSING and p.name not in given:
                names += [m + RESULT for m in p.group] if p.group is not None else [p.result or p.name]
        return names


def may_call(func: object, name: str) -> bool:
    """Return True if a function may call something of that name, or if its code cannot be read."""
    known: set[CodeType] = set()
    found: list[Any] = [func]
    while found:
        one = found.pop()
        while (inner := getattr(one, "__wrapped__", None)) is not None:
            one = inner
        code = getattr(one, "__code__", None)
        if code is None:
            return True
        codes = [code]
        for code in codes:
            if code in known:
                continue
            known.add(code)
            if name in code.co_names:
                return True
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            called = [one.__globals__.get(word) for word in code.co_names]
            found += [function for function in called if isinstance(function, FunctionType)]
    return False


def _context(task: Task, names: Sequence[str]) -> str | None:
    """Return the parameter that takes the context."""
    for name in names:
        if name in CONTEXT_NAMES:
            return name
    if not names and not isinstance(task.func, Missing):  # which speaks when it is run
        why = f"Task {task.name!r} has inject_context=True and takes no parameter."
        raise GraphError(why, task=task.name)
    return names[0] if names else None


def is_coroutine(func: Callable[..., Any]) -> bool:
    func = func.__func__ if type(func) is MethodType else func
    return type(func) is FunctionType and bool(func.__code__.co_flags & _COROUTINE)


def signature(func: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the parameter names and the defaults."""
    if type(func) is FunctionType and getattr(func, "__wrapped__", None) is None:  # inspect costs 20 times it
        code = func.__code__
        count = code.co_argcount
        if not (count or code.co_kwonlyargcount):
            return [], {}
        names = [*code.co_varnames[: count + code.co_kwonlyargcount]]
        if code.co_posonlyargcount:
            _refuse_positional(func, names)
        given = func.__defaults__ or ()
        defaults = {names[at]: value for at, value in enumerate(given, count - len(given))}
        if func.__kwdefaults__:
            defaults.update(func.__kwdefaults__)
        return names, defaults
    import inspect

    found = inspect.signature(func).parameters.values()
    taken = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    only = [p.name for p in taken if p.kind is p.POSITIONAL_ONLY]
    if only:
        _refuse_positional(func, only)
    return [p.name for p in taken], {p.name: p.default for p in taken if p.default is not p.empty}


def _refuse_positional(func: Callable[..., Any], names: list[str]) -> NoReturn:
    called = getattr(func, "__qualname__", repr(func))
    raise GraphError(
        f"The parameter {names[0]!r} of {called} is positional only; arguments are given by name.",
        hint="Take the '/' out of its signature.",
        parameter=names[0],
    )


def takes_nothing(task: Task) -> bool:
    """Return True if its body is called without arguments, as most of a large graph are: a quick look."""
    func = task.func
    if type(func) is not FunctionType or task.arguments or task.options.inject_context:
        return False
    code = func.__code__
    return not (code.co_argcount or code.co_kwonlyargcount) and getattr(func, "__wrapped__", None) is None


def bind(graph: TaskGraph, task: Task) -> Binding:
    """Return the binding of a task at its place in the graph."""
    preds: dict[str, str] = {}
    groups: dict[str, tuple[str, ...]] = {}
    plain = takes_nothing(task)
    if not plain:
        before = graph.routes[task.name].preds
        if graph.looped:
            before += tuple(source for source, targets in graph.looped.items() if task.name in targets)
        preds = {name: name + RESULT for name in _tasks(graph, before, groups)}
    return Binding(task, preds, groups, plain)


def _tasks(graph: TaskGraph, names: Iterable[str], groups: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Return the tasks of these nodes; for a group its members, noted in `groups`."""
    for name in names:
        node = graph.nodes[name]
        if isinstance(node, Group):
            groups[name] = tuple(_tasks(graph, node.members, groups))
            yield from groups[name]
        else:
            yield name


def fill(
    binding: Binding,
    task: str,
    data: Any,
    read: Callable[[str], Any],
    own: Callable[[str], Any],
    given: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the arguments of one attempt; `read` gets results, `own` channel values, MISSING if none."""
    arguments: dict[str, Any] = {}
    for p in binding.parameters.values():
        value = MISSING
        if p.name in given:
            value = given[p.name]
        elif data is not MISSING and p.name == binding.data:
            value = data
        elif p.bound is not MISSING:
            value = p.bound
        elif p.result is not None:
            value = read(p.result)
            if value is MISSING:  # started past that predecessor: an input may stand for its result
                value = own(p.name)
            if value is MISSING and p.default is MISSING:
                value = None  # a predecessor that was skipped or failed has no result
        elif p.group is not None:
            found = {member: read(member + RESULT) for member in p.group}
            value = {member: v for member, v in found.items() if v is not MISSING}
        else:
            value = own(p.name)
        if value is not MISSING:
            arguments[p.name] = value
        elif p.default is MISSING:
            raise TaskError(
                f"Nothing fills the parameter {p.name!r} of task {task!r}.",
                hint="Give it a default, set a channel value of that name before, or bind an argument. "
                f"For the result of a task that is no predecessor, call get_result({p.name!r}).",
                task=task,
                parameter=p.name,
            )
    return arguments


# --- before the run --------------------------------------------------------------------


def check(graph: TaskGraph, bindings: dict[str, Binding], channel: Collection[str]) -> None:
    """Refuse two sources for one parameter, or none, by name."""
    mentioned: set[str] | None = None
    able = [b.func for b in bindings.values() if b.context is not None]
    for name, binding in bindings.items():
        if name not in graph.live:
            continue
        for p in binding.parameters.values():
            sources = (p.bound is not MISSING, _comes(p, graph), p.name in channel)
            if sum(sources) > 1:
                two = " and ".join(compress(_SOURCES, sources))
                raise GraphError(
                    f"The parameter {p.name!r} of task {name!r} has two sources: {two}.",
                    hint="Rename one of them.",
                    task=name,
                    parameter=p.name,
                )
            sent = p.name == binding.data and able and name not in graph.starts  # by next_task, say
            if not any(sources) and p.result is None and p.default is MISSING and not sent:
                if mentioned is None:
                    mentioned = set().union(*(_texts(func, whole=True) for func in able))
                if p.name not in mentioned:
                    raise GraphError(
                        f"Nothing can fill the parameter {p.name!r} of task {name!r}.",
                        hint=_remedy(p.name, name, binding, graph),
                        task=name,
                        parameter=p.name,
                    )


_SOURCES = ("an argument bound to the task", "the result of a predecessor", "a channel value")


def _remedy(parameter: str, task: str, binding: Binding, graph: TaskGraph) -> str:
    """Return what to do about a parameter that nothing fills."""
    if parameter in graph.nodes:
        return f"{parameter!r} is no predecessor of {task!r}: join them, or call get_result({parameter!r})."
    if parameter in ("context", "ctx") and binding.context is None:
        return "For the context of the task, write @task(inject_context=True)."
    return "No predecessor, channel value or input has that name; give it a default."


def _comes(p: Parameter, graph: TaskGraph) -> bool:
    """Return True if a predecessor of that name runs in this session."""
    return p.group is not None or (p.result is not None and p.result.removesuffix(RESULT) in graph.live)


# --- the preflight: what can be known before the first task is known before the first task --

_ASKS = frozenset({"checkpoint", "request_checkpoint"})


def check_graph(
    graph: TaskGraph, settings: Settings, inputs: Collection[str], *, shared: bool = False
) -> dict[str, Binding]:
    """Check that every parameter has one source, every option its durability; return the bindings of
    tasks with parameters. That of any other is made when the task runs.

    `shared`: the session's own server keeps a record of every claim.
    """
    kept = shared or settings.recorded
    bindings = {}
    for name, node in graph.nodes.items():
        if name in graph.live and isinstance(node, Task):
            if not takes_nothing(node):
                bindings[name] = bind(graph, node)
            if node.options.on_interrupted != "rerun" and not kept:
                raise GraphError(
                    f"Task {name!r} has on_interrupted={node.options.on_interrupted!r}.",
                    hint="Give a session id, or durability='journal': else nothing says what was running.",
                    task=name,
                )
    check(graph, bindings, inputs)
    return bindings


def check_inputs(graph: TaskGraph, given: Collection[str], declared: Collection[str] | None) -> None:
    """Refuse an input whose name is almost that of a parameter; `declared`: refuse all others."""
    for name in given:
        arguments.text("the name of an input", name)
    tasks = [node for node in graph.nodes.values() if isinstance(node, Task)]
    if declared is not None:
        for name in [name for name in given if name not in declared]:
            raise GraphError(
                f"The workflow has no input {name!r}.",
                hint=f"{_meant(name, declared)}It declares: {', '.join(sorted(declared)) or 'none'}.",
                name=name,
            )
        return
    parameters = {name for task in tasks for name in signature(task.func)[0]}
    known = parameters.union(graph.nodes, *(_texts(task.func) for task in tasks))
    for name in [name for name in given if name not in known]:
        what = f"no task takes an input {name!r}"
        if meant := _meant(name, parameters):
            raise GraphError(f"{what[0].upper()}{what[1:]}.", hint=meant.strip(), name=name)
        log.warning("%s as a parameter; context.channel.get(%r) can read it", what, name)


def check_answers(graph: TaskGraph, made: Collection[str], settings: Settings) -> None:
    """Refuse an answer for a task in doubt whose name is almost that of a task."""
    for name, _ in settings.in_doubt:
        if name in graph.nodes or name in made:
            continue
        if meant := _meant(name, graph.nodes):
            raise GraphError(f"In doubt: there is no task {name!r}.", hint=meant.strip(), task=name)
        log.warning("in doubt: there is no task %r yet", name, extra={"task": name})


def _meant(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, 1, 0.75)
    return f"Did you mean {near[0]!r}? " if near else ""


def wants_home(context: ExecutionContext, bindings: dict[str, Binding]) -> bool:
    """Return True if this session may be resumed later."""
    settings = context.settings
    if settings.durability == "none":
        return False
    if context.named or settings.recorded:
        return True
    return takes_cuts(settings, bindings)


def takes_cuts(settings: Settings, bindings: dict[str, Binding]) -> bool:
    """Return True if a checkpoint will be taken while it runs, as far as that can be seen."""
    if settings.policy.watches and settings.durability != "none":
        return True
    able = (b.func for b in bindings.values() if b.context is not None)
    return any(not _ASKS.isdisjoint(code.co_names) for func in able for code in _codes(func))


def _texts(func: Callable[..., Any], *, whole: bool = False) -> set[str]:
    """Return the string constants of a body: a name that it gets from the channel is one of them."""
    return {text for code in _codes(func, whole=whole) for text in code.co_consts if isinstance(text, str)}


def _codes(func: Callable[..., Any], *, whole: bool = False) -> list[CodeType]:
    """Return the code of a body and of its helpers; `whole`: of all functions of its module."""
    func = func.__func__ if type(func) is MethodType else func
    if type(func) is not FunctionType:
        return []
    known = func.__globals__
    helpers = list(known.values()) if whole else [known.get(name) for name in func.__code__.co_names]
    codes = [func.__code__, *[h.__code__ for h in helpers if type(h) is FunctionType]]
    for code in codes:  # which grows meanwhile
        codes += [c for c in code.co_consts if type(c) is CodeType]
    return codes
