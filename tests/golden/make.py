"""Writes the golden files of the current schema: one trio and the journal after it.

Run once per released schema, and never again for one that was released: `python -m tests.golden.make`.
The checkpoints of a released schema have to load for ever, so what is here is history, not a fixture.

The session is written transition by transition, without an engine, so that every table of the state has
something in it. The key is public: it seals nothing but these files.
"""

from __future__ import annotations

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.model import SCHEMA
from graflow_ckpt.checkpoint.program.program import Program, current_tasks, describe, pack_code
from graflow_ckpt.checkpoint.seals import seal
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.core.task import AtLeast, Group, Options, Task
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.files.store import LocalStore

KEY = f"golden:{'67' * 32}"
SESSION = "golden"

VALUES: dict[str, Any] = {
    "nothing": None,
    "truth": [True, False],
    "numbers": [0, -1, 2**63, -(2**200), 1.5, -0.0, float("inf")],
    "texts": ["", "a", "ä€😀", b"", b"\x00\xff"],
    "tuples": (1, (2, [3, {"a": (4,)}])),
    "keys": {1: "one", "1": "text", (1, 2): "pair", None: "none"},
    "sets": [{1, 2}, frozenset({3})],
    "times": [
        datetime.date(2025, 3, 4),
        datetime.time(5, 6, 7, 8),
        datetime.datetime(2025, 3, 4, 5, 6, 7, 8, tzinfo=datetime.UTC),
        datetime.timedelta(days=1, seconds=2, microseconds=3),
    ],
    "others": [Decimal("1.10"), UUID(int=7), PurePosixPath("a/b")],
}
"""Plain values of every kind that needs nothing but the standard library."""

LOG = ["first", {"second": 2}]
LIVE = slice(1, 10, 2)
"""A live value that unpickles wherever Python is."""


def prepare() -> int:
    return 1


def work(prepare: int) -> int:
    return prepare + 1


def finish(left: int, right: int) -> int:
    return left + right


def graph() -> TaskGraph:
    made = TaskGraph()
    for name, func in (("prepare", prepare), ("left", work), ("right", work), ("finish", finish)):
        made.add(Task(name, func, Options(max_retries=2, priority=1)))
    made.add(Group("both", AtLeast(1), ("left", "right"), frozenset({"left", "right"})))
    for edge in (
        ("prepare", "left"), ("prepare", "right"), ("left", "both"), ("right", "both"), ("both", "finish"),
        ("finish", "prepare"),
    ):  # fmt: skip
        made.add_edge(*edge)
    made.compile(["prepare"])
    return made


def before_the_cut(routes: TaskGraph) -> list[list[Op]]:
    """Transitions 1 to 6; the session is at its sixth when it is cut."""
    inputs: list[Op] = [("put", name, encode(value), -1) for name, value in VALUES.items()]
    enqueue = {name: route.enqueue() for name, route in routes.routes.items()}
    return [
        [("reopen", 3, 50), *inputs, enqueue["prepare"], ("claim", 1)],
        [("end", 1, 1, "completed", encode(1)), *routes.routes["prepare"].done, ("claim", 1)],
        [("end", 2, 2, "retry", 2e9, "OSError: later"), ("claim", 1)],
        [("append", "log", encode(LOG[0])), ("append", "log", encode(LOG[1])), ("rng", encode([1, 2]))],
        [
            (*enqueue["finish"][:2], encode({"data": [1]}), *enqueue["finish"][3:]),
            ("expect", "both", 1, 2, 1),
        ],
        [
            ("put", "live", Live(LIVE), -1),
            ("skipped", "never"),
            ("task", "made", b"\x80"),
            routes.routes["both"].arrive(0),
            enqueue["prepare"],
        ],
    ]


def after_the_cut() -> list[list[Op]]:
    """Transitions 7 to 9, in the journal alone."""
    return [
        [("end", 3, 3, "completed", encode((2, 3))), ("put", "numbers", encode([7]), -1), ("claim", 1)],
        [("append", "log", encode("third")), ("arrive", "both", 1, 2, 1, 0, 0, "default", "pass")],
        [("end", 4, 4, "failed", "ValueError: no"), ("status", "failing", "ValueError: no"), ("claim", 0)],
    ]


def main(folder: Path) -> None:
    if folder.exists():
        raise SystemExit(f"{folder} is there already; a released schema is not written again")
    ring = Keyring.load({"GRAFLOW_CKPT_KEY": KEY})
    for func in (prepare, work, finish):  # a copy of the code names its file
        func.__code__ = func.__code__.replace(co_filename="golden.py")
    tasks, state = graph(), SessionState(SESSION, ("prepare",))
    for ops in before_the_cut(tasks):
        apply(state, ops, 1000.0)
    program = Program(
        describe(tasks, current_tasks(tasks)), pack_code(tasks), "golden.py", ("golden.py",), "golden"
    )
    snapshot = capture(state, begun={3})
    metadata = metadata_of(
        snapshot, program, path=str(folder / "golden.pkl"), sequence=2, cause="request", user={"epoch": 4}
    )
    archive.save(LocalStore(folder), ring, None, snapshot, program, metadata)
    _forget_the_machine(folder / "golden.meta.json", ring)
    writer = journal.Writer(ring, SESSION, 3, state.sequence)
    frames = [writer.head]
    for ops in after_the_cut():
        apply(state, ops, 1001.0)
        frames.append(writer.frame(journal.pack(state.sequence, 1001.0, ops)))
    (folder / "golden.3.6.journal").write_bytes(b"".join(frames))


def _forget_the_machine(path: Path, ring: Keyring) -> None:
    """The folder, the host and the time at which these files were written are nobody's business."""
    meta = json.loads(path.read_text())
    meta |= {"home": "file:///golden", "host": "golden", "created_at": "2025-01-01T00:00:00+00:00"}
    path.write_text(json.dumps(seal(meta, ring), separators=(",", ":")))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / f"schema-{SCHEMA}"
    del __file__  # it would be in the copy of the code
    main(target)
