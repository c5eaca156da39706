"""A parcel: the program of a session as it travels to workers, sealed as a whole.

    head   JSON: workflow, graph and fingerprints, file and argv, sizes of what follows
    code   the pickled graph: by reference where modules can be imported, else by value
    manner the pickled settings that workers go by

It is stored once under the digest of its bytes, and opened only after its seal has been checked.
Fingerprints can be compared before the code is opened, and code is opened only where it is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.pickles import live_bytes, load_live
from graflow_ckpt.checkpoint.program import Program, current_tasks, describe, pack_code, summary_of
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a worker needs to know of a program."""

    program: Program
    manner: bytes
    calls: bool = False  # its tasks are called with the arguments of their specs
    given: tuple[str, ...] = ()  # the names of the session's inputs: parameters may be filled by them

    def pack(self) -> bytes:
        """The bytes that are stored; the same program gives the same ones."""
        program = self.program
        head = {
            "facts": program.facts,
            "workflow": program.workflow,
            "file": program.file,
            "argv": list(program.argv),
            "inputs": program.inputs or {},
            "code": len(program.code),
            "calls": self.calls,
            "given": self.given,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        return b"%d\n%b%b%b" % (len(text), text, program.code, self.manner)

    # What `manner` holds is the sender's; hence Any.
    def settings(self) -> Any:
        return load_live(self.manner)


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
) -> Parcel:
    """The parcel of a compiled graph."""
    facts: Document = describe(graph, current_tasks(graph))
    facts["summary"] = summary_of(graph)
    program = Program(facts, pack_code(graph), file, (), workflow)
    return Parcel(program, live_bytes(manner, "settings"), calls, tuple(sorted(given)))


def unpack(packed: bytes) -> Parcel:
    """A parcel whose seal has been checked; its pickles stay closed."""
    try:
        size, _, rest = packed.partition(b"\n")
        head = json.loads(rest[: int(size)])
        body = rest[int(size) :]
        code, manner = body[: head["code"]], body[head["code"] :]
        program = Program(
            head["facts"], code, head["file"], tuple(head["argv"]), head["workflow"], head["inputs"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"The program of a session does not hold together: {error!r}.") from error
    return Parcel(program, manner, bool(head["calls"]), tuple(head["given"]))
