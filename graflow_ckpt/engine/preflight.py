"""The preflight: what can be known before the first task is known before the first task."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import CodeType, FunctionType, MethodType
from typing import Any

from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.bind import Binding, bind, check
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.settings import Settings

_ASKS = frozenset({"checkpoint", "request_checkpoint"})


def check_graph(
    graph: TaskGraph, settings: Settings, inputs: Collection[str], *, shared: bool = False
) -> dict[str, Binding]:
    """Every parameter has one source, every option its durability; the bindings of the bodies.

    `shared`: the session's own server keeps a record of every claim.
    """
    kept = shared or settings.durability == "journal"
    bindings = {}
    for name, node in graph.nodes.items():
        if name in graph.live and isinstance(node, Task):
            bindings[name] = bind(graph, node)
            if node.options.on_interrupted != "rerun" and not kept:
                raise GraphError(
                    f"Task {name!r} has on_interrupted={node.options.on_interrupted!r}.",
                    hint="That needs durability='journal': a checkpoint cannot tell what was running.",
                    task=name,
                )
    check(graph, bindings, inputs)
    return bindings


def wants_home(context: ExecutionContext, bindings: dict[str, Binding]) -> bool:
    """Whether somebody will want to come back to this session."""
    settings = context.settings
    if settings.durability == "none":
        return False
    if context.named or settings.durability == "journal":
        return True
    return takes_cuts(settings, bindings)


def takes_cuts(settings: Settings, bindings: dict[str, Binding]) -> bool:
    """Whether a checkpoint will be taken while it runs, as far as that can be seen."""
    if settings.policy.watches and settings.durability != "none":
        return True
    return any(b.context is not None and _ASKS & _names(b.func) for b in bindings.values())


def _names(func: Callable[..., Any]) -> set[str]:
    """The names that a body uses, nested functions and helpers of its module included."""
    func = func.__func__ if type(func) is MethodType else func
    if type(func) is not FunctionType:
        return set()
    helpers = [func.__globals__.get(name) for name in func.__code__.co_names]
    codes = [func.__code__, *(h.__code__ for h in helpers if type(h) is FunctionType)]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    return names
