"""Taking part: this process works on a session in Redis until that has ended, beside whoever else does.

token -> release what the dead held -> start it, or reopen it -> run -> wait for the others -> result
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from time import sleep
from typing import Any

from graflow_ckpt.checkpoint.plan import make_plan
from graflow_ckpt.checkpoint.program import current_tasks, saved_tasks
from graflow_ckpt.core.errors import (
    Fenced,
    GraflowError,
    GraphError,
    Interrupted,
    SessionCancelled,
    SessionError,
    Stalled,
    TaskError,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import Op
from graflow_ckpt.engine.invoke import Invoker
from graflow_ckpt.engine.keeper import Keeper, Kept
from graflow_ckpt.engine.preflight import check_graph
from graflow_ckpt.engine.reaping import release_the_dead
from graflow_ckpt.engine.run import Run
from graflow_ckpt.engine.shared import SharedCuts, SharedHost
from graflow_ckpt.engine.shared_context import SharedContext
from graflow_ckpt.engine.signals import Stop, handled
from graflow_ckpt.links.processes import myself
from graflow_ckpt.sessions.layout import START, keys_of
from graflow_ckpt.sessions.redis import POLL, RedisSession

log = logging.getLogger("graflow_ckpt.engine")

LEASE = 15.0


class TakingPart:
    """One call of execute on a session in Redis."""

    def __init__(self, context: SharedContext) -> None:
        self.context = context
        self.settings = context.settings
        self.session = context.session_id
        self._keeper = Keeper(context.link, LEASE)
        self.stop = Stop(self.session, self.settings.grace, self._stop)
        self._run: Run | None = None

    def run(self, start: str | None) -> Any:
        context = self.context
        if start is None and context.status in ("completed", "cancelled"):
            return self._result(context.status)
        bindings = self._prepare(start)
        release_the_dead(context.link, self.session, context.cells)
        self._open(start)
        mine = self._begin()
        try:
            invoker = Invoker(context.graph, mine, self.settings, None)
            invoker.bindings = bindings
            cuts = SharedCuts(mine, self.settings, context.cuts_at(), self._emit)
            run = self._run = Run(context.graph, mine, self.settings, cuts, invoker)
            invoker.host = host = SharedHost(context.graph, mine, run, context.cuts_at(), context.cells)
            host.execution_context = context
            cuts.on_saved = context.note_checkpoint
            host.remake()
            self._keeper.keep(Kept(mine, self._news, lambda: None))
            self._emit("session_started", **self._facts())
            with handled(self.stop):
                return self._drive(run, mine)
        finally:
            self._keeper.close()
            self._leave(mine)
            mine.close()

    # --- before ------------------------------------------------------------------------

    def _prepare(self, start: str | None) -> Any:
        context = self.context
        state = context.state
        starts = (start,) if start is not None else state.starts or tuple(context.graph.roots())
        if not starts:
            raise GraphError("The workflow has no task to start with.", hint="Decorate functions with @task.")
        if not context.graph.nodes:
            context.graph = context.graph_from_code()
        context.graph.compile(starts)
        bindings = check_graph(context.graph, self.settings, context.tables.names(), shared=True)
        if context.found is not None:
            facts = dict(context.found.facts)
            facts |= {"completed_tasks": list(state.completed), "skipped": dict(state.skipped)}
            facts |= {"made": list(state.tasks), "passed": list(state.passed), "gates": list(state.gates)}
            facts["pending_tasks"] = [{"task_id": s.task_id, "status": "pending"} for s in state.pending()]
            plan = make_plan(saved_tasks(facts), current_tasks(context.graph), self.settings.changed)
            plan.raise_if_refused(self.session)
        return bindings

    def _begin(self) -> RedisSession:
        """A token of our own."""
        owner = json.dumps(asdict(myself()), separators=(",", ":"))
        key = f"{keys_of(self.session)}c"
        reply = self.context.link.script(START)([key], ["", owner, int(LEASE * 1000), ""])
        if len(reply) < 3:
            raise SessionError(f"Session {self.session} has ended or is gone.", session=self.session)
        return RedisSession(self.context.link, self.session, self.context.cells, reply[1].decode())

    def _open(self, start: str | None) -> None:
        """Start it, start elsewhere, or go on."""
        context, state = self.context, self.context.state
        limit = state.max_steps if context.limit is None else context.limit
        reopen: Op = ("reopen", state.epoch, limit)
        if start is not None and state.next_key > 1:
            context.tables.commit([("clear",), reopen, context.graph.routes[start].enqueue()])
            return
        if state.next_key == 1:
            context.schedule_start(context.graph.starts)
        if state.status != "running" or limit != state.max_steps:
            context.tables.commit([reopen])
        if context.checkpoint_requested:
            context.checkpoint_requested = False
            context.checkpoint(metadata=context.checkpoint_request_metadata)

    # --- while it runs -----------------------------------------------------------------

    def _drive(self, run: Run, mine: RedisSession) -> Any:
        while True:
            run.drive()
            if self.stop.signal is not None:
                self._interrupted()
            if mine.status not in ("closing", "failing"):
                break
            sleep(POLL)  # others finish what they run
            mine.commit([("claim", 0)])
        self._emit("session_ended", status=mine.status, reason="")
        return self._result(mine.status)

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def _news(self, news: str) -> None:
        if self._run is None:
            return
        if news in ("fenced", "gone"):
            self._run.fence(Fenced("The session's token was lost.", session=self.session))
        elif news == "cancelled":
            self._run.fence(WorkflowCancelled("The session was cancelled.", session=self.session))

    def _leave(self, mine: RedisSession) -> None:
        if mine.broken is not None or mine.retired:
            return
        ops: list[Op] = [("release", key, claim.spec.crashes) for key, claim in mine.held.items()]
        try:
            mine.commit([*ops, ("claim", 0)], mode="q")
        except GraflowError as error:  # its lease ends by itself
            log.warning("session %s is left: %s", self.session, error, extra={"session": self.session})

    # --- after -------------------------------------------------------------------------

    def _result(self, status: str) -> Any:
        context = self.context
        if status in ("completed", "stopped"):
            return context.result()
        reason = context.state.reason
        if status == "cancelled":
            if self._run is None:
                raise SessionCancelled(
                    f"Session {self.session} was cancelled: {reason}", session=self.session
                )
            raise WorkflowCancelled(reason, session=self.session)
        if status == "stalled":
            raise Stalled(f"Session {self.session} is stalled: {reason}.", session=self.session)
        if status == "paused":
            raise SessionError(f"Session {self.session} is paused: {reason}", session=self.session)
        failure = self._run.announcer.failure if self._run is not None else None
        error = failure or TaskError(reason, session=self.session)
        error.add_note(f"Session {self.session} can go on: {self._command()}")
        raise error

    def _interrupted(self) -> None:
        message = f"session {self.session} stopped; it goes on with: {self._command()}"
        self._emit("session_ended", status="interrupted")
        sys.stderr.write(f"graflow-ckpt: {message}\n")
        raise Interrupted(message, self.session)

    def _command(self) -> str:
        return f"graflow-ckpt resume {self.session} --url {self.context.link.address}"

    def _facts(self) -> dict[str, Any]:
        state = self.context.state
        return {
            "workflow": self.settings.workflow, "resumed": self.context.attached, "path": None, "replayed": 0,
            "completed": len(state.completed), "pending": len(state.specs), "max_steps": state.max_steps,
            "kept": True, "store": self.context.link.address,
        }  # fmt: skip

    def _emit(self, kind: Any, task: str = "", **facts: Any) -> None:
        if self._run is not None:
            self._run.announcer.emit(kind, task, **facts)
