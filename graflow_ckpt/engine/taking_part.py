"""Taking part: this process works on a session in Redis until that has ended, beside other workers.

open it -> a token of our own -> run -> wait for what others run -> result

To open it: graph and program -> what the dead held is released -> questions -> started, started elsewhere, or
reopened.

No operator has to supervise it: what a dead worker held is taken by one that still works.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.program.plan import Plan, make_plan
from graflow_ckpt.checkpoint.program.program import current_tasks, saved_tasks
from graflow_ckpt.core.decide import ANSWERS
from graflow_ckpt.core.errors import (
    Fenced,
    GraflowError,
    GraphError,
    Interrupted,
    SessionBusy,
    SessionCancelled,
    SessionError,
    SessionFinished,
    TaskError,
    WorkflowCancelled,
)
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.bind import Binding, check_answers, check_graph, takes_cuts
from graflow_ckpt.engine.reaping import Keeper, release_the_dead
from graflow_ckpt.engine.resuming import (
    accept,
    changes_of,
    check_workflow,
    continuing_line,
    finished_line,
    in_doubt,
    notify,
    stalled,
)
from graflow_ckpt.engine.run import Run
from graflow_ckpt.engine.shared import Part
from graflow_ckpt.engine.shared_context import SharedContext
from graflow_ckpt.engine.signals import Stop, handled
from graflow_ckpt.links.processes import myself
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.session import POLL, RedisSession, new_nonce

if TYPE_CHECKING:
    from graflow_ckpt.engine.coroutines import Loop

log = logging.getLogger("graflow_ckpt.engine")

LEASE = 15.0
ENDS = frozenset({"completed", "failed", "cancelled", "stopped", "stalled"})


class TakingPart:
    """One call of execute on a session in Redis."""

    def __init__(self, context: SharedContext, loop: Loop | None) -> None:
        self.context = context
        self.settings = context.settings
        self.session = context.session_id
        self._loop = loop  # that coroutines run on; else one of its own
        self._keeper = Keeper(context.link, LEASE)
        leave = self._leave_at_once if loop is not None else None
        self.stop = Stop(self.session, self.settings.grace, self._stop, leave)
        self._part: Part | None = None
        self._line = ""  # how a run begins that is not simply new

    def run(self, start: str | None) -> Any:
        context = self.context
        state, status = context.state, context.status
        check_workflow(context, state, context.facts_of("workflow")["workflow"])
        if start is None and status in ("completed", "cancelled"):
            if status == "completed":
                self._check_finished()
                notify(context, finished_line(context, state))
            return self._result(status)
        if state.next_key > 1:
            self._line = continuing_line(context, state)
            notify(context, self._line)
        bindings = self._prepare(start)
        self._open(start)
        context.begin()
        mine = self._begin()
        if mine is None:  # others have brought it to its end meanwhile
            return self._result(context.status)
        try:
            part = self._set_up(mine, bindings)
            with handled(self.stop):
                return self._drive(part.run, mine)
        except BaseException as error:
            if self._part is not None and self._part.announcer.open:
                self._emit("session_ended", status="broken", reason=str(error))
            raise
        finally:
            self._keeper.close()
            self._leave()
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

    # --- before ------------------------------------------------------------------------

    def _prepare(self, start: str | None) -> dict[str, Binding]:
        """Check all that can be checked before the first task."""
        context, state = self.context, self.context.state
        starts = (start,) if start is not None else state.starts or tuple(context.graph.roots())
        if not starts:
            raise GraphError("The workflow has no task to start with.", hint="Decorate functions with @task.")
        context.graph.compile(starts)
        check_answers(context.graph, state.tasks, self.settings)
        bindings = check_graph(context.graph, self.settings, context.tables.names(), shared=True)
        if takes_cuts(self.settings, bindings):  # no save fails for these later
            home = context.cuts_at()
            home.store.probe()
            _ = home.keyring
        return bindings

    def _open(self, start: str | None) -> None:
        """Start it, start elsewhere, or continue."""
        context, was = self.context, self.context.status
        release_the_dead(context.link, self.session, context.cells)
        state = context.state
        if was == "running" and state.status == "paused":  # a task has taken its last worker down
            raise paused(self.session, state.reason)
        limit = state.max_steps if context.limit is None else context.limit
        reopen: Op = ("reopen", state.epoch, limit)
        if state.next_key == 1:
            context.schedule_start(context.graph.starts)
            if limit != state.max_steps:
                context.tables.commit([reopen])
        elif start is not None:
            context.note_start()
            begun = [context.graph.routes[name].enqueue() for name in context.graph.starts]
            context.tables.commit([("clear",), reopen, *begun])
        else:
            changes = [*self._changes(state), *self._answers(state)]
            if changes or state.status != "running" or limit != state.max_steps:
                context.tables.commit([*changes, reopen])
        context.note_program()

    def _changes(self, state: SessionState) -> list[Op]:
        """Return what a changed program has to run again; GraphChanged where results would not be its own."""
        plan = self._plan(state)
        if plan is None:
            return []
        accept(plan, self.session)
        ops = changes_of(self.context.graph, plan)
        if ops and (others := self.context.owners()):
            raise SessionBusy(
                f"Tasks of session {self.session} are to run again with another program, and somebody "
                f"works on it: {others[0]}.",
                hint="Pause it and wait until its workers have left it.",
                session=self.session,
                owner=others[0],
            )
        return ops

    def _plan(self, state: SessionState) -> Plan | None:
        """Return the plan of the session's tasks against the program's; None if they are the same."""
        program = self.context.known_program()
        if program is None or program.get("summary") == self.context.program().facts["summary"]:
            return None

        def where(key: int) -> str:
            return "running" if key in state.claimed else "failed" if key in state.dead else "pending"

        facts = {
            "graph": program, "completed_tasks": list(state.completed), "skipped": dict(state.skipped),
            "made": list(state.tasks), "passed": list(state.passed), "gates": list(state.gates),
            "pending_tasks": [{"task_id": s.task_id, "status": where(s.key)} for s in state.pending()],
        }  # fmt: skip
        return make_plan(saved_tasks(facts), current_tasks(self.context.graph), self.settings.changed)

    def _answers(self, state: SessionState) -> list[Op]:
        """Return the answers for what was set aside to ask the user; raise InDoubt if one is missing."""
        answers, waiting = dict(self.settings.in_doubt), doubts(state)
        asked = [name for name in waiting.values() if name not in answers]
        if asked:
            raise in_doubt(self.session, asked)
        return [("answer", key, ANSWERS.get(answers[name], "failed")) for key, name in waiting.items()]

    def _begin(self) -> RedisSession | None:
        """Return a session with a token of our own; None if the session has ended."""
        owner = json.dumps(asdict(myself()), separators=(",", ":"))
        key = f"{keys_of(self.session)}c"
        reply = self.context.link.script(START)([key], ["", owner, int(LEASE * 1000), "", new_nonce()])
        if len(reply) < 3:
            return None
        return RedisSession(
            self.context.link, self.session, self.context.cells, reply[1].decode(), reply[3].decode()
        )

    def _set_up(self, mine: RedisSession, bindings: dict[str, Binding]) -> Part:
        context, home = self.context, self.context.cuts_at()
        part = self._part = Part(
            mine, context.graph, bindings, self.settings, home, context.cells, self._keeper,
            context=context, loop=self._loop, on_saved=context.note_checkpoint,
        )  # fmt: skip
        part.host.remake()
        if self.stop.signal is not None:
            part.inbox.stop()
        # once a second: what dead workers held can be claimed again
        look_around = partial(release_the_dead, context.link, self.session, context.cells, patience=0.0)
        part.keep(lambda: None, look_around)
        if self.settings.observers:
            home.join_trace(home.kept_trace())
            home.trace.follow(self.settings.observers)
        former, original = home.trace.former, home.trace.original
        self._emit(
            "session_started", **self._facts(), trace_context=former, original_trace_id=original,
            line=self._line, saved=True,
        )  # fmt: skip
        home.keep_trace(first=False)
        if (asked := context.taken_request()) is not None:
            part.cuts.cut("request", asked)
        return part

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
        """Handle a void token: the session has ended, or continues without this process."""
        status = self.context.status
        if status not in ENDS:
            raise error
        if mine.held:
            log.warning("session %s: %s", self.session, error, extra={"session": self.session})
        self._emit("session_ended", status=status, reason="")
        return self._result(status)

    def _stop(self) -> None:
        if self._part is not None:
            self._part.inbox.stop()

    def _leave_at_once(self, error: Interrupted) -> None:
        """End a run in another thread whose grace period is over."""
        if self._part is not None:
            self._part.inbox.leave(error)

    def _leave(self) -> None:
        if self._part is None:
            return
        try:
            self._part.leave()
        except GraflowError as error:  # its lease ends by itself
            log.warning("session %s is left: %s", self.session, error, extra={"session": self.session})

    # --- after -------------------------------------------------------------------------

    def _result(self, status: str) -> Any:
        context = self.context
        if status in ("completed", "stopped"):
            return context.result()
        state = context.state
        if status == "cancelled":
            if self._part is None:
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
        """Return what the session has ended with, and the command that continues."""
        error: BaseException
        if status == "stalled":
            error = stalled(self.context.state)
        else:
            failure = self._part.announcer.failure if self._part is not None else None
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
        if self._part is not None:
            self._part.announcer.emit(kind, task, **facts)


def doubts(state: SessionState) -> dict[int, str]:
    """Return the specs that wait for an answer, and their tasks."""
    specs = [state.specs[key] for key in state.dead]
    return {spec.key: spec.task_id for spec in specs if spec.execution_strategy == "doubt"}


def paused(session: str, reason: str) -> SessionError:
    return SessionError(
        f"Session {session} is paused: {reason}",
        hint="The next one who executes it goes on.",
        session=session,
    )
