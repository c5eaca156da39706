"""A parcel: the program of a session as it travels to workers, sealed as a whole.

    head   JSON: workflow, graph and fingerprints, file and argv, what travels by value, sizes of what follows
    code   the pickled graph: by reference where modules can be imported, else by value
    manner the pickled settings that workers go by

It is stored once under the digest of its bytes, and opened only after its seal has been checked.
Whether a machine can open it is seen from the head; fingerprints of what has been looked up by name
are compared before any of it is run. Code that cannot travel is refused where it is packed.

References: what of a program is looked up by its name where it is opened, and what it takes along.

    by name    a function that an importable module has under its own name, decorated or not
    by value   lambdas, closures, what `__main__` defines, objects; and what they use of the user's own
               modules is by name again

What is by name may be another version elsewhere, and is compared. What is by value is what was packed:
comparing it would find differences that packing has made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple

from blake3 import blake3

from graflow_ckpt import _restore
from graflow_ckpt._restore import PYTHON
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.program.program import (
    Fingerprint,
    Program,
    compare,
    current_tasks,
    describe,
    fingerprint,
    pack_whole_code,
    summary,
    summary_of,
    unpack_code,
)
from graflow_ckpt.checkpoint.program.reader import Reader, is_a
from graflow_ckpt.checkpoint.values.pickles import by_value, live_bytes, load_live
from graflow_ckpt.core.errors import CheckpointCorrupt, SchemaUnsupported
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task


class References(NamedTuple):
    """The references of the tasks of one graph."""

    by_value: tuple[str, ...]  # the tasks whose code travels
    uses: dict[str, Fingerprint]  # what that code takes from modules of the user, as "module:name"


def references(tasks: Mapping[str, Callable[..., Any]]) -> References:
    """Return what each body is, and what those that travel take from modules."""
    values = {name: body for name, body in tasks.items() if not _has_name(body)}
    return References(tuple(values), _uses(list(values.values())))


def differing(uses: Mapping[str, Fingerprint]) -> list[str]:
    """Return those that differ here. A module that is not here is no difference: it was not asked for."""
    found = []
    for place, print_ in uses.items():
        module, _, name = place.partition(":")
        try:
            here = _restore.walk(import_module(module), name)
        except ImportError:
            continue
        if not callable(here) or compare(print_, _print(module, here)) == "changed":
            found.append(place)
    return found


def _uses(bodies: list[Any]) -> dict[str, Fingerprint]:
    reader = Reader(bodies)
    uses: dict[str, Fingerprint] = {}
    pending: list[Any] = [reader.body(body) for body in bodies]
    seen = {id(body) for body in pending}
    for value in pending:  # which grows
        for found in reader.read(value).leads:
            lead: Any = found
            if id(lead) in seen:
                continue
            seen.add(id(lead))
            if _has_name(lead):
                module = str(lead.__module__)
                uses[f"{module}:{lead.__qualname__}"] = _print(module, lead)
            else:
                pending.append(lead)
    return uses


def _print(module: str, value: Any) -> Fingerprint:
    body = value.func if is_a(value, Task) else value
    return fingerprint(body, packages=(module.partition(".")[0],))


def _has_name(value: Any) -> bool:
    """Return whether a function or class is opened by looking it up."""
    if not isinstance(value, FunctionType | type):
        return False
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or "<" in name or not isinstance(module, str):
        return False
    if by_value(module):
        return False
    found = _restore.walk(sys.modules.get(module), name)
    return found is value or (is_a(found, Task) and found.func is value)


FORMAT = 1
_BY_VALUE = b"cloudpickle.cloudpickle"  # what makes functions and classes of what is in the pickle


@dataclass(frozen=True, slots=True)
class Parcel:
    """The facts that a worker needs of a program."""

    program: Program
    manner: bytes
    calls: bool = False  # its tasks are called with the arguments of their specs
    given: tuple[str, ...] = ()  # the names of the session's inputs: parameters may be filled by them
    values: frozenset[str] = frozenset()  # the tasks whose code travels
    uses: tuple[tuple[str, Fingerprint], ...] = ()  # what that code takes from modules of the user
    summary: str = ""  # of the tasks that are looked up by name
    python: str = PYTHON  # that has made it

    def pack(self) -> bytes:
        """Return the bytes that are stored; the same program gives the same ones."""
        program = self.program
        head = {
            "format": FORMAT,
            "facts": program.facts,
            "workflow": program.workflow,
            "file": program.file,
            "argv": list(program.argv),
            "inputs": program.inputs or {},
            "code": len(program.code),
            "calls": self.calls,
            "given": self.given,
            "values": sorted(self.values),
            "uses": {name: print_.to_record() for name, print_ in self.uses},
            "summary": self.summary,
            "python": self.python,
            "settings": program.settings,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        return b"%d\n%b%b%b" % (len(text), text, program.code, self.manner)

    @property
    def bound(self) -> bool:
        """Return whether only the Python that has made it can open it."""
        return _BY_VALUE in self.program.code or _BY_VALUE in self.manner

    def graph(self) -> TaskGraph:
        """Open the code."""
        return unpack_code(self.program.code, lambda task: task, self.python)

    # What `manner` holds is the sender's; hence Any.
    def settings(self) -> Any:
        return load_live(self.manner, self.python)


def digest_of(packed: bytes) -> str:
    """Return the digest that a parcel is stored under."""
    return blake3(packed).hexdigest(16)


def make(
    graph: TaskGraph,
    workflow: str,
    manner: Any,
    file: str | None = None,
    *,
    calls: bool = False,
    given: Iterable[str] = (),
    settings: Document | None = None,
) -> Parcel:
    """Return the parcel of a compiled graph; NotStorable names the task whose code cannot travel."""
    facts: Document = describe(graph, current_tasks(graph))
    facts["summary"] = summary_of(graph)
    program = Program(facts, pack_whole_code(graph), file, (), workflow, settings=settings)
    bodies = {name: node.func for name, node in graph.nodes.items() if isinstance(node, Task)}
    values, uses = references(bodies)
    return Parcel(
        program,
        live_bytes(manner, "settings"),
        calls,
        tuple(sorted(given)),
        frozenset(values),
        tuple(sorted(uses.items())),
        summary_by_name(graph, values),
    )


def summary_by_name(graph: TaskGraph, values: Iterable[str]) -> str:
    """Return one digest for all tasks of a graph that are looked up by name."""
    travel = set(values)
    return summary(
        {name: node for name, node in graph.nodes.items() if isinstance(node, Task) and name not in travel}
    )


def unpack(packed: bytes) -> Parcel:
    """Return a parcel whose seal has been checked; its pickles stay closed."""
    try:
        size, _, rest = packed.partition(b"\n")
        head, body = json.loads(rest[: int(size)]), rest[int(size) :]
        if head["format"] <= FORMAT:
            return _of(head, body)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"The program of a session does not hold together: {error!r}.") from error
    raise SchemaUnsupported(
        "The program of a session was packed by a newer version of graflow-ckpt.",
        hint="Upgrade this worker, or submit with its version.",
    )


def _of(head: Document, body: bytes) -> Parcel:
    code, manner = body[: head["code"]], body[head["code"] :]
    argv, given = tuple(head["argv"]), tuple(head["given"])
    program = Program(
        head["facts"], code, head["file"], argv, head["workflow"], head["inputs"],
        settings=head.get("settings"),
    )  # fmt: skip
    uses = tuple((name, Fingerprint.from_record(record)) for name, record in head["uses"].items())
    return Parcel(
        program, manner, bool(head["calls"]), given, frozenset(head["values"]), uses,
        head["summary"], head["python"],
    )  # fmt: skip
