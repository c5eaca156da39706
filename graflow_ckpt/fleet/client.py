"""The client: makes sessions of graphs and tasks, and has them found by workers.

    preflight -> program stored -> session listed -> tables made -> first transition -> tokens posted

A session is listed before anything of it can run. It is `init` until its last spec is in, so that
a submission that was cut short never runs in part; the workers' steward clears those away.
"""

from __future__ import annotations

import json
import platform
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from graflow_ckpt.checkpoint import parcel as parcels
from graflow_ckpt.checkpoint.cells import check_storable
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import GraphError, SessionExists
from graflow_ckpt.core.facts import Op, check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.bind import SPREAD, bind
from graflow_ckpt.engine.home import program_file
from graflow_ckpt.engine.inputs import digest_of
from graflow_ckpt.engine.preflight import check_graph
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.programs import Programs
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.layout import CREATE, keys_of
from graflow_ckpt.sessions.names import check_names
from graflow_ckpt.sessions.redis import RedisSession

SESSIONS = "graflow:sessions"
ACTIVE = "graflow:active"
TTL = 7 * 24 * 3600
"""Seconds for which a session that has completed is kept, with its results."""

KEPT = 30 * 24 * 3600
"""Seconds for which one that failed or stopped can be gone on with."""

_CHUNK = 1000  # specs per script: more would hold the server up for too long


@dataclass(frozen=True, slots=True)
class Terms:
    """How a session is accepted."""

    session: str | None = None
    existing: str = "refuse"  # or "return": what is asked of a session that is there already
    max_steps: int | None = None
    ttl: float = TTL
    kept: float = KEPT
    store: str = ""  # of its checkpoints; "" is the session's own server
    ledger: bool = False  # every commit leaves a line: for proofs and audits
    delay: float = 0.0
    priority: int | None = None


class Client:
    """A fleet, as its submitters see it."""

    def __init__(self, link: RedisLink, rq: RedisLink | None = None, keyring: Keyring | None = None) -> None:
        self.link = link
        self.carrier = Carrier((rq or link).client)
        self.keyring = keyring or Keyring.load(local=False)
        self.programs = Programs(link, self.keyring)
        self._create = link.script(CREATE)
        self._calls: WeakKeyDictionary[Task, str] = WeakKeyDictionary()  # programs of single tasks

    # --- workflows ---------------------------------------------------------------------

    def submit(
        self,
        graph: TaskGraph,
        settings: Settings,
        starts: Sequence[str],
        inputs: Mapping[str, Any],
        terms: Terms,
    ) -> Handle:
        """A session of a graph; returns when it has been accepted."""
        starts = tuple(starts) or tuple(graph.roots())
        if not starts:
            raise GraphError("The workflow has no task to start with.", hint="Decorate functions with @task.")
        graph.compile(starts)
        check_names(graph)
        check_graph(graph, settings, inputs, shared=True)
        manner = replace(settings, observers=())
        parcel = parcels.make(graph, settings.workflow, manner, program_file(), given=inputs)
        cells = {name: check_storable(name, value) for name, value in inputs.items()}
        ops: list[Op] = [("put", name, cell, -1) for name, cell in cells.items()]
        ops += [graph.routes[name].enqueue() for name in starts]
        asks = {n: o for n, r in graph.routes.items() if (o := r.options.on_interrupted) != "rerun"}
        facts = {
            "code": self.programs.store(parcel),
            "starts": json.dumps(starts),
            "tasks": str(sum(isinstance(node, Task) for node in graph.nodes.values())),
            "io": json.dumps(asks),
            "inputs": json.dumps({name: digest_of(cell) for name, cell in cells.items()}),
        }
        return self._accept(settings, facts, [ops], terms)

    # --- single tasks ------------------------------------------------------------------

    def submit_calls(
        self, task: Task, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]] | None, terms: Terms,
        call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
    ) -> Handle:  # fmt: skip
        """A session of one task that is called once; with `calls`, of as many copies as there are calls."""
        graph = TaskGraph()
        graph.add(task)
        graph.compile((task.name,))
        check_names(graph)
        settings = Settings(workflow=task.name, max_parallel=None)
        binding = bind(graph, task)
        digest = self._calls.get(task)
        if digest is None:
            digest = self._calls[task] = self.programs.store(
                parcels.make(graph, task.name, settings, program_file(), calls=True)
            )
        facts = {"code": digest, "starts": json.dumps([task.name]), "bag": "" if calls is None else "1"}
        if task.options.on_interrupted != "rerun":
            facts["io"] = json.dumps({task.name: task.options.on_interrupted})
        enqueue = graph.routes[task.name].enqueue()
        priority = enqueue[3] if terms.priority is None else terms.priority
        rest = (priority, *enqueue[4:])
        if terms.delay > 0:
            rest = (*rest, self._now() + terms.delay)
        kind = "later" if terms.delay > 0 else "enqueue"
        if calls is None:
            return self._accept(settings, facts, [[(kind, task.name, _data(binding, *call), *rest)]], terms)
        every = [(kind, f"{task.name}[{i}]", _data(binding, *c), *rest) for i, c in enumerate(calls)]
        pages = [every[start : start + _CHUNK] for start in range(0, len(every), _CHUNK)] or [[]]
        facts["calls"] = str(len(every))
        return self._accept(settings, facts, pages, terms)

    def _now(self) -> float:
        seconds, micros = self.link.route.client_for(None).time()
        return float(seconds) + float(micros) / 1e6

    # --- both --------------------------------------------------------------------------

    def _accept(
        self, settings: Settings, facts: dict[str, str], pages: Sequence[Sequence[Op]], terms: Terms
    ) -> Handle:
        session = check_session_id(terms.session or uuid.uuid4().hex[:12])
        handle = Handle(self, session)
        now = time.time()
        cold = {
            **facts, "workflow": settings.workflow, "epoch": "1", "tokens": "0", "created": repr(now),
            "store": terms.store or self.link.address,
            "ttl": str(int(terms.ttl)), "kept": str(int(terms.kept)),
            "host": platform.node(), "python": platform.python_version(),
        }  # fmt: skip
        cap = "" if settings.max_parallel is None else settings.max_parallel
        steps = "" if terms.max_steps is None else terms.max_steps
        line = f"init|0|0|1|1|1|{steps}|{cap}|{'fl' if terms.ledger else 'f'}||"
        self._list(session, now)
        pairs = [item for pair in cold.items() for item in pair]
        if self._create([f"{keys_of(session)}c"], [line, *pairs]) == b"exists":
            if terms.existing == "return":
                return handle
            raise SessionExists(
                f"There is a session {session} already.",
                hint='Give another key or session id, or existing="return" to get that one.',
                session=session,
            )
        sender = RedisSession(self.link, session, SealedCells(session, self.keyring))
        sender.on_emitted = lambda token, queue: self.carrier.post(session, token, queue)
        try:
            for page in pages[:-1]:
                sender.commit(page)
            sender.commit([*pages[-1], ("status", "running", "")])
        finally:
            sender.close()
        return handle

    def _list(self, session: str, now: float) -> None:
        client: Any = self.link.route.client_for(SESSIONS)
        client.zadd(SESSIONS, {session: int(now * 1000)}, nx=True)
        client.zadd(ACTIVE, {session: int(now * 1000)})

    def watch(self, session: str) -> None:
        """Have the stewards look at it soon."""
        client: Any = self.link.route.client_for(ACTIVE)
        client.zadd(ACTIVE, {session: int(time.time() * 1000)})

    def unlist(self, session: str) -> None:
        client: Any = self.link.route.client_for(SESSIONS)
        client.zrem(SESSIONS, session)
        client.zrem(ACTIVE, session)

    def session(self, session: str) -> Handle:
        """A session that has been accepted before, here or elsewhere."""
        return Handle(self, check_session_id(session))

    def sessions(self) -> list[str]:
        """The ids of all that are there, the newest first."""
        with translated(self.link.address):
            client: Any = self.link.route.client_for(SESSIONS)
            return [name.decode() for name in client.zrevrange(SESSIONS, 0, -1)]

    def lately(self, newest: int) -> list[str]:
        """The ids of all that stewards look at, and of the newest."""
        with translated(self.link.address):
            active: Any = self.link.route.client_for(ACTIVE)
            new: Any = self.link.route.client_for(SESSIONS)
            found = [*active.zrange(ACTIVE, 0, -1), *new.zrevrange(SESSIONS, 0, newest - 1)]
        return list(dict.fromkeys(name.decode() for name in found))

    def close(self) -> None:
        self.link.close()


def _data(binding: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call as the data of its spec."""
    names = [p.name for p in binding.parameters]
    if len(args) > len(names):
        raise TypeError(f"{binding.task.name}() takes {len(names)} arguments, {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    twice, unknown = given.keys() & kwargs.keys(), kwargs.keys() - set(names)
    if twice or unknown:
        which = sorted(twice or unknown)[0]
        raise TypeError(
            f"{binding.task.name}() got {'two values for' if twice else 'an unknown'} argument {which!r}"
        )
    given |= kwargs
    lacking = [p.name for p in binding.parameters if p.name not in given and p.required]
    if lacking:
        raise TypeError(f"{binding.task.name}() lacks the argument {lacking[0]!r}")
    if not given:
        return None
    if len(given) == 1 and binding.data in given and type(given[binding.data]) is not dict:
        return check_storable(binding.data, given[binding.data])
    return check_storable("arguments", {SPREAD: given})


_clients: dict[tuple[str, str], Client] = {}


def client_at(url: str, rq_url: str | None = None) -> Client:
    """The client of a server; one per process and server."""
    where = (url, rq_url or url)
    found = _clients.get(where)
    if found is None:
        link = open_link(url)
        found = _clients[where] = Client(link, open_link(rq_url) if rq_url else None)
    return found
