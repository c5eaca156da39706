"""Trios for tests: a small session saved without an engine, under a fixed key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Allowance, metadata_of
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import Task
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.files.store import LocalStore

KEY = f"k1:{'31' * 32}"
RING = Keyring({"k1": b"1" * 32})
ENQUEUE: Op = ("enqueue", "a", b"\x07", 0, 0, "default", "direct")


def first() -> int:
    return 1


def second(a: int) -> int:
    return a + 1


def graph() -> TaskGraph:
    made = TaskGraph()
    made.add(Task("a", first))
    made.add(Task("b", second))
    made.add_edge("a", "b")
    made.compile(["a"])
    return made


def state(session: str = "s", *ops: Op) -> SessionState:
    made = SessionState(session, ("a",))
    apply(made, [("put", "x", b"\x05", -1), ENQUEUE, *ops], 0.0)
    return made


_GRAPH = graph()
_PROGRAM = Program(describe(_GRAPH, current_tasks(_GRAPH)), pack_code(_GRAPH), "prog.py", ("prog.py",), "w")


def save(
    folder: Path,
    name: str = "x.pkl",
    *,
    session: str = "s",
    sequence: int = 1,
    epoch: int = 1,
    of: SessionState | None = None,
    cause: str = "request",
    user: dict[str, Any] | None = None,
    ring: Keyring = RING,
    store: CheckpointStore | None = None,
    path: str = "",
    lease: Lease | None = None,
    allowance: Allowance | None = None,
    going: Callable[[str, bytes], Iterable[str]] = lambda path, meta: (),
    facts: dict[str, Any] | None = None,
    **more: Any,
) -> CheckpointMetadata:
    """One trio of a session in a folder. `facts`, `more`: other control facts, and fields of its metadata."""
    snapshot = capture(of or state(session))
    snapshot.facts.update({"epoch": epoch, **(facts or {})})
    path = path or str(folder / name)
    metadata = metadata_of(snapshot, _PROGRAM, path=path, sequence=sequence, cause=cause, user=user)
    for field, value in more.items():
        setattr(metadata, field, value)
    place, along = store or LocalStore(folder), partial(going, path)
    return archive.save(place, ring, lease, snapshot, _PROGRAM, metadata, allowance, along)
