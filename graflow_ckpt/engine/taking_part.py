"""Taking part: this process works on a session in Redis until that has ended, beside whoever else does.

open it -> a token of our own -> run -> wait for what others run -> result

Nobody has to look after it: what somebody who has died held is taken by whoever still works.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from time import sleep
from typing import TYPE_CHECKING, Any

from graflow_ckpt.core.errors import (
    Fenced,
    GraflowError,
    Interrupted,
    SessionCancelled,
    SessionFinished,
    Stalled,
    TaskError,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import Op
from graflow_ckpt.engine import notice
from graflow_ckpt.engine.invoke import Invoker
from graflow_ckpt.engine.keeper import Keeper, Kept
from graflow_ckpt.engine.opening import Opening, doubts, in_doubt, paused
from graflow_ckpt.engine.reaping import release_the_dead
from graflow_ckpt.engine.resuming import check_workflow
from graflow_ckpt.engine.run import Run
from graflow_ckpt.engine.shared import SharedCuts, SharedHost
from graflow_ckpt.engine.shared_context import SharedContext
from graflow_ckpt.engine.signals import Stop, handled
from graflow_ckpt.links.processes import myself
from graflow_ckpt.sessions.layout import START, keys_of
from graflow_ckpt.sessions.redis import POLL, RedisSession, new_nonce

if TYPE_CHECKING:
    from graflow_ckpt.engine.coroutines import Loop

log = logging.getLogger("graflow_ckpt.engine")

LEASE = 15.0
ENDS = frozenset({"completed", "failed", "cancelled", "stopped", "stalled"})


class TakingPart:
    """One call of execute on a session in Redis."""

    def __init__(self, context: SharedContext) -> None:
        self.context = context
        self.settings = context.settings
        self.session = context.session_id
        self.loop: Loop | None = None  # that coroutines run on; else one of its own
        self._keeper = Keeper(context.link, LEASE)
        self.stop = Stop(self.session, self.settings.grace, self._stop)
        self._run: Run | None = None
        self._line = ""  # how a run begins that is not simply new

    def run(self, start: str | None) -> Any:
        context = self.context
        state, status = context.state, context.status
        check_workflow(context, state, context.facts_of("workflow")["workflow"])
        if start is None and status in ("completed", "cancelled"):
            if status == "completed":
                self._check_finished()
                notice.tell(context, notice.finished(context, state))
            return self._result(status)
        if state.next_key > 1:
            self._line = notice.continuing(context, state)
            notice.tell(context, self._line)
        opening = Opening(context)
        bindings = opening.prepare(start)
        opening.open(start)
        context.started = True
        mine = self._begin()
        if mine is None:  # others have brought it to its end meanwhile
            return self._result(context.status)
        try:
            run = self._set_up(mine, bindings)
            with handled(self.stop):
                return self._drive(run, mine)
        except BaseException as error:
            if self._run is not None and self._run.announcer.open:
                self._emit("session_ended", status="broken", reason=str(error))
            raise
        finally:
            self._keeper.close()
            self._leave(mine)
            mine.close()

    def _check_finished(self) -> None:
        """Refuse what is not to be executed twice, and what Redis cannot begin again."""
        match self.settings.on_finished:
            case "error":
                raise SessionFinished(
                    f"Session {self.session} was finished and on_finished='error'.",
                    hint="Use another session id.",
                    session=self.session,
                )
            case "again":
                raise SessionFinished(
                    f"Session {self.session} was finished: a session in Redis has one run.",
                    hint="Use another session id.",
                    session=self.session,
                )

    def _begin(self) -> RedisSession | None:
        """A token of our own; None if the session has ended."""
        owner = json.dumps(asdict(myself()), separators=(",", ":"))
        key = f"{keys_of(self.session)}c"
        reply = self.context.link.script(START)([key], ["", owner, int(LEASE * 1000), "", new_nonce()])
        if len(reply) < 3:
            return None
        return RedisSession(
            self.context.link, self.session, self.context.cells, reply[1].decode(), reply[3].decode()
        )

    def _set_up(self, mine: RedisSession, bindings: Any) -> Run:
        context, home = self.context, self.context.cuts_at()
        invoker = Invoker(context.graph, mine, self.settings, self.loop)
        invoker.bindings = bindings
        cuts = SharedCuts(mine, self.settings, home, self._emit)
        run = self._run = Run(context.graph, mine, self.settings, cuts, invoker)
        invoker.host = host = SharedHost(context.graph, mine, run, home, context.cells)
        host.execution_context = context
        cuts.on_saved = context.note_checkpoint
        host.remake()
        if self.stop.signal is not None:
            run.stop()
        kept = Kept(mine, self._news, lambda: None)
        kept.look_around = self._look_around
        self._keeper.keep(kept)
        if self.settings.observers:
            home.trace.goes_on_from_text(context.facts_of("trace")["trace"])
            home.trace.follow(self.settings.observers)
        former, original = home.trace.former, home.trace.original
        self._emit(
            "session_started", **self._facts(), trace_context=former, original_trace_id=original,
            line=self._line, saved=True,
        )  # fmt: skip
        context.begin_trace(home.trace)
        if context.checkpoint_requested:
            context.checkpoint_requested = False
            cuts.cut("request", context.checkpoint_request_metadata)
        return run

    # --- while it runs -----------------------------------------------------------------

    def _drive(self, run: Run, mine: RedisSession) -> Any:
        try:
            while True:
                run.drive()
                if self.stop.signal is not None:
                    self._interrupted(mine.status)
                if mine.status not in ("closing", "failing"):
                    break
                sleep(POLL)  # others finish what they run
                mine.commit([("claim", 0)])
        except Fenced as error:
            return self._without(error, mine)
        self._emit("session_ended", status=mine.status, reason="")
        return self._result(mine.status)

    def _without(self, error: Fenced, mine: RedisSession) -> Any:
        """Our token is void: the session has ended, or goes on without this process."""
        status = self.context.status
        if status not in ENDS:
            raise error
        if mine.held:
            log.warning("session %s: %s", self.session, error, extra={"session": self.session})
        self._emit("session_ended", status=status, reason="")
        return self._result(status)

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def leave(self, error: Interrupted) -> None:
        """For a run in another thread: its time is over."""
        if self._run is not None:
            self._run.inbox.leave(error)

    def _news(self, news: str) -> None:
        if self._run is None:
            return
        if news in ("fenced", "gone"):
            self._run.fence(Fenced("The session's token was lost.", session=self.session))
        elif news == "cancelled":
            self._run.fence(WorkflowCancelled("The session was cancelled.", session=self.session))

    def _look_around(self) -> None:
        """From the keeper, once a second: what others held who have died can be claimed again."""
        release_the_dead(self.context.link, self.session, self.context.cells, patience=0.0)

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
        state = context.state
        if status == "cancelled":
            if self._run is None:
                raise SessionCancelled(
                    f"Session {self.session} was cancelled: {state.reason}", session=self.session
                )
            raise WorkflowCancelled(state.reason, session=self.session)
        if status == "paused" and (asked := doubts(state)):
            raise in_doubt(self.session, list(asked.values()))
        if status == "paused":
            raise paused(self.session, state.reason)
        raise self._failure(status, state.reason)

    def _failure(self, status: str, reason: str) -> BaseException:
        """What the session has ended with, and the command that goes on."""
        error: BaseException
        if status == "stalled":
            gates = sorted(self.context.state.waiting_gates())
            error = Stalled(
                f"Session {self.session} is stalled: nothing is left to run, and {reason}.",
                session=self.session,
                gates=gates,
            )
        else:
            failure = self._run.announcer.failure if self._run is not None else None
            error = failure or TaskError(reason, session=self.session)
        error.add_note(f"Session {self.session} can go on: {self._command()}")
        return error

    def _interrupted(self, status: str) -> None:
        message = f"session {self.session} stopped; it goes on with: {self._command()}"
        if status == "completed":
            message = f"session {self.session} is completed"
        self._emit("session_ended", status="completed" if status == "completed" else "interrupted")
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
