"""Programs: how the code of a session reaches a worker.

    submit   packed, sealed, stored once under its digest; stored already: it is kept for longer
    worker   fetched, seal checked, opened, compared; kept open for the next session that has it

What can be imported is sent by reference; then the worker's module has to be the one that the session
was made with, or the session is left to workers that have it. What cannot be opened here is not
tried again at every token. Nothing of one session is left in the graph that the next one gets.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic
from traceback import extract_tb
from typing import NamedTuple

from graflow_ckpt._restore import PYTHON
from graflow_ckpt.checkpoint.program import parcel as parcels
from graflow_ckpt.checkpoint.program.parcel import Parcel, differing
from graflow_ckpt.checkpoint.program.plan import PlanRow
from graflow_ckpt.checkpoint.program.program import Fingerprint, compare, fingerprints
from graflow_ckpt.checkpoint.seals import SealedCells, sealed_by
from graflow_ckpt.checkpoint.values.codec import is_atom
from graflow_ckpt.core.errors import GraflowError, ServerError, UnsafeCheckpoint
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.bind import Binding, bind, check_graph
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared import Made
from graflow_ckpt.fleet.lists import asked
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.stores.around.keys import Keyring

TTL = 60 * 24 * 3600
"""Seconds for which a program is kept after it was last used: for longer than any session that has ended."""

FRESH = 3600.0
"""Seconds in which a process that uses a program pushes that end ahead once."""

AGAIN = 5.0
"""Seconds for which a program that could not be opened is not tried again."""

_KEPT = 32  # programs per process
_HEAD = 65  # bytes of a sealed program that hold the id of its key


class ProgramMissing(GraflowError):
    """This worker cannot open the program of a session: it lacks something, or that fails here."""


class ProgramDiffers(GraflowError):
    """This worker's module is another than the session's. `.table` says where."""


@dataclass(slots=True)
class Loaded:
    """A program, ready to run."""

    parcel: Parcel
    graph: TaskGraph
    bindings: dict[str, Binding]
    settings: Settings
    session: str  # that has it; another one may have to get a graph of its own
    made: Made = field(default_factory=Made)  # at run time, by that session

    def given_to(self, session: str) -> None:
        self.session = session

    @property
    def spent(self) -> bool:
        """True if bodies of this session may have left something in the graph."""
        bound = (
            v for node in self.graph.nodes.values() if isinstance(node, Task) for v in node.arguments.values()
        )
        return bool(self.graph.made) or any(not is_atom(value) for value in bound)


class Packed(NamedTuple):
    """A program that is about to be stored."""

    digest: str
    data: bytes

    @classmethod
    def of(cls, parcel: Parcel) -> Packed:
        data = parcel.pack()
        return cls(parcels.digest_of(data), data)


def key_of(digest: str) -> str:
    return f"graflow:code:{digest}"


def proof(cells: SealedCells, digest: str, starts: str, store: str) -> bytes:
    """Return what is kept with a session as proof: its maker has the key, its program and store are these."""
    return cells.seal(_words(digest, starts, store), "proof")


def check_proof(cells: SealedCells, known: bytes | None, digest: str, starts: str, store: str) -> None:
    """Refuse a session that was led to another program."""
    if cells.open("the program", known or b"", "proof") != _words(digest, starts, store):
        raise UnsafeCheckpoint(
            f"The program {digest} is not that of this session: its seal is for another one.",
            hint="A program without the key has changed what Redis keeps of the session.",
            digest=digest,
        )


def _words(*words: str) -> bytes:
    return "\n".join(words).encode()


class Programs:
    """The programs that this process has stored or opened, the latest last."""

    def __init__(self, link: RedisLink, keyring: Keyring | None) -> None:
        self._link = link
        self.keyring = keyring
        self._open: OrderedDict[tuple[str, tuple[str, ...]], Loaded] = OrderedDict()
        self._failed: dict[str, tuple[float, GraflowError]] = {}
        self._fresh: dict[str, float] = {}

    # --- storing -----------------------------------------------------------------------

    def store(self, packed: Packed, keyring: Keyring) -> None:
        """Have it there for the workers."""
        digest, data = packed
        key = key_of(digest)
        with asked(self._link, **{key: "string"}):
            pipe = self._link.client.pipeline(transaction=False)
            head, _ = pipe.getrange(key, 0, _HEAD).expire(key, TTL).execute()
            if sealed_by(head) != keyring.signing[0]:  # none, or of a key that is on its way out
                self._link.client.set(key, SealedCells(_place(digest), keyring).seal(data, "program"), ex=TTL)

    def keep(self, digest: str, found: Loaded | None = None) -> None:
        """Keep a program that is in use: a session may take longer than any program is kept."""
        if monotonic() < self._fresh.get(digest, 0.0):
            return
        if len(self._fresh) > 1000:
            self._fresh.clear()
        self._fresh[digest] = monotonic() + FRESH
        key = key_of(digest)
        with asked(self._link, **{key: "string"}):
            there = self._link.client.expire(key, TTL)
        if not there and found is not None and self.keyring is not None:
            self.store(Packed.of(found.parcel), self.keyring)

    # --- opening -----------------------------------------------------------------------

    def knows(self, digest: str, starts: tuple[str, ...]) -> bool:
        """Return True if it is open already: to open one may take long."""
        return (digest, starts) in self._open

    def load(self, digest: str, starts: tuple[str, ...], session: str = "") -> Loaded:
        """Return the program of that digest; raise ProgramMissing or ProgramDiffers if it cannot run here."""
        found = self._open.get((digest, starts))
        self.keep(digest, found)
        if found is None:
            found = self._open[digest, starts] = self._first(digest, starts)
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
        elif (found.session != session and found.spent) or not self._goes_on(found):
            found = self._open[digest, starts] = _ready(found.parcel, found.parcel.graph(), starts)
        found.given_to(session)
        self._open.move_to_end((digest, starts))
        return found

    def _goes_on(self, found: Loaded) -> bool:
        """Return True if the tasks that its session has made at run time are those that its graph has."""
        if not found.graph.made:
            return True
        keys = keys_of(found.session)
        with asked(self._link, **{f"{keys}c": "hash", f"{keys}h": "hash"}):
            return found.made.of(self._link, found.session)

    def _first(self, digest: str, starts: tuple[str, ...]) -> Loaded:
        until, failed = self._failed.get(digest, (0.0, None))
        if failed is not None and monotonic() < until:
            raise failed
        try:
            found = _opened(self.parcel(digest), starts)
        except ServerError:
            raise
        except GraflowError as error:
            self._failed[digest] = (monotonic() + AGAIN, error)
            while len(self._failed) > _KEPT:
                del self._failed[next(iter(self._failed))]
            raise
        self._failed.pop(digest, None)
        return found

    def parcel(self, digest: str) -> Parcel:
        """Return the program's facts; its pickles stay closed."""
        key = key_of(digest)
        with asked(self._link, **{key: "string"}):
            sealed, _ = self._link.client.pipeline(transaction=False).get(key).expire(key, TTL).execute()
        self._fresh[digest] = monotonic() + FRESH
        if sealed is None:
            raise ProgramMissing(
                f"The program {digest} is not in {self._link.address}.",
                hint="It expired, or was deleted: submit the workflow again.",
                digest=digest,
            )
        return parcels.unpack(
            SealedCells(_place(digest), self.keyring).open("the program", sealed, "program")
        )


def _place(digest: str) -> str:
    """Return what its seal is bound to: one program cannot be put in the place of another."""
    return f"code-{digest}"


def _opened(parcel: Parcel, starts: tuple[str, ...]) -> Loaded:
    """Open a program for the first time in this process."""
    try:
        return _open(parcel, starts)
    except ProgramMissing as error:
        if "module" not in error.ids:
            raise
        importlib.invalidate_caches()  # what was installed since this process has started counts
        return _open(parcel, starts)


def _open(parcel: Parcel, starts: tuple[str, ...]) -> Loaded:
    workflow = parcel.program.workflow
    if parcel.bound and parcel.python != PYTHON:
        raise ProgramMissing(
            f"This worker has Python {PYTHON}, and code of workflow {workflow!r} is of {parcel.python}.",
            hint="Put its tasks into a module that workers can import, or run workers with that Python.",
        )
    try:
        graph = parcel.graph()
        rows = _differences(parcel, graph)
    except (Exception, SystemExit) as error:  # what the user's modules do when they are imported
        raise missing(workflow, error) from error
    if rows:
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        named = f"{', '.join(row.task for row in rows[:5])}{more}"
        raise ProgramDiffers(
            f"This worker has another version of workflow {workflow!r}: {named}.",
            hint="Deploy the version that the session was submitted with, or submit it anew with this one.",
            table=rows,
        )
    try:
        return _ready(parcel, graph, starts)
    except (Exception, SystemExit) as error:  # as above: settings hold middleware
        raise missing(workflow, error) from error


def missing(workflow: str, error: BaseException) -> ProgramMissing:
    """Return the error that names what a worker lacks on which opening code has failed."""
    cause = error.__cause__ if isinstance(error, GraflowError) and error.__cause__ else error
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        return ProgramMissing(
            f"This worker has no module {cause.name!r}, which workflow {workflow!r} uses.",
            hint=f"Install the package that has {cause.name!r} here; until then other workers are asked.",
            module=cause.name,
        )
    frames = extract_tb(cause.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return ProgramMissing(
        f"This worker cannot open workflow {workflow!r}: {type(cause).__name__}: {cause}{where}.",
        hint="Mend the module or its surroundings here; until then other workers are asked.",
    )


def _differences(parcel: Parcel, graph: TaskGraph) -> list[PlanRow]:
    """Return what was looked up by name and is not what the session was made with."""
    rows = [PlanRow(place.replace(":", "."), "changed", "") for place in differing(dict(parcel.uses))]
    if parcels.summary_by_name(graph, parcel.values) == parcel.summary:
        return rows
    known = parcel.program.facts["tasks"]
    here = fingerprints({name: node for name, node in graph.nodes.items() if isinstance(node, Task)})
    for name in (name for name in here if name not in parcel.values):
        was = Fingerprint.from_record(known[name]["print"])
        if compare(was, here[name]) == "changed":
            rows.append(PlanRow(name, "changed", ""))
    return rows


def _ready(parcel: Parcel, graph: TaskGraph, starts: tuple[str, ...]) -> Loaded:
    settings: Settings = parcel.settings()
    graph.compile(starts)
    if parcel.calls:
        bindings = {name: bind(graph, node) for name, node in graph.nodes.items() if isinstance(node, Task)}
        return Loaded(parcel, graph.as_bag(), bindings, settings, "")
    return Loaded(parcel, graph, check_graph(graph, settings, parcel.given, shared=True), settings, "")
