"""The preflight: what can be known before the first task is known before the first task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from types import CodeType, FunctionType, MethodType
from typing import Any

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.bind import Binding, bind, check, signature
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.settings import Settings

log = logging.getLogger("graflow_ckpt.engine")

_ASKS = frozenset({"checkpoint", "request_checkpoint"})


def check_graph(
    graph: TaskGraph, settings: Settings, inputs: Collection[str], *, shared: bool = False
) -> dict[str, Binding]:
    """Every parameter has one source, every option its durability; the bindings of the bodies.

    `shared`: the session's own server keeps a record of every claim.
    """
    kept = shared or settings.recorded
    bindings = {}
    for name, node in graph.nodes.items():
        if name in graph.live and isinstance(node, Task):
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
    """Whether somebody will want to come back to this session."""
    settings = context.settings
    if settings.durability == "none":
        return False
    if context.named or settings.recorded:
        return True
    return takes_cuts(settings, bindings)


def takes_cuts(settings: Settings, bindings: dict[str, Binding]) -> bool:
    """Whether a checkpoint will be taken while it runs, as far as that can be seen."""
    if settings.policy.watches and settings.durability != "none":
        return True
    return any(b.context is not None and _ASKS & _names(b.func) for b in bindings.values())


def _names(func: Callable[..., Any]) -> set[str]:
    """The names that a body uses, nested functions and helpers of its module included."""
    return {name for code in _codes(func) for name in code.co_names}


def _texts(func: Callable[..., Any]) -> set[str]:
    """The texts that stand in a body: a name that it gets from the channel is one of them."""
    return {text for code in _codes(func) for text in code.co_consts if isinstance(text, str)}


def _codes(func: Callable[..., Any]) -> Iterator[CodeType]:
    func = func.__func__ if type(func) is MethodType else func
    if type(func) is not FunctionType:
        return
    helpers = [func.__globals__.get(name) for name in func.__code__.co_names]
    codes = [func.__code__, *(h.__code__ for h in helpers if type(h) is FunctionType)]
    while codes:
        code = codes.pop()
        yield code
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
