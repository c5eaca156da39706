"""A parcel: the program of a session as it travels to workers, sealed as a whole.

    head   JSON: workflow, graph and fingerprints, file and argv, what travels by value, sizes of what follows
    code   the pickled graph: by reference where modules can be imported, else by value
    manner the pickled settings that workers go by

It is stored once under the digest of its bytes, and opened only after its seal has been checked.
Whether a machine can open it is seen from the head; fingerprints of what has been looked up by name
are compared before any of it is run. Code that cannot travel is refused where it is packed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from graflow_ckpt.checkpoint.fingerprint import Fingerprint, summary
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.pickles import live_bytes, load_live
from graflow_ckpt.checkpoint.program import (
    Program,
    current_tasks,
    describe,
    pack_whole_code,
    summary_of,
    unpack_code,
)
from graflow_ckpt.checkpoint.references import references
from graflow_ckpt.core.errors import CheckpointCorrupt, SchemaUnsupported
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task

FORMAT = 1
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_BY_VALUE = b"cloudpickle.cloudpickle"  # who makes functions and classes of what is in the pickle


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a worker needs to know of a program."""

    program: Program
    manner: bytes
    calls: bool = False  # its tasks are called with the arguments of their specs
    given: tuple[str, ...] = ()  # the names of the session's inputs: parameters may be filled by them
    values: frozenset[str] = frozenset()  # the tasks whose code travels
    uses: tuple[tuple[str, Fingerprint], ...] = ()  # what that code takes from modules of the user
    summary: str = ""  # of the tasks that are looked up by name
    python: str = PYTHON  # that has made it

    def pack(self) -> bytes:
        """The bytes that are stored; the same program gives the same ones."""
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
        """Whether it can be opened by the Python alone that has made it."""
        return _BY_VALUE in self.program.code or _BY_VALUE in self.manner

    def graph(self) -> TaskGraph:
        """Opens the code."""
        return unpack_code(self.program.code, lambda task: task, self.python)

    # What `manner` holds is the sender's; hence Any.
    def settings(self) -> Any:
        return load_live(self.manner, self.python)


def digest_of(packed: bytes) -> str:
    """What a parcel is stored under."""
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
    """The parcel of a compiled graph; NotStorable names the task whose code cannot travel."""
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
    """One digest for all tasks of a graph that are looked up by name."""
    travel = set(values)
    return summary(
        {name: node for name, node in graph.nodes.items() if isinstance(node, Task) and name not in travel}
    )


def unpack(packed: bytes) -> Parcel:
    """A parcel whose seal has been checked; its pickles stay closed."""
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
