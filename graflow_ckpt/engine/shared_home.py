"""The home of a shared session's cuts, and of what numbers them.

Queue and channel of such a session are in Redis and stay there: its trio holds the control facts,
for verification and for plans, and the program; no values. A *portable* one holds the values, too.
Several workers cut: paths and sequences are numbered in Redis, each trio is one worker's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from graflow_ckpt import __version__
from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import metadata_of
from graflow_ckpt.checkpoint.model import CheckpointMetadata, now_iso
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.snapshot import Snapshot, capture
from graflow_ckpt.core.errors import CheckpointError, NoSession, SessionBusy
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.home import CheckpointPlace
from graflow_ckpt.links.complaints import fact, readable, translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import CUT, keys_of
from graflow_ckpt.sessions.redis.ops import Cells
from graflow_ckpt.sessions.redis.tables import gone, parse_line, read_paged, read_state
from graflow_ckpt.stores.around.keys import Keyring

log = logging.getLogger("graflow_ckpt.checkpoint")

BACKEND = {"queue": "redis", "channel": "redis"}
POLICY_LOCK = 30_000
"""Milliseconds after which another worker may take a cut that one has begun."""

CARRIED = (
    "workflow",
    "ttl",
    "kept",
    "store",
    "code",
    "io",
    "inputs",
    "tasks",
    "calls",
    "bag",
    "limit",
    "origin",
    "trace",
)
"""What else there is to know of a session; it goes where the session goes."""

MANY = 2000
"""Specs and values from which on a session is read page by page."""

_PATIENCE = 10.0  # seconds, for another process that reads it by pages
_TURNS = 20  # how often others may come first


class SharedHome(CheckpointPlace):
    """The checkpoints of one session in Redis."""

    def __init__(
        self,
        link: RedisLink,
        session: str,
        cells: Cells,
        store: str,
        keyring: Keyring | None,
        program: Program,
    ) -> None:
        super().__init__(session, store or link.address, alone=False)
        self.link = link
        self.program = program
        self._cells = cells
        self._keyring = keyring
        self._prefix = keys_of(session)
        self._script = link.script(CUT)

    @property
    def _client(self) -> Any:  # a redis.Redis, whose types allow a coroutine
        return self.link.client

    def _tell(self, *words: str | int) -> list[Any]:
        reply: list[Any] = self._script([f"{self._prefix}c"], words)
        if reply[0] == b"gone":
            raise NoSession(
                f"There is no session {self.session} at {self.link.address}.", session=self.session
            )
        return reply

    # --- cuts --------------------------------------------------------------------------

    def reserve(self, steps: int, metadata: dict[str, Any]) -> CheckpointMetadata:
        """Return what is known of a checkpoint before it is taken, its path above all."""
        return CheckpointMetadata(
            "", self.session, now_iso(), steps, "", dict(BACKEND), metadata, path=self.own_path(steps),
            workflow=self.program.workflow, library=__version__,
        )  # fmt: skip

    def own_path(self, steps: int) -> str:
        return archive.auto_path(self.store, self.session, steps, int(self._tell("path")[0]))

    def cut(
        self, cause: str, user: dict[str, Any] | None, *, path: str | None = None, portable: bool = False
    ) -> CheckpointMetadata:
        """Take the session as it is now and write one trio; raises if it could not be written."""
        state, number, parent = self._numbered(portable)
        snapshot = self._snapshot(state, portable)
        place, path = self.place_of(path or self.own_path(state.steps))
        keyring = self.keyring if place is self.store else Keyring.for_store(place)
        metadata = metadata_of(snapshot, self.program, path=path, sequence=number, cause=cause, user=user)
        carried = snapshot.facts["redis"]["session"]
        if not self.trace.traces:  # a worker, or a run without a tracer: that of a run with one
            self.join_trace(carried.get("trace", ""))
        metadata = self.stamped(metadata, parent=parent or None, origin=carried.get("origin"))
        saved = archive.save(place, keyring, None, snapshot, self.program, metadata)
        self._tell("saved", state.steps, saved.checkpoint_id, saved.path)
        self.last = saved
        return saved

    def _numbered(self, portable: bool) -> tuple[SessionState, int, str]:
        """Return the session as of one moment, with a number that no later moment has had before."""
        for _ in range(_TURNS):
            state = self._read(portable)
            number, *rest = self._tell("number", state.sequence)
            if number:
                with readable(self.session, self.link.address):
                    return state, number, rest[0].decode()
        raise CheckpointError(
            f"Session {self.session} changes faster than it can be read.",
            hint="Others take checkpoints of it all the time: one policy is enough.",
            session=self.session,
        )

    def _read(self, portable: bool) -> SessionState:
        if not portable or not self._is_large():
            return read_state(self.link, self.session, self._cells, values=portable)
        deadline = monotonic() + _PATIENCE
        while True:
            try:
                return read_paged(self.link, self.session, self._cells)
            except SessionBusy:
                if monotonic() > deadline:
                    raise
            sleep(0.05)

    def _is_large(self) -> bool:
        with translated(self.link.address):
            line = self._line()
            pipe = self._client.pipeline(transaction=False)
            pipe.hlen(f"{self._prefix}v").zcard(f"{self._prefix}dl").zcard(f"{self._prefix}done")
            for name in filter(None, line["queues"].split(",")):
                pipe.zcard(f"{self._prefix}q:{name}")
            return bool(sum(pipe.execute()) > MANY)

    def _snapshot(self, state: SessionState, portable: bool) -> Snapshot:
        snapshot = capture(state)
        snapshot.facts["backend"] = dict(BACKEND)
        snapshot.facts["redis"] = {
            "address": self.link.address, "portable": portable, "session": self.carried(),
        }  # fmt: skip
        if portable:
            return snapshot
        for spec in snapshot.facts["pending_tasks"]:
            if spec["task_data"] is not None:
                spec["task_data"].pop("ref", None)  # it is in the queue, which stays where it is
        return replace(snapshot, values={}, appended={}, data=[], tasks={}, rng=None)

    def _line(self) -> dict[str, str]:
        line = self._client.hget(f"{self._prefix}c", "c")
        if line is None:
            raise gone(self.link, self.session)
        return parse_line(self.session, line)

    def carried(self) -> dict[str, str]:
        """Return what else has to be known of it, wherever it is copied."""
        with translated(self.link.address):
            found = self._client.hmget(f"{self._prefix}h", CARRIED)
            line = self._line()
        with readable(self.session, self.link.address):
            facts = {n: value.decode() for n, value in zip(CARRIED, found, strict=True) if value is not None}
        flags = "".join(flag for flag in line["flags"] if flag in "fl")
        return {**facts, "flags": flags, "cap": line["cap"]}

    def kept_trace(self) -> str:
        """Return the trace of earlier participants, as the session keeps it; "" if none traces."""
        with translated(self.link.address):
            raw: bytes | None = self._client.hget(f"{self._prefix}h", "trace")
        with readable(self.session, self.link.address):
            return (raw or b"").decode()

    def join_trace(self, text: str) -> None:
        """Continue the trace of earlier participants."""
        with readable(self.session, self.link.address):
            self.trace.goes_on(dict(fact("trace", text or "{}")))

    def keep_trace(self, *, first: bool) -> None:
        """Make the session's trace that of this run; `first`: unless another run was quicker."""
        if text := self.trace.text():
            with translated(self.link.address):
                (self._client.hsetnx if first else self._client.hset)(f"{self._prefix}h", "trace", text)

    # --- policies: one worker cuts for all ------------------------------------------------

    def last_cut(self) -> tuple[int, float]:
        """Return the step of the last cut, and the seconds since then, or since the session began."""
        with translated(self.link.address):
            steps, at, made = self._client.hmget(f"{self._prefix}h", "cut_steps", "cut_at", "created")
            seconds, micros = self._client.time()
        now = float(seconds) + float(micros) / 1e6
        with readable(self.session, self.link.address):
            return int(steps or 0), now - float(at or made or now)

    def others_run(self, own: int) -> bool:
        """Return True if another worker holds a task; `own`: how many are held here."""
        with translated(self.link.address):
            line = self._client.hget(f"{self._prefix}c", "c")
        return line is not None and int(parse_line(self.session, line)["held"] or 0) > own

    @contextmanager
    def turn(self, patience: float = 0.0) -> Iterator[bool]:
        """Yield True if this worker takes the cut that is due; it waits for so many seconds."""
        key, deadline = f"{self._prefix}cutting", monotonic() + patience
        with translated(self.link.address):
            while not (mine := bool(self._client.set(key, "1", nx=True, px=POLICY_LOCK))):
                if monotonic() >= deadline:
                    break
                sleep(0.01)
        try:
            yield mine
        finally:
            if mine:
                with translated(self.link.address):
                    self._client.delete(key)

    def has_failed(self, steps: int) -> None:
        """Note that a cut was not written: no worker tries again before the policy is due once more."""
        self._tell("failed", steps)
