"""The program as a checkpoint keeps it: the graph, fingerprints of the tasks, and their code.

The graph and the fingerprints are control facts. The code is one byte string, a pickle of its
own inside the `.pkl`, opened only if the running program does not have the tasks. Code never
makes a save fail: what cannot be pickled is kept by name, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graflow_ckpt.checkpoint.model import NOT_JSON, Document
from graflow_ckpt.checkpoint.program.fingerprint import Fingerprint, digest_of_plain, fingerprints, outline
from graflow_ckpt.checkpoint.program.plan import CurrentTask, SavedTask, State
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.checkpoint.values.kinds import NotPlain
from graflow_ckpt.checkpoint.values.pickles import check_picklable, live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointError, NotStorable
from graflow_ckpt.core.facts import Cell, Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.redaction import redacted
from graflow_ckpt.core.task import Group, Task

SHOWN: Final = 1000
"""Characters of a bound argument that are shown in the control facts."""

log = logging.getLogger("graflow_ckpt.checkpoint")


@dataclass(frozen=True, slots=True)
class Program:
    """Made once per session, written with every cut."""

    facts: Document  # the graph: tasks, what they follow, fingerprints
    code: bytes
    file: str | None = None
    argv: tuple[str, ...] = ()
    workflow: str = ""
    inputs: dict[str, str] | None = None
    options: dict[str, str] | None = None
    cwd: str | None = None  # the working folder
    defined: str = ""  # the file that defines the workflow
    settings: Document | None = None  # with which the session is run


class Missing:
    """Stands for a function whose code could not be kept."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CheckpointError(
            f"The code of task {self.name!r} is not in the checkpoint: {self.where} could not be pickled.",
            hint="Resume from the program that defines it.",
            task=self.name,
        )


def describe(graph: TaskGraph, current: Sequence[CurrentTask]) -> Document:
    """Return the control facts of a compiled graph and its tasks."""
    tasks: Document = {
        task.name: {"after": task.after, "print": task.fingerprint and task.fingerprint.to_record()}
        for task in current
    }
    for name in tasks:
        node = graph.nodes[name]
        if isinstance(node, Task) and node.arguments:
            tasks[name]["arguments"] = shown(node.arguments)
    edges = json.dumps([sorted(graph.nodes), sorted(graph.edges())])
    digest = hashlib.blake2b(edges.encode(), digest_size=16).hexdigest()
    return {"tasks": tasks, "digest": digest}


def shown(arguments: Mapping[str, Any]) -> Document:
    """Return bound arguments for the control facts: the value where JSON holds it as it is, else its type."""
    found: Document = {}
    for name, value in arguments.items():
        try:
            encode(value)  # of plain types only, so that nothing of the user's runs
            text = json.dumps(value, allow_nan=False)
            if len(text) <= SHOWN and json.loads(text) == value:
                found[name] = {"value": redacted(value, name)}
                continue
        except (NotPlain, TypeError, *NOT_JSON):
            pass
        found[name] = {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
    return found


def current_tasks(graph: TaskGraph) -> list[CurrentTask]:
    """Return the nodes of a compiled graph, for a plan; a group has no body and no fingerprint."""
    own = [node for name, node in graph.nodes.items() if name not in graph.made]
    prints = fingerprints({node.name: node for node in own if isinstance(node, Task)})
    return [CurrentTask(n.name, prints.get(n.name), graph.routes[n.name].preds) for n in own]


def summary_of(graph: TaskGraph) -> str:
    """Return one digest for graph and tasks: if a checkpoint has the same, nothing has to be compared."""
    own = [node for name, node in graph.nodes.items() if name not in graph.made]
    code = outline({node.name: node for node in own if isinstance(node, Task)})
    joined = (node.name for node in own if graph.successors[node.name] or not isinstance(node, Task))
    edges = [(name, [t for t in graph.successors[name] if t not in graph.made]) for name in joined]
    return digest_of_plain((code, graph.starts, edges))


def saved_tasks(facts: Document, *, noted: bool = False) -> list[SavedTask]:
    """Return the tasks that a checkpoint knows, with the state of each.

    `noted`: of an unchanged program, only those that a plan has a note on.
    """
    states: dict[str, State] = dict.fromkeys(facts["gates"], "waiting")
    states |= dict.fromkeys([*facts["completed_tasks"], *facts["passed"]], "completed")
    states |= dict.fromkeys(facts["skipped"], "skipped")
    states |= {spec["task_id"]: spec["status"] for spec in facts["pending_tasks"]}
    graph = entries = facts["graph"]["tasks"]
    if noted:
        entries = {n: e for n, e in graph.items() if states.get(n) in _NOTED or len(e["print"] or ()) > 2}
    saved = [
        SavedTask(
            name,
            states.get(name, "unreached"),
            Fingerprint.from_record(entry["print"]) if entry["print"] else None,
            tuple(entry["after"]),
        )
        for name, entry in entries.items()
    ]
    made = set(facts["made"])
    saved += [SavedTask(n, state) for n, state in states.items() if n not in graph and n not in made]
    return saved


_NOTED = ("running", "failed", "waiting")


# --- code ------------------------------------------------------------------------------


def pack_code(graph: TaskGraph) -> bytes:
    """Pickle all tasks and edges as one; what has no pickle is kept by its name."""
    nodes = list(graph.nodes.values())
    try:
        return _pack(nodes, graph)
    except NotStorable:
        kept = [_keepable(node) for node in nodes]
        return _pack(kept, graph)


def pack_whole_code(graph: TaskGraph) -> bytes:
    """Do the same for a reader that has nothing else; NotStorable names the task that cannot travel."""
    from graflow_ckpt.checkpoint.values.code import whole  # which loads cloudpickle

    token = whole.set(True)
    try:
        return _pack(list(graph.nodes.values()), graph)
    except NotStorable:
        for node in graph.nodes.values():
            if isinstance(node, Task):
                check_picklable(node.func, f"the code of task {node.name}")
                check_picklable(node.arguments, f"the arguments of task {node.name}")
        raise
    finally:
        whole.reset(token)


def _pack(nodes: list[Any], graph: TaskGraph) -> bytes:
    entries = [(n.name, n.func, n.options, n.arguments) if isinstance(n, Task) else n for n in nodes]
    return live_bytes((entries, list(graph.edges())), "code")


def _keepable(node: Task | Group) -> Task | Group:
    if isinstance(node, Group):
        return node
    try:
        check_picklable((node.func, node.arguments), node.name)
    except NotStorable as error:
        where = f"{node.func.__module__}.{getattr(node.func, '__qualname__', node.name)}"
        log.warning(
            "the code of task %s is kept by name only (%s): it can be resumed from its program alone",
            node.name,
            error.message,
            extra={"task": node.name},
        )
        return Task(node.name, Missing(node.name, where), node.options, {})
    return node


def pack_task(task: Task, spawner: str, before: tuple[str, ...]) -> bytes:
    """Pickle one task made at run time, and its place."""
    return live_bytes((task.name, task.func, task.options, task.arguments, spawner, before), task.name)


def unpack_task(record: Cell, python: str = "") -> tuple[Task, str, tuple[str, ...]]:
    """Return a task made at run time, and its place; `python` has stored it."""
    if isinstance(record, Live):
        task, spawner, before = record.value
        return task, spawner, before
    name, func, options, arguments, spawner, before = load_live(record, python)
    return Task(name, func, options, arguments), spawner, before


def unpack_code(code: bytes, known: Callable[[Task], Task], python: str = "") -> TaskGraph:
    """Return the graph of a checkpoint; `known` may put a task of the running program in its place."""
    entries, edges = load_live(code, python)
    graph = TaskGraph()
    for entry in entries:
        graph.add(entry if isinstance(entry, Group) else known(Task(*entry)))
    for source, target in edges:
        graph.add_edge(source, target)
    return graph
