"""The client of a fleet: makes sessions of graphs and tasks, and has them found by workers.

    fleet = connect("redis://…")         sessions by their ids, and somewhere to submit to
    checked -> program stored -> accepted (accepting.py) -> a handle

Everything that can be refused is refused before anything is written. A user who only reads needs no key;
what has to be sealed or opened says which one is missing. Front ends load this module when something is
submitted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from blake3 import blake3

from graflow_ckpt.checkpoint.program import parcel as parcels
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.core import arguments, errors
from graflow_ckpt.core.facts import Op, check_session_id
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.adopt import Standing, standing_at
from graflow_ckpt.engine.body.attempt import digest_of
from graflow_ckpt.engine.body.bind import bind, check_graph, signature
from graflow_ckpt.engine.notices import again_line, notify
from graflow_ckpt.engine.resuming import is_finished, program_file
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_context import Destination, adopt_into, new_id
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.fleet.accepting import (
    GIVEN,
    Call,
    Draft,
    Terms,
    accept,
    begin_again,
    call_of,
    data_of,
    pages,
    same,
)
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.lists import ACTIVE, LISTS, SESSIONS, asked, sessions_in
from graflow_ckpt.fleet.programs import Packed, ProgramMissing, Programs, proof
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.redis import RedisLink, examine, open_link
from graflow_ckpt.sessions.redis.names import check_names
from graflow_ckpt.stores.around.keys import Keyring, uses_local_key

__all__ = ["Client", "Fleet", "Terms", "at", "connect"]

log = logging.getLogger("graflow_ckpt.fleet")


class Client:
    """A fleet, as its submitters see it."""

    def __init__(self, link: RedisLink, rq: RedisLink | None = None, keyring: Keyring | None = None) -> None:
        self.link = link
        self.rq = rq or link
        self.carrier = Carrier(self.rq)
        self.keyring = keyring if keyring is not None or uses_local_key() else Keyring.load(local=False)
        self.programs = Programs(link, self.keyring)
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
        if terms.existing is None and settings.on_finished == "again":
            terms = replace(terms, existing="again")
        starts = tuple(starts) or tuple(graph.roots())
        if not starts:
            raise errors.GraphError(
                "The workflow has no task to start with.", hint="Decorate functions with @task."
            )
        if settings.on_failure == "rollback":
            raise errors.GraphError(
                "on_failure='rollback' is of sessions in one process.",
                hint="On a fleet there is 'pause', the default, and 'continue'.",
            )
        graph.compile(starts)
        check_names(graph)
        check_graph(graph, settings, inputs, shared=True)
        cells = {name: check_storable(name, value) for name, value in inputs.items()}
        packed = Packed.of(_parcel(graph, settings, program_file(), given=inputs))
        ops: list[Op] = [("put", name, cell, -1) for name, cell in cells.items()]
        ops += [graph.routes[name].enqueue() for name in graph.starts]
        facts = {
            "workflow": settings.workflow,
            **_facts(graph),
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
            with asked(self.link):
                seconds, micros = self.link.client.time()
            rest.append(seconds + micros / 1e6 + terms.delay)
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
        parcel = _parcel(graph, settings, program_file(), calls=True)
        packed = Packed.of(parcel)
        if not parcel.bound:  # what is sent by value may use what has changed meanwhile
            self._packed.setdefault(task, {})[many] = packed
        return packed

    # --- both --------------------------------------------------------------------------

    def _accept(
        self, packed: Packed, starts: tuple[str, ...], facts: dict[str, str], pages: Iterable[Sequence[Op]],
        cap: int | None, terms: Terms,
    ) -> Handle:  # fmt: skip
        keyring = self.keyring or Keyring.load(local=False)  # which says how to get one
        session = new_id(terms.session)
        cells = SealedCells(session, keyring, terms.value_limit)
        cold: dict[str, str | bytes] = {**facts, "code": packed.digest, "starts": json.dumps(starts)}
        self.programs.store(packed, keyring)
        draft = Draft(session, cold, pages, cap, terms).kept_in(terms.store or self.link.address, cells)
        if not accept(self.link, draft, cells, partial(self.post, session)):
            self._again(Handle(self, session), draft, cells)
        return Handle(self, session)

    def _again(self, handle: Handle, draft: Draft, cells: SealedCells) -> None:
        """Begin the next run of a session that is finished; one that has failed continues."""
        former = handle.home(draft.terms.store)
        last, known, own = former.follow(), former.facts.get("workflow"), draft.facts["workflow"]
        if known != own:
            raise errors.OtherWorkflow(
                f"Session {handle.session} belongs to workflow {known!r}, and this one is {own!r}.",
                hint="Use another session id.", session=handle.session, workflow=own, other=known,
            )  # fmt: skip
        if is_finished(last):
            program = self.programs.parcel(str(draft.facts["code"])).program
            home = SharedHome(self.link, draft.session, cells, former.place, self.keyring, program)
            draft = draft.kept_in(former.place, cells)
            run = begin_again(former, last, draft, home, partial(self.post, draft.session))
            notify(draft.session, again_line(draft.session, run))
            return
        same(self.link, draft)
        if last.status in ("failed", "stopped", "stalled", "cancelled"):  # the last one cannot: it says so
            handle.resume(draft.terms.max_steps)

    def post(self, session: str, token: str, queue: str) -> None:
        """Have a token carried; if RQ's server is away, a steward does it later."""
        try:
            self.carrier.post(session, token, queue)
        except (errors.ServerGone, errors.ServerFull, errors.ServerReadOnly) as error:
            facts = {"session": session, "token": token}
            log.warning("token %s of session %s waits for a steward: %s", token, session, error, extra=facts)

    # --- from checkpoints ------------------------------------------------------------------

    def fork(self, path: str, session_id: str | None = None, *, store: str | None = None) -> Handle:
        """Return a new session that begins at a checkpoint: a portable one, or one of memory."""
        return self._adopted(standing_at(path, store), new_id(session_id))

    def rewind(self, path: str, *, store: str | None = None) -> Handle:
        """Rewind a session to its portable checkpoint; refused while a worker runs it."""
        return self._adopted(standing_at(path, store), None)

    def _adopted(self, standing: Standing, other: str | None) -> Handle:
        session = other or standing.session
        adopt_into(standing, other, self._destination(standing, session))
        return Handle(self, session)

    def _destination(self, standing: Standing, session: str) -> Destination:
        keyring = self.keyring or Keyring.load(local=False)
        standing.graph.compile(standing.state.starts or standing.graph.roots())
        carried = standing.carried
        store = carried["store"] if "code" in carried else self.link.address  # where workers can write
        digest, starts = self._program(standing, keyring), json.dumps(standing.state.starts)
        facts: dict[str, str | bytes] = {
            "code": digest, "store": store, **_facts(standing.graph),
            "proof": proof(SealedCells(session, keyring), digest, starts, store),
            "flags": "f" + ("l" if "l" in carried.get("flags", "") else ""),
        }  # fmt: skip
        return Destination(self.link, facts, keyring, self.post, LISTS)

    def _program(self, standing: Standing, keyring: Keyring) -> str:
        """Return the digest of the program that workers are given."""
        carried = standing.carried
        if digest := carried.get("code"):
            with suppress(ProgramMissing, errors.UnknownKey, errors.UnsafeCheckpoint):
                self.programs.parcel(digest)
                return digest
        settings = Settings(workflow=carried["workflow"]).with_stored(standing.found.meta.get("settings"))
        settings = replace(settings, max_parallel=standing.state.cap)
        calls, given = "bag" in carried, tuple(standing.state.values)
        if not calls:
            check_graph(standing.graph, settings, given, shared=True)
        packed = Packed.of(_parcel(standing.graph, settings, calls=calls, given=given))
        self.programs.store(packed, keyring)
        return packed.digest

    # --- the lists -----------------------------------------------------------------------

    def watch(self, session: str) -> None:
        """Have the stewards look at it at once."""
        with asked(self.link, **{ACTIVE: "zset"}):
            self.link.client.zadd(ACTIVE, {session: 0})

    def session(self, session: str) -> Handle:
        """Return a session that has been accepted before, here or elsewhere."""
        return Handle(self, check_session_id(session))

    def sessions(self) -> list[str]:
        """Return the ids of all that are there, the newest first."""
        with asked(self.link, **{SESSIONS: "zset"}):
            return sessions_in(self.link.client.zrevrange(SESSIONS, 0, -1))

    def lately(self, newest: int) -> list[str]:
        """Return the ids of all that stewards look at, and of the newest."""
        with asked(self.link, **{SESSIONS: "zset", ACTIVE: "zset"}):
            active = self.link.client.zrange(ACTIVE, 0, -1)
            found = [*active, *self.link.client.zrevrange(SESSIONS, 0, newest - 1)]
        return list(dict.fromkeys(sessions_in(found)))

    def close(self) -> None:
        self.link.close()
        if self.rq is not self.link:
            self.rq.close()


def _digest(given: list[list[str]]) -> str:
    return blake3(json.dumps(given).encode()).hexdigest(16)


def _facts(graph: TaskGraph) -> dict[str, str]:
    """Return what a session knows of its tasks: how many, and which are not simply run again."""
    routes = graph.routes.items()
    asks = {name: how for name, route in routes if (how := route.options.on_interrupted) != "rerun"}
    tasks = sum(isinstance(node, Task) for node in graph.nodes.values())
    return {"tasks": str(tasks), "io": json.dumps(asks)}


def _parcel(
    graph: TaskGraph,
    settings: Settings,
    file: str | None = None,
    *,
    calls: bool = False,
    given: Iterable[str] = (),
) -> parcels.Parcel:
    """Return the program of a graph. Observers stay here: they are told in the process that has them."""
    manner, document = replace(settings, observers=()), settings.document()
    return parcels.make(graph, settings.workflow, manner, file, calls=calls, given=given, settings=document)


# --- fleets, as programs and front ends hold them ------------------------------------------


class Submits(Protocol):
    """A workflow, as a fleet sees it."""

    def submit(self, url: Any, /, *args: Any, **options: Any) -> Handle: ...


class Fleet:
    """Workers and sessions behind one address."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __repr__(self) -> str:
        return f"<fleet at {self.address}>"

    @property
    def address(self) -> str:
        """The address of the fleet, without a password."""
        return self.client.link.address

    def session(self, session: str) -> Handle:
        """Return a session by its id, whichever client submitted it; raise NoSession if there is none."""
        handle = self.client.session(session)
        handle.status()
        return handle

    def sessions(self) -> list[str]:
        """Return the ids of all that are kept, the newest first."""
        return self.client.sessions()

    # Any: what a task or a workflow is called with.
    def submit(self, what: Task | Submits, *args: Any, **options: Any) -> Handle:
        """Submit a workflow with the arguments of its `submit`, or a task with those of the call."""
        found: Handle
        if isinstance(what, Task):
            found = what.submit(*args, url=self, **options)  # type: ignore[attr-defined]  # decorated
        else:
            found = what.submit(self, *args, **options)
        return found

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


Where = str | Fleet | None
"""An address, a fleet, or None for what GRAFLOW_CKPT_REDIS_URL names."""


def connect(url: str | None = None) -> Fleet:
    """Connect to the fleet of an address, or of the environment."""
    return Fleet(at(url))


def at(where: Where) -> Client:
    """Return the client of a fleet; one per process, server and key."""
    if isinstance(where, Fleet):
        return where.client
    url, rq_url, *key = (
        os.environ.get(f"GRAFLOW_CKPT_{name}", "") for name in ("REDIS_URL", "RQ_URL", "KEY", "KEY_FILE")
    )
    url = where or url
    if not url:
        raise errors.BadAddress(
            "There is no fleet to submit to.", hint='Give url="redis://…", or set GRAFLOW_CKPT_REDIS_URL.'
        )
    known = (url, rq_url, *key)
    if known not in _clients:
        link = open_link(url)
        _clients[known] = Client(link, open_link(rq_url) if rq_url else None)
        _warn(link)
    return _clients[known]


_clients: dict[tuple[str, ...], Client] = {}


def _warn(link: RedisLink) -> None:
    """Warn of a server that loses sessions by its nature; the workers say more when they start."""
    try:
        found = examine(link)
    except errors.GraflowError:  # whatever it is, the next request reports it
        return
    for finding in found:
        if finding.level == "error" or "maxmemory-policy" in finding.what:
            log.warning("%s: %s %s", link.address, finding.what, finding.hint)


# --- submitting: Any, here and below, for arguments are whatever the user passes -----------


def terms_of(session: str | None, **options: Any) -> Terms:
    """Return the terms of those options that were given."""
    return Terms(session, **{name: value for name, value in options.items() if value is not None})


def refuse_clash(task: Task, args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse a keyword that the body has, too: which of them is meant must not be guessed."""
    for name in signature(task.func)[0][len(args) :]:
        if options.get(name) is not None:
            raise TypeError(
                f"{task.name}.submit({name}=…): {task.name} has a parameter {name!r}, and so has submit(). "
                f"Give the arguments apart: {task.name}.submit_call(args, kwargs, {name}=…)."
            )


def _terms_of(what: str, task: Task, key: str | None, options: Mapping[str, Any]) -> Terms:
    """Return the terms of calls; raise GraphError for an option that there is not."""
    known = [field.name for field in fields(Terms) if field.name != "session"] + ["key", "url"]
    for name in options.keys() - known:
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(sorted(known))}."
        if name in ("session", "session_id"):
            hint = "Give key=...: calls under the same key are the same session, whose id is handle.session."
        raise errors.GraphError(f"{task.name}.{what}() has no option {name!r}.", hint=hint, option=name)
    return terms_of(_session(task, key), **options)


def submit_call(
    task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], url: Where, key: str | None, **options: Any
) -> Handle:
    terms = _terms_of("submit_call", task, key, options)
    return at(url).submit_calls(task, None, terms, (args, kwargs))


def submit_calls(task: Task, calls: Iterable[Any], url: Where, key: str | None, **options: Any) -> Handle:
    terms = _terms_of("submit_many", task, key, options)
    return at(url).submit_calls(task, map(call_of, calls), terms)


def _session(task: Task, key: str | None) -> str | None:
    """Return the session of a task under a key: the same for every client that submits it."""
    if key is None:
        return None
    arguments.kind("key", key, str, "a text")
    if not key:
        raise ValueError("key='' would make all calls one execution.")
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in f"{task.name}-{key}")
    return f"{readable[:40]}-{blake3(f'{task.name}/{key}'.encode()).hexdigest(6)}"
