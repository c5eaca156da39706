"""Programs: how the code of a session reaches a worker.

It is stored sealed, once under its digest. What can be imported travels by reference; then the
worker's module has to be the one that the session was made with, or the session is left to
workers that have it. A program is opened once per process and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from graflow_ckpt.checkpoint import parcel as parcels
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.parcel import Parcel
from graflow_ckpt.checkpoint.plan import Plan, make_plan
from graflow_ckpt.checkpoint.program import current_tasks, saved_tasks, summary_of, unpack_code
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import CheckpointError, GraflowError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.bind import Binding, bind
from graflow_ckpt.engine.preflight import check_graph
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink

TTL = 30 * 24 * 3600
_KEPT = 32  # programs per process


class ProgramMissing(GraflowError):
    """This worker lacks the program of a session, or a module of it. `.why` says what."""


class ProgramDiffers(GraflowError):
    """This worker's module is another than the session's. `.table` says where."""


@dataclass(slots=True)
class Loaded:
    """A program, ready to run."""

    parcel: Parcel
    graph: TaskGraph
    bindings: dict[str, Binding]
    settings: Settings


def key_of(digest: str) -> str:
    return f"graflow:code:{digest}"


class Programs:
    """Those that this process has opened, the latest last."""

    def __init__(self, link: RedisLink, keyring: Keyring | None) -> None:
        self._link = link
        self._keyring = keyring
        self._open: OrderedDict[tuple[str, tuple[str, ...]], Loaded] = OrderedDict()
        self._stored: set[str] = set()

    def store(self, parcel: Parcel) -> str:
        """Put it there for the workers; its digest."""
        packed = parcel.pack()
        digest = parcels.digest_of(packed)
        if digest not in self._stored:
            with translated(self._link.address):
                self._client(digest).set(key_of(digest), self._cells(digest).seal(packed), ex=TTL)
            self._stored.add(digest)
        return digest

    def load(self, digest: str, starts: tuple[str, ...]) -> Loaded:
        """The program of that digest; ProgramMissing or ProgramDiffers if it cannot run here."""
        found = self._open.get((digest, starts))
        if found is None or found.graph.made:  # another session's tasks have joined that graph
            found = self._open[digest, starts] = self._opened(self.parcel(digest), starts)
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
        self._open.move_to_end((digest, starts))
        return found

    def parcel(self, digest: str) -> Parcel:
        """The program's facts; its pickles stay closed."""
        with translated(self._link.address):
            sealed: Any = self._client(digest).get(key_of(digest))
        if sealed is None:
            raise ProgramMissing(
                f"The program {digest} is not in {self._link.address}.",
                hint="It expired, or was deleted: submit the workflow again.",
                digest=digest,
                why="the program is not in Redis",
            )
        return parcels.unpack(self._cells(digest).open("the program", sealed))

    def _opened(self, parcel: Parcel, starts: tuple[str, ...]) -> Loaded:
        try:
            graph = unpack_code(parcel.program.code, lambda task: task)
            settings = parcel.settings()
        except CheckpointError as error:
            cause = error.__cause__
            lacks = cause.name if isinstance(cause, ImportError) and cause.name else str(cause or error)
            raise ProgramMissing(
                f"This worker cannot import {lacks!r}, which the workflow uses.",
                hint=f"Install the package that has {lacks!r} here; until then other workers are asked.",
                why=f"no module {lacks!r}",
            ) from error
        graph.compile(starts)
        plan = self._differs(parcel, graph)
        if plan is not None:
            raise ProgramDiffers(
                f"This worker has another version of workflow {parcel.program.workflow!r}.",
                hint="Deploy the version that the session was submitted with, or fork the session.",
                table=[row for row in plan.rows if row.verdict in ("changed", "new", "orphaned")],
                why="another version of the module",
            )
        if parcel.calls:
            nodes = graph.nodes.items()
            bindings = {name: bind(graph, node) for name, node in nodes if isinstance(node, Task)}
            return Loaded(parcel, graph.as_bag(), bindings, settings)
        bindings = check_graph(graph, settings, parcel.given, shared=True)
        return Loaded(parcel, graph, bindings, settings)

    def _differs(self, parcel: Parcel, graph: TaskGraph) -> Plan | None:
        facts = parcel.program.facts
        if facts.get("summary") == summary_of(graph):
            return None
        names = list(facts["tasks"])
        done = {"graph": facts, "completed_tasks": names, "pending_tasks": [], "gates": {}, "passed": [],
                "skipped": {}, "made": []}  # fmt: skip
        plan = make_plan(saved_tasks(done), current_tasks(graph))
        return plan if plan.refused else None

    def _client(self, digest: str) -> Any:
        return self._link.route.client_for(key_of(digest))

    def _cells(self, digest: str) -> SealedCells:
        return SealedCells(f"code-{digest}", self._keyring)
