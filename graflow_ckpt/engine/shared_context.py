"""ExecutionContext of a session in Redis: the same names, and the tables are elsewhere.

Any process that knows the session's id can hold one. Its checkpoints are written to the store that
the context was made with, and hold no values: those stay in Redis, where a resume finds them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.keys import Keyring, uses_local_key
from graflow_ckpt.checkpoint.model import CheckpointMetadata, Document, check_metadata
from graflow_ckpt.checkpoint.program import Program, current_tasks, describe, pack_code, summary_of
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.checkpoint.snapshot import capture
from graflow_ckpt.core.errors import CheckpointError, NoSession, SessionError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.home import program_file
from graflow_ckpt.engine.inputs import SharedChannel
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.engine.shared_home import BACKEND, SharedHome
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.layout import CREATE, keys_of
from graflow_ckpt.sessions.names import check_names
from graflow_ckpt.sessions.shared import SharedTables
from graflow_ckpt.sessions.tables import parse_line
from graflow_ckpt.sessions.views import RedisTaskQueue

KEPT = 30 * 24 * 3600
"""Seconds for which a session that has ended is kept."""


class SharedContext(ExecutionContext):
    """One session of one graph, in Redis."""

    def __init__(
        self,
        graph: TaskGraph,
        session_id: str | None,
        link: RedisLink,
        *,
        settings: Settings | None = None,
        store: str = "checkpoints",
    ) -> None:
        super().__init__(graph, session_id, settings=settings, store=store)
        self.link = link
        self.keyring = None if uses_local_key() else Keyring.load(local=False)
        self.cells = SealedCells(self.session_id, self.keyring)
        self.tables = SharedTables(link, self.session_id, self.cells)
        self.place = store
        self._channel = SharedChannel(self, self.tables)
        self._program: Program | None = None
        self.limit: int | None = None  # max_steps of the next execution, instead of the session's
        self.attached = False  # the session was there before

    @classmethod
    def made(
        cls, graph: TaskGraph, start_node: str, session_id: str | None, max_steps: int | None,
        config: Mapping[str, Any] | None, settings: Settings, store: str,
    ) -> SharedContext:  # fmt: skip
        """A new session, or, under an id that Redis knows, that one."""
        context = cls(graph, session_id, link_of(config), settings=settings, store=store)
        cap = "" if settings.max_parallel is None else settings.max_parallel
        line = f"running|0|0|1|1|1|{'' if max_steps is None else max_steps}|{cap}|||"
        facts = {
            "workflow": settings.workflow, "epoch": "1", "tokens": "0", "created": repr(time.time()),
            "starts": json.dumps([start_node]), "ttl": str(KEPT), "kept": str(KEPT), "store": store,
        }  # fmt: skip
        pairs = [item for pair in facts.items() for item in pair]
        reply = context.link.script(CREATE)([f"{keys_of(context.session_id)}c"], [line, *pairs])
        context.attached = reply == b"exists"
        return context

    @classmethod
    def attached_to(cls, found: Found, graph: TaskGraph, store: str) -> SharedContext:
        """The live session that a checkpoint was taken of; its queue is where it was."""
        address = found.facts["redis"]["address"]
        session = found.facts["session_id"]
        settings = Settings(workflow=found.meta.get("workflow", "workflow"))
        context = cls(graph, session, open_link(address), settings=settings, store=store)
        try:
            line = context._line()
        except NoSession as error:
            error.hint = (
                f"Its queue and values were there and are not in the checkpoint {found.path}. A portable "
                "checkpoint has them: graflow-ckpt checkpoints list."
            )
            raise
        if int(line["sequence"]) < int(found.facts["transition"]):
            raise CheckpointError(
                f"Session {session} at {address} is at transition {line['sequence']}, and its checkpoint at "
                f"{found.facts['transition']}: Redis has lost commits.",
                hint="Restore Redis from a newer copy, or go on from a portable checkpoint (rewind or fork).",
                session=session,
                live=int(line["sequence"]),
                cut=int(found.facts["transition"]),
            )
        context.attached, context.found = True, found
        context.checkpoint_metadata = dict(found.metadata.user_metadata)
        return context

    # --- facts -------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        return self.tables.state

    @property
    def steps(self) -> int:
        return int(self._line()["steps"])

    @property
    def status(self) -> str:
        return self._line()["status"]

    def _line(self) -> dict[str, str]:
        key = f"{keys_of(self.session_id)}c"
        line = self.link.route.client_for(key).hget(key, "c")
        if line is None:
            raise NoSession(
                f"There is no session {self.session_id} at {self.link.address}.", session=self.session_id
            )
        return parse_line(line)

    @property
    def task_queue(self) -> RedisTaskQueue:
        return RedisTaskQueue(self.tables, self.to_cell, from_cells)

    @property
    def goes_on(self) -> bool:
        return False  # what is set is committed: the channel is there whether or not anything runs

    @property
    def last_checkpoint_path(self) -> str | None:
        path = self._hget("cut_path")
        return path.decode() if path else None

    def _hget(self, name: str) -> bytes | None:
        key = f"{keys_of(self.session_id)}h"
        found: Any = self.link.route.client_for(key).hget(key, name)
        return found if found is None else bytes(found)

    # --- the program -------------------------------------------------------------------

    def program(self) -> Program:
        """What a checkpoint keeps of it; made once the graph has been compiled."""
        if self._program is None:
            facts = describe(self.graph, current_tasks(self.graph))
            facts["summary"] = summary_of(self.graph)
            self._program = Program(facts, pack_code(self.graph), program_file(), (), self.settings.workflow)
        return self._program

    def cuts_at(self) -> SharedHome:
        """Where checkpoints of this session go."""
        if not self.graph.routes:
            self.graph.compile(self.state.starts or self.graph.roots())
            check_names(self.graph)
        return SharedHome(self.link, self.session_id, self.cells, self.place, None, self.program())

    # --- changes -----------------------------------------------------------------------

    def mark_task_completed(self, task_id: str) -> None:
        raise SessionError(
            f"Session {self.session_id} is in Redis: only who holds a task can say that it has completed.",
            hint="Run it, or write its result into the channel before its successors need it.",
            session=self.session_id,
        )

    def get_checkpoint_state(self) -> Document:
        facts = capture(self.state).facts
        facts["backend"] = dict(BACKEND)
        return facts

    def checkpoint(
        self, path: str | None = None, metadata: dict[str, Any] | None = None, storage: str | None = None,
        *, portable: bool = False,
    ) -> tuple[str, CheckpointMetadata]:  # fmt: skip
        """Write a checkpoint now; a portable one takes queue and values along."""
        if storage not in (None, "local", "redis"):
            raise CheckpointError(f"storage={storage!r} is not available.")
        if self.status == "running" and not self.attached and self.state.next_key == 1:
            self.schedule_start()
        saved = self.cuts_at().cut("request", check_metadata(metadata), path=path, portable=portable)
        self.note_checkpoint(saved)
        return saved.path, saved

    def note_checkpoint(self, metadata: CheckpointMetadata) -> None:
        super().note_checkpoint(metadata)
        self.checkpoint_metadata["backend"] = dict(BACKEND)

    def schedule_start(self, starts: tuple[str, ...] = ()) -> None:
        """The start of a session that has never run; of two that try one wins."""
        self.graph.compile(starts or self.state.starts or self.graph.roots())
        check_names(self.graph)
        ops = [self.graph.routes[name].enqueue() for name in self.graph.starts]
        self.tables.sender.commit([*ops], mode="B")

    # --- going on ----------------------------------------------------------------------

    @property
    def elsewhere(self) -> bool:
        return True

    def execute(self, max_steps: int | None = None) -> Any:
        """Run, or go on, from here."""
        self.limit = max_steps
        return self.take_part(None)

    def take_part(self, start: str | None) -> Any:
        """Run the session from here, beside whoever else does."""
        from graflow_ckpt.engine.taking_part import TakingPart

        return TakingPart(self).run(start)


def link_of(config: Mapping[str, Any] | None) -> RedisLink:
    """The server that `config={"redis_client": …}` or `{"redis_url": …}` names."""
    config = config or {}
    where = config.get("redis_client", config.get("redis_url"))
    if where is None:
        where = os.environ.get("GRAFLOW_CKPT_REDIS_URL")
    if not where:
        raise SessionError(
            "queue_backend='redis' needs a server.",
            hint='config={"redis_client": redis.Redis(...)} or {"redis_url": "redis://…"}, '
            "or set GRAFLOW_CKPT_REDIS_URL.",
        )
    return open_link(where)
