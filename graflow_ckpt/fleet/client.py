"""The client: makes sessions of graphs and tasks, and has them found by workers.

    checked -> program stored -> accepted (accepting.py) -> a handle

Everything that can be refused is refused before anything is written. A user who only reads needs no key;
what has to be sealed or opened says which one is missing.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from blake3 import blake3
from redis import RedisError

from graflow_ckpt.checkpoint.program import parcel as parcels
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.core.errors import (
    GraphError,
    ServerFull,
    ServerGone,
    ServerReadOnly,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.facts import Op, check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.adopt import Standing, standing_at
from graflow_ckpt.engine.attempt import digest_of
from graflow_ckpt.engine.bind import bind, check_graph
from graflow_ckpt.engine.resuming import program_file
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import Destination, adopt_into, new_id
from graflow_ckpt.fleet.accepting import GIVEN, KEPT, TTL, Acceptance, Call, Draft, Terms, data_of, pages
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.lists import ACTIVE, SESSIONS, asked, sessions_in
from graflow_ckpt.fleet.programs import Packed, ProgramMissing, Programs, proof
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import in_our_words
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.names import check_names
from graflow_ckpt.stores.around.keys import Keyring, uses_local_key

__all__ = ["ACTIVE", "KEPT", "SESSIONS", "TTL", "Client", "Terms", "client_at"]

log = logging.getLogger("graflow_ckpt.fleet")


class Client:
    """A fleet, as its submitters see it."""

    def __init__(self, link: RedisLink, rq: RedisLink | None = None, keyring: Keyring | None = None) -> None:
        self.link = link
        self.rq = rq or link
        self.carrier = Carrier(self.rq.client)
        self.keyring = keyring if keyring is not None or uses_local_key() else Keyring.load(local=False)
        self.programs = Programs(link, self.keyring)
        self._acceptance = Acceptance(link)
        self._packed: WeakKeyDictionary[Task, dict[bool, Packed]] = WeakKeyDictionary()

    # --- workflows ---------------------------------------------------------------------

    def submit(
        self,
        graph: TaskGraph,
        settings: Settings,
        starts: Sequence[str],
        inputs: Mapping[str, Any],
        terms: Terms,
    ) -> Handle:
        """Submit a session of a graph; return when it has been accepted."""
        starts = tuple(starts) or tuple(graph.roots())
        if not starts:
            raise GraphError("The workflow has no task to start with.", hint="Decorate functions with @task.")
        if settings.on_failure == "rollback":
            raise GraphError(
                "on_failure='rollback' is of sessions in one process.",
                hint="On a fleet there is 'pause', the default, and 'continue'.",
            )
        graph.compile(starts)
        check_names(graph)
        check_graph(graph, settings, inputs, shared=True)
        cells = {name: check_storable(name, value) for name, value in inputs.items()}
        packed = Packed.of(
            parcels.make(
                graph,
                settings.workflow,
                replace(settings, observers=()),  # they are told in the process that has them
                program_file(),
                given=inputs,
                settings=settings.document(),
            )
        )
        ops: list[Op] = [("put", name, cell, -1) for name, cell in cells.items()]
        ops += [graph.routes[name].enqueue() for name in graph.starts]
        asks = {n: o for n, r in graph.routes.items() if (o := r.options.on_interrupted) != "rerun"}
        facts = {
            "workflow": settings.workflow,
            "tasks": str(sum(isinstance(node, Task) for node in graph.nodes.values())),
            "io": json.dumps(asks),
            "inputs": json.dumps({name: digest_of(cell) for name, cell in cells.items()}),
        }
        if terms.session is not None:
            facts[GIVEN] = _digest([[name, digest_of(cells[name])] for name in sorted(cells)])
        return self._accept(packed, starts, facts, [ops], settings.max_parallel, terms)

    # --- single tasks ------------------------------------------------------------------

    def submit_calls(
        self, task: Task, calls: Iterable[Call] | None, terms: Terms, call: Call = ((), {})
    ) -> Handle:
        """Submit a session of one task that is called once, or with `calls` of one copy per call."""
        graph = TaskGraph()
        graph.add(task)
        graph.compile((task.name,))
        check_names(graph)
        binding = bind(graph, task)
        name = task.name
        if calls is None:
            data = [(name, data_of(binding, *call))]
        else:
            data = [(f"{name}[{i}]", data_of(binding, *one)) for i, one in enumerate(calls)]
        facts = {"workflow": name, "bag": "" if calls is None else "1"}
        if calls is not None:
            facts["calls"] = str(len(data))
        if task.options.on_interrupted != "rerun":
            facts["io"] = json.dumps({name: task.options.on_interrupted})
        _, _, _, priority, *rest = graph.routes[name].enqueue()
        rest = [priority if terms.priority is None else terms.priority, *rest]
        if terms.delay > 0:
            rest.append(self._now() + terms.delay)
        kind = "later" if terms.delay > 0 else "enqueue"
        if terms.session is not None:
            facts[GIVEN] = _digest([[one, "" if cell is None else digest_of(cell)] for one, cell in data])
        ops = ((kind, one, cell, *rest) for one, cell in data)
        return self._accept(
            self._pack(task, graph, calls is not None), (name,), facts, pages(ops), None, terms
        )

    def _pack(self, task: Task, graph: TaskGraph, many: bool) -> Packed:
        """Return the program of calls; of a module's task it stays the same."""
        known = self._packed.get(task, {}).get(many)
        if known is not None:
            return known
        settings = Settings(workflow=task.name, on_failure="continue" if many else "pause")
        parcel = parcels.make(
            graph, task.name, settings, program_file(), calls=True, settings=settings.document()
        )
        packed = Packed.of(parcel)
        if not parcel.bound:  # what is sent by value may use what has changed meanwhile
            self._packed.setdefault(task, {})[many] = packed
        return packed

    def _now(self) -> float:
        with asked(self.link):
            seconds, micros = self.link.client.time()
        return float(seconds) + float(micros) / 1e6

    # --- both --------------------------------------------------------------------------

    def _accept(
        self, packed: Packed, starts: tuple[str, ...], facts: dict[str, str], pages: Iterable[Sequence[Op]],
        cap: int | None, terms: Terms,
    ) -> Handle:  # fmt: skip
        keyring = self.keyring or Keyring.load(local=False)  # which says how to get one
        session = terms.session or uuid.uuid4().hex[:12]
        cells = SealedCells(session, keyring, terms.value_limit)
        store = terms.store or self.link.address
        text = json.dumps(starts)
        cold: dict[str, str | bytes] = {
            **facts, "code": packed.digest, "starts": text, "store": store,
            "proof": proof(cells, packed.digest, text, store),
        }  # fmt: skip
        handle = Handle(self, session)
        self.programs.store(packed, keyring)
        draft = Draft(session, cold, pages, cap, terms)
        self._acceptance.accept(draft, cells, lambda token, queue: self.post(session, token, queue))
        return handle

    def post(self, session: str, token: str, queue: str) -> None:
        """Have a token carried; if RQ's server is away, a steward does it later."""
        try:
            self.carrier.post(session, token, queue)
        except RedisError as error:
            said = in_our_words(error, self.rq.address)
            if not isinstance(said, ServerGone | ServerFull | ServerReadOnly):
                raise said from error
            facts = {"session": session, "token": token}
            log.warning("token %s of session %s waits for a steward: %s", token, session, said, extra=facts)

    # --- from checkpoints ------------------------------------------------------------------

    def fork(self, path: str, session_id: str | None = None, *, store: str | None = None) -> Handle:
        """Return a new session that begins at a checkpoint: a portable one, or one of memory."""
        return self._adopted(standing_at(path, store), new_id(session_id))

    def rewind(self, path: str, *, store: str | None = None) -> Handle:
        """Rewind a session to its portable checkpoint; refused while a worker runs it."""
        return self._adopted(standing_at(path, store), None)

    def _adopted(self, standing: Standing, other: str | None) -> Handle:
        session = other or standing.session
        to = self._destination(standing, session)
        self._acceptance.enlist(session)  # before it is there, should this process die
        adopt_into(standing, other, to)
        self._acceptance.enlist(session)  # again: what is not there is taken off the lists
        return Handle(self, session)

    def _destination(self, standing: Standing, session: str) -> Destination:
        keyring = self.keyring or Keyring.load(local=False)
        standing.graph.compile(standing.state.starts or standing.graph.roots())
        carried = standing.carried
        store = carried["store"] if "code" in carried else self.link.address  # where workers can write
        digest, starts = self._program(standing, keyring), json.dumps(standing.state.starts)
        routes = standing.graph.routes.items()
        asks = {name: o for name, route in routes if (o := route.options.on_interrupted) != "rerun"}
        facts: dict[str, str | bytes] = {
            "code": digest, "store": store, "io": json.dumps(asks),
            "tasks": str(sum(isinstance(node, Task) for node in standing.graph.nodes.values())),
            "proof": proof(SealedCells(session, keyring), digest, starts, store),
            "flags": "f" + ("l" if "l" in carried.get("flags", "") else ""),
        }  # fmt: skip
        return Destination(self.link, facts, keyring, self.post)

    def _program(self, standing: Standing, keyring: Keyring) -> str:
        """Return the digest of the program that workers are given."""
        carried = standing.carried
        if digest := carried.get("code"):
            with suppress(ProgramMissing, UnknownKey, UnsafeCheckpoint):
                self.programs.parcel(digest)
                return digest
        settings = Settings(workflow=carried["workflow"]).with_stored(standing.found.meta.get("settings"))
        settings = replace(settings, max_parallel=standing.state.cap)
        calls, given = "bag" in carried, tuple(standing.state.values)
        if not calls:
            check_graph(standing.graph, settings, given, shared=True)
        packed = Packed.of(
            parcels.make(
                standing.graph,
                carried["workflow"],
                settings,
                calls=calls,
                given=given,
                settings=settings.document(),
            )
        )
        self.programs.store(packed, keyring)
        return packed.digest

    # --- the lists -----------------------------------------------------------------------

    def watch(self, session: str) -> None:
        """Have the stewards look at it soon."""
        with asked(self.link, **{ACTIVE: "zset"}):
            self._client.zadd(ACTIVE, {session: int(time.time() * 1000)})

    def unlist(self, session: str) -> None:
        self._acceptance.unlist(session)

    def session(self, session: str) -> Handle:
        """Return a session that has been accepted before, here or elsewhere."""
        return Handle(self, check_session_id(session))

    def sessions(self) -> list[str]:
        """Return the ids of all that are there, the newest first."""
        with asked(self.link, **{SESSIONS: "zset"}):
            return sessions_in(self._client.zrevrange(SESSIONS, 0, -1))

    def lately(self, newest: int) -> list[str]:
        """Return the ids of all that stewards look at, and of the newest."""
        with asked(self.link, **{SESSIONS: "zset", ACTIVE: "zset"}):
            active = self._client.zrange(ACTIVE, 0, -1)
            found = [*active, *self._client.zrevrange(SESSIONS, 0, newest - 1)]
        return list(dict.fromkeys(sessions_in(found)))

    @property
    def _client(self) -> Any:  # a redis.Redis, whose types allow a coroutine
        return self.link.client

    def close(self) -> None:
        self.link.close()
        if self.rq is not self.link:
            self.rq.close()


def _digest(given: list[list[str]]) -> str:
    return blake3(json.dumps(given).encode()).hexdigest(16)


Key = tuple[str, str, str, str]
_clients: dict[Key, Client] = {}


def client_at(url: str, rq_url: str | None = None, on_new: Callable[[Client], None] | None = None) -> Client:
    """Return the client of a server; one per process, server and key."""
    key, file = (os.environ.get(f"GRAFLOW_CKPT_KEY{end}", "") for end in ("", "_FILE"))
    where = (url, rq_url or url, key, file)
    found = _clients.get(where)
    if found is None:
        link = open_link(url)
        found = _clients[where] = Client(link, open_link(rq_url) if rq_url else None)
        if on_new is not None:
            on_new(found)
    return found
