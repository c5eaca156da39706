"""The program as a checkpoint keeps it: the graph, fingerprints of the tasks, and their code.

The graph and the fingerprints are control facts. The code is one byte string, a pickle of its
own inside the `.pkl`, opened only if the running program does not have the tasks. Code never
makes a save fail: what cannot be pickled is kept by name, with a warning.

Fingerprints: is this still the task that made the result? A fingerprint covers the code of a task
(instructions, constants, names and flags), its defaults and bound arguments, constants in its module or
closure, and the functions and classes of the user's own modules that it names, followed as far as they go. A
package that decorates tasks is the user's own wherever it is, in a checkout or installed. What it cannot see
it names in `not_seen`: objects, mutable containers, attributes of functions, installed packages by their
name. The standard library, this package, loggers and type hints are not listed.

Promise: the same source gives the same digest in another process, on other lines, under another module name,
with other comments and docstrings. At worst an unchanged task is taken for a changed one, never the other way
round. Of two tasks of one graph, one that names the other depends on its code, unless it calls `next_task`:
what it passes on is seen in that task's own row. Not here: what to do about a change (plan.py).
"""

from __future__ import annotations

import json
import logging
import marshal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter
from types import CodeType, FunctionType, NoneType
from typing import Any, Final, Literal, NamedTuple

from graflow_ckpt._restore import PYTHON
from graflow_ckpt.checkpoint.model import NOT_JSON, Document, at_round
from graflow_ckpt.checkpoint.program.reader import Reader, Reading, digest_of
from graflow_ckpt.checkpoint.values.codec import NotPlain, encode
from graflow_ckpt.checkpoint.values.pickles import check_picklable, live_bytes, load_live, whole
from graflow_ckpt.core.errors import CheckpointError, NotStorable
from graflow_ckpt.core.facts import Cell, Live
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.redaction import redacted
from graflow_ckpt.core.task import Group, Task

SHOWN: Final = 1000
"""Characters of a bound argument that are shown in the control facts."""

log = logging.getLogger("graflow_ckpt.checkpoint")


@dataclass(frozen=True)
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

    @cached_property
    def graph(self) -> str:
        """The facts as JSON: the same in every cut, and most of its control facts."""
        return json.dumps(self.facts, separators=(",", ":"))


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


State = Literal["completed", "running", "pending", "failed", "skipped", "waiting", "unreached"]


class SavedTask(NamedTuple):
    """A task as the checkpoint knows it. `unreached`: in the graph then, and never enqueued."""

    name: str
    state: State
    fingerprint: Fingerprint | None = None
    after: tuple[str, ...] = ()
    policy: str = ""  # of a group
    at: str = ""  # where its loops are

    def of_the_program(self) -> tuple[Any, ...]:
        """Return what a current task has, too, but for its name."""
        return self[2:5]


class CurrentTask(NamedTuple):
    """A task of the program now; `after` are its predecessors on forward edges, loop edges are not."""

    name: str
    fingerprint: Fingerprint | None = None
    after: tuple[str, ...] = ()
    policy: str = ""


def describe(graph: TaskGraph, current: Sequence[CurrentTask]) -> Document:
    """Return the control facts of a compiled graph and its tasks."""
    tasks: Document = {
        task.name: {"after": task.after, "print": task.fingerprint and task.fingerprint.to_record()}
        for task in current
    }
    for name in tasks:
        node = graph.nodes[name]
        if isinstance(node, Group):
            tasks[name]["policy"] = repr(node.policy)
        elif node.arguments:
            tasks[name]["arguments"] = shown(node.arguments)
    edges = json.dumps([sorted(graph.nodes), sorted(graph.edges())])
    digest = blake2b(edges.encode(), digest_size=16).hexdigest()
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
    return [CurrentTask(n.name, prints.get(n.name), graph.routes[n.name].preds, _policy(n)) for n in own]


def _policy(node: Task | Group) -> str:
    return "" if isinstance(node, Task) else repr(node.policy)


def summary_of(graph: TaskGraph) -> str:
    """Return one digest for graph and tasks: if a checkpoint has the same, nothing has to be compared."""
    made, onward = graph.made, graph.successors
    own = {name: node for name, node in graph.nodes.items() if name not in made}
    code = outline({name: node for name, node in own.items() if isinstance(node, Task)})
    edges = [
        (name, [t for t in onward[name] if t not in made] if made else onward[name], _policy(node))
        for name, node in own.items()
        if onward[name] or not isinstance(node, Task)
    ]
    return digest_of_plain((code, graph.starts, edges))


def saved_tasks(facts: Document, *, noted: bool = False) -> list[SavedTask]:
    """Return the tasks that a checkpoint knows, with the state of each.

    `noted`: of an unchanged program, only those that a plan has a note on.
    """
    states: dict[str, State] = dict.fromkeys(facts["gates"], "waiting")
    states |= dict.fromkeys([*facts["completed_tasks"], *facts["passed"]], "completed")
    states |= dict.fromkeys(facts["skipped"], "skipped")
    states |= {spec["task_id"]: spec["status"] for spec in facts["pending_tasks"]}
    at = {spec["task_id"]: at_round(spec["rounds"]) for spec in facts["pending_tasks"] if "rounds" in spec}
    graph = entries = facts["graph"]["tasks"]
    if noted:
        noted_here = {*at, *(name for name, state in states.items() if state in _NOTED)}
        entries = {n: e for n, e in graph.items() if n in noted_here or len(e["print"] or ()) > 2}
    saved = [
        SavedTask(
            name,
            states.get(name, "unreached"),
            Fingerprint.from_record(entry["print"]) if entry["print"] else None,
            tuple(entry["after"]),
            entry.get("policy", ""),  # not in checkpoints of versions before
            at.get(name, ""),
        )
        for name, entry in entries.items()
    ]
    made = set(facts["made"])
    saved += [SavedTask(n, state) for n, state in states.items() if n not in graph and n not in made]
    return saved


_NOTED = ("running", "failed", "waiting")


# --- fingerprints ----------------------------------------------------------------------

_SCHEME = 3  # raise it when the digest of unchanged code changes: saved ones become "unknown"
_WRITTEN = f"{PYTHON}/{_SCHEME}"


class Fingerprint(NamedTuple):
    """A digest of a task, and what is not in it."""

    python: str
    """The minor that it was taken on; only within one can digests be compared."""
    digest: str
    not_seen: tuple[str, ...] = ()

    def to_record(self) -> list[str]:
        return [f"{self.python}/{_SCHEME}", self.digest, *self.not_seen]

    @classmethod
    def from_record(cls, record: Iterable[str]) -> Fingerprint:
        python, digest, *not_seen = record
        if python != _WRITTEN:
            minor, _, scheme = python.partition("/")
            # Of another scheme: kept whole, so that it equals no Python and compares as unknown.
            return cls(minor if scheme == str(_SCHEME) else python, digest, tuple(not_seen))
        return cls(PYTHON, digest, tuple(not_seen))


_SIMPLE = frozenset({int, float, str, bytes, bool, NoneType})
"""Types of constants whose text is the same in every process, whatever they are in."""


# Any, here and below: a body is whatever can be called, or a task with bound arguments.
def fingerprint(func: Callable[..., Any], *, packages: Collection[str] = ()) -> Fingerprint:
    """Return the fingerprint of one task, as if it were alone."""
    return _Printer((), packages).take(func)


def fingerprints(tasks: Mapping[str, Any]) -> dict[str, Fingerprint]:
    """Return the fingerprints of the tasks of one graph."""
    printer = _Printer(tuple(tasks.values()))
    return {name: printer.take(task) for name, task in tasks.items()}


def summary(tasks: Mapping[str, Any]) -> str:
    """Return one digest for all tasks of a graph."""
    found = fingerprints(tasks)
    return digest_of([_WRITTEN, *(repr((name, *found[name])) for name in found)]).hex()


def outline(tasks: Mapping[str, Any]) -> str:
    """Return one digest for all tasks of a graph, for a tenth of what their fingerprints cost.

    If it is the same, so are all fingerprints. If not, they may still be: docstrings and names of locals are
    in it, too.
    """
    return _Printer(tuple(tasks.values())).outline(tasks)


def compare(saved: Fingerprint | None, current: Fingerprint | None) -> Literal["same", "changed", "unknown"]:
    """Return whether two fingerprints say the same; unknown where they cannot be compared."""
    if saved is None or current is None or saved.python != current.python:
        return "unknown"
    return "same" if saved.digest == current.digest else "changed"


class _Printer:
    """Makes readings into fingerprints; what tasks share is read once."""

    def __init__(self, tasks: tuple[object, ...], packages: Collection[str] = ()) -> None:
        self._reader = Reader(tasks, packages)
        # By id; the value is kept beside what is known of it, so that its id stays its own.
        self._bare: dict[tuple[int, int], tuple[CodeType, Fingerprint]] = {}
        self._reached: dict[int, tuple[object, bytes, frozenset[str]]] = {}

    def take(self, task: object) -> Fingerprint:
        body = self._reader.body(task)
        if type(body) is not FunctionType or not _is_bare(body):
            return self._print(self._reader.read(body))
        key = (id(body.__code__), id(body.__globals__))
        if key not in self._bare:  # all functions of this code are the same
            self._bare[key] = (body.__code__, self._print(self._reader.read(body)))
        return self._bare[key][1]

    def outline(self, tasks: Mapping[str, object]) -> str:
        """Return the digest; functions that are only code are read once for all that differ in constants."""
        kinds: dict[tuple[object, ...], int | None] = {}
        rows: list[object] = []
        for task, body in zip(tasks.values(), self._reader.bodies, strict=True):
            number = None
            if type(body) is FunctionType and _is_bare(body):
                code = body.__code__
                if _SIMPLE.issuperset(map(type, code.co_consts)):
                    kind = (*_kind_of(code), body.__module__, id(body.__globals__))
                    number = kinds.get(kind, -1)
                    if number == -1:
                        named = self._reader.names_in(body)
                        number = kinds[kind] = None if named is None else len(kinds)
                        rows.append((kind[:-2], named and tuple(self._print(named))))
            rows += (number, code.co_consts) if number is not None else self.take(task)
        return digest_of_plain((_WRITTEN, list(tasks), rows))

    def _print(self, reading: Reading) -> Fingerprint:
        texts, names = list(reading.parts), set(reading.not_seen)
        for lead in reading.leads:
            digest, reached = self._reach(lead)
            texts.append(digest.hex())
            names |= reached
        return Fingerprint(PYTHON, digest_of(texts).hex(), tuple(sorted(names)))

    def _reach(self, helper: object) -> tuple[bytes, frozenset[str]]:
        """Return all that can be reached from a helper, in the order in which it is named. One that is
        met again is noted by its number, so that helpers may call each other in any way."""
        known = self._reached.get(id(helper))
        if known is not None:
            return known[1:]
        order, numbers = [helper], {id(helper): 0}
        texts: list[str] = []
        not_seen: set[str] = set()
        for value in order:  # which grows
            reading = self._reader.read(value)
            not_seen.update(reading.not_seen)
            texts += (*reading.parts, "leads to")
            for lead in reading.leads:
                if id(lead) not in numbers:
                    numbers[id(lead)] = len(order)
                    order.append(lead)
                texts.append(str(numbers[id(lead)]))
        known = self._reached[id(helper)] = (helper, digest_of(texts), frozenset(not_seen))
        return known[1:]


def digest_of_plain(value: Any) -> str:
    """Return a digest of texts, numbers and lists of them: marshal format 2 writes equal ones alike."""
    return blake2b(marshal.dumps(value, 2), digest_size=16).hexdigest()


_kind_of = attrgetter(
    "co_code", "co_names", "co_varnames", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount",
    "co_flags", "co_exceptiontable",
)  # fmt: skip


def _is_bare(function: FunctionType) -> bool:
    """Return whether it has nothing of its own beside the code."""
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__ or function.__dict__)


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
