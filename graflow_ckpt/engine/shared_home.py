"""The home of a shared session's cuts.

Queue and channel of such a session are in Redis and stay there: its trio holds the control facts,
for verification and for plans, and the program; no values. A *portable* one holds the values, too.
Several workers cut: paths and sequences are numbered in Redis, each trio is one worker's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.snapshot import Snapshot, capture
from graflow_ckpt.checkpoint.values.sharing import bundles
from graflow_ckpt.core.errors import CheckpointError, GraflowError, SessionBusy
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.body.attempt import digest_of
from graflow_ckpt.engine.home import CheckpointPlace
from graflow_ckpt.engine.resuming import Description, Written
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.links.complaints import fact, readable
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import Post
from graflow_ckpt.sessions.redis.facts import SharedFacts
from graflow_ckpt.sessions.redis.names import check_names
from graflow_ckpt.sessions.redis.ops import Cells
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_paged, read_state, refused, write_state
from graflow_ckpt.stores.around.keys import Keyring

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.engine")

BACKEND = {"queue": "redis", "channel": "redis"}

CARRIED = (
    "workflow", "ttl", "kept", "store", "code", "io", "inputs", "tasks", "calls", "bag", "limit", "origin",
    "trace",
)  # fmt: skip
"""What else there is to know of a session; it goes where the session goes."""

MANY = 2000
"""Specs and values from which on a session is read page by page."""

_PATIENCE = 10.0  # seconds, for another process that reads it by pages
_TURNS = 20  # how often others may come first


def start_facts(graph: TaskGraph, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the starts, the digests of the inputs, and how to treat attempts in doubt."""
    routes = graph.routes.items()
    asks = {name: how for name, route in routes if (how := route.options.on_interrupted) != "rerun"}
    return {n: json.dumps(v) for n, v in (("starts", graph.starts), ("inputs", inputs), ("io", asks))}


class SharedHome(CheckpointPlace):
    """The checkpoints of one session in Redis."""

    alone = False
    tables = BACKEND

    def __init__(
        self, link: RedisLink, session: str, cells: Cells, store: CheckpointStore | str,
        keyring: Keyring | None, program: Program | Written,
    ) -> None:  # fmt: skip
        """Make one. `program`: as it has travelled, or what checkpoints say of one that is described here."""
        made = program if isinstance(program, Program) else None
        written = Written(program.workflow, file=None, cwd=None) if isinstance(program, Program) else program
        super().__init__(session, store or link.address, Description(written, made))
        self.facts = SharedFacts(link, session)
        self.cells = cells
        self._keyring = keyring
        self.place = store if isinstance(store, str) else store.url
        self.seen = ""  # by `follow`

    @property
    def inputs(self) -> Mapping[str, str]:
        """The digests of what the session was started with."""
        return self.facts.parsed("inputs")

    def told(self) -> dict[str, Any]:
        """Return what observers are told of where it is kept."""
        return {"kept": True, "saved": True, "store": self.facts.link.address}

    def option(self) -> str:
        """Return the option of a command that finds it."""
        return f" --url {self.facts.link.address}"

    # --- its start, and that of its next run -------------------------------------------

    def take(
        self, context: ExecutionContext, user: dict[str, Any] | None, path: str | None, portable: bool
    ) -> CheckpointMetadata:
        """Take the session as it is now."""
        self.describe(context.graph, context.settings)
        return self.cut("request", user, path=path, portable=portable)

    def describe(self, graph: TaskGraph, settings: Settings) -> None:
        """Have checkpoints say this of a compiled program; from the first time on they say the same."""
        check_names(graph)
        self.program.run_with(settings)
        self.program.of(graph)

    def schedule(self, context: ExecutionContext) -> None:
        """Commit the start of a session; of two processes that try one wins."""
        check_names(context.graph)
        if context.basis.again:
            self._schedule_again(context)
            return
        self.note_start(context)
        ops = [context.graph.routes[name].enqueue() for name in context.graph.starts]
        session: Any = context.session
        session.commit(ops, mode="B")

    def note_start(self, context: ExecutionContext) -> None:
        """Note what a later run has to know."""
        session: Any = context.session
        names = session.names()
        values = session.read_all(names) if names else []
        inputs = {n: digest_of(found[0]) for n, (found, _) in zip(names, values, strict=True) if found}
        self.facts.note(start_facts(context.graph, inputs))

    def follow(self) -> SessionState:
        """Return the session as it is now, without values: `replace_finished` replaces this alone."""
        self.seen = moment(self.facts)
        return read_state(self.facts.link, self.session, self.cells, values=False)

    def _schedule_again(self, context: ExecutionContext) -> None:
        state, graph = context.state, context.graph
        if not state.specs:
            state.start_at(graph.starts)
            context.session.commit([graph.routes[name].enqueue() for name in graph.starts])
        self.describe(graph, context.settings)
        inputs = {name: digest_of(cell) for name, (cell, _) in state.values.items()}
        replace_finished(self, self, state, start_facts(graph, inputs))
        context.move_to(RedisSession(self.facts.link, self.session, self.cells), self, context.executed_by)
        context.is_under_way()

    # --- cuts --------------------------------------------------------------------------

    def own_path(self, steps: int) -> str:
        return archive.auto_path(self.store, self.session, steps, self.facts.number_path())

    @property
    def last_path(self) -> str | None:
        """The path of the last checkpoint, whichever process has written it."""
        return self.facts.get("cut_path") or None

    def cut(
        self, cause: str, user: dict[str, Any] | None, *, path: str | None = None, portable: bool = False
    ) -> CheckpointMetadata:
        """Take the session as it is now and write one trio; raises if it could not be written."""
        state, number, parent = self._numbered(portable)
        snapshot = self._snapshot(state, portable)
        place, path = self.place_of(path or self.own_path(state.steps))
        keyring = self.keyring if place is self.store else Keyring.for_store(place)
        program = self.program.known
        carried = snapshot.facts["redis"]["session"]
        if not self.trace.traces:  # a worker, or a run without a tracer: that of a run with one
            self._join_trace(carried.get("trace", ""))
        metadata = self.describes(
            snapshot, program, path=path, sequence=number, cause=cause, user=user, parent=parent,
            origin=carried.get("origin"),
        )  # fmt: skip
        saved = archive.save(place, keyring, None, snapshot, program, metadata)
        self.facts.cut_saved(state.steps, saved.checkpoint_id, saved.path)
        self.last = self.resumable = saved
        self.save_error = None
        return saved

    def _numbered(self, portable: bool) -> tuple[SessionState, int, str | None]:
        """Return the session as of one moment, with a number that no later moment has had before."""
        for _ in range(_TURNS):
            state = self._read(portable)
            number, parent = self.facts.number_cut(state.sequence)
            if number:
                return state, number, parent
        raise CheckpointError(
            f"Session {self.session} changes faster than it can be read.",
            hint="Others take checkpoints of it all the time: one policy is enough.",
            session=self.session,
        )

    def _read(self, portable: bool) -> SessionState:
        link = self.facts.link
        if not portable or self.facts.size() <= MANY:
            return read_state(link, self.session, self.cells, values=portable)
        deadline = monotonic() + _PATIENCE
        while True:
            try:
                return read_paged(link, self.session, self.cells)
            except SessionBusy:
                if monotonic() > deadline:
                    raise
            sleep(0.05)

    def _snapshot(self, state: SessionState, portable: bool) -> Snapshot:
        snapshot = capture(state)
        snapshot.facts["backend"] = dict(BACKEND)
        snapshot.facts["redis"] = {
            "address": self.facts.link.address, "portable": portable, "session": self.carried(),
        }  # fmt: skip
        if portable:
            return snapshot
        for spec in snapshot.facts["pending_tasks"]:
            if spec["task_data"] is not None:
                spec["task_data"].pop("ref", None)  # it is in the queue, which stays where it is
        return replace(snapshot, values={}, appended={}, data=[], tasks={}, rng=None)

    def carried(self) -> dict[str, str]:
        """Return what else has to be known of it, wherever it is copied."""
        line = self.facts.line()
        flags = "".join(flag for flag in line["flags"] if flag in "fl")
        return {**self.facts.known(*CARRIED), "flags": flags, "cap": line["cap"]}

    # --- the trace ---------------------------------------------------------------------

    def join_trace(self) -> None:
        """Continue the trace of earlier participants, if one of them traces."""
        self._join_trace(self.facts.get("trace"))

    def _join_trace(self, text: str) -> None:
        with readable(self.session, self.facts.link.address):
            self.trace.goes_on(dict(fact("trace", text or "{}")))

    def keep_trace(self, *, first: bool) -> None:
        """Make the session's trace that of this run; `first`: unless another run was quicker."""
        if text := self.trace.text():
            if first:
                self.facts.note_first("trace", text)
            else:
                self.facts.note({"trace": text})


def moment(facts: SharedFacts) -> str:
    """Return what tells a session as it is now: when it was made, and how often it was changed."""
    return f"{facts.get('created')}|{facts.line()['sequence']}"


def replace_finished(
    home: SharedHome, former: SharedHome, state: SessionState, facts: Mapping[str, str | bytes], **more: Any
) -> None:
    """Replace a finished session by its next run; `former`, which has its program, keeps how it ended."""
    try:
        kept = former.cut("end", None, portable=True)
    except (GraflowError, OSError) as error:
        if former.seen != moment(former.facts):  # another process was quicker
            raise refused(home.session, b"changed") from error
        raise CheckpointError(
            f"Session {home.session} is not run again: {former.place} cannot keep its end: {error}",
            hint="Nothing was changed. Name a store that can be written here, or use another session id.",
            session=home.session,
        ) from error
    known = {**home.facts.known("workflow", "ttl", "kept", "origin", "trace"), **numbers(home)}
    facts = {**known, "store": home.place, "cut": kept.checkpoint_id, **facts}
    write(home, state, facts, "again", seen=former.seen, **more)
    record(home, "again")


def numbers(home: SharedHome, least: int = 0) -> dict[str, str]:
    """Return how far the session has counted, here or in its store: numbers never decrease."""
    cold = home.facts.known("cuts", "paths")
    highest = history.highest_sequence(home.store, home.session)
    return {
        "cuts": str(max(int(cold.get("cuts") or 0), highest, least)),
        "paths": str(max(int(cold.get("paths") or 0), highest)),
    }


def write(
    home: SharedHome, state: SessionState, facts: Mapping[str, str | bytes], verb: str,
    post: Post | None = None, **more: Any,
) -> None:  # fmt: skip
    """Put these tables in the place of the session's, in one script; `more`: see write_state."""
    facts, at = {"cut_steps": str(state.steps), **facts}, (home.facts.link, home.session, home.cells)
    write_state(at[0], state, home.cells, facts, verb=verb, share=bundles, **more)
    with closing(RedisSession(*at, post=post)) as sender:
        sender.commit([("claim", 0)])  # it may have ended; or a worker has to be asked for


def record(home: SharedHome, cause: str, *described: Any) -> None:
    """Take the first checkpoint of an epoch: a resume that looks for the newest one finds it."""
    try:
        if described:
            home.describe(*described)
        home.cut(cause, None)
    except (GraflowError, OSError) as error:
        log.error("checkpoint failed: %s", error, extra={"session": home.session})
