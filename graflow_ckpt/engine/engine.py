"""WorkflowEngine: takes a session from where it is to where it ends, and leaves it resumable.

    is it over? -> check the graph -> own it -> plan -> run -> last cut -> result, or the task's error

An Execution is one call of execute, wherever the tables are. How a session is owned, begun and left is said
by OwnExecution for one of this process, by SharedExecution (shared.py) for one in Redis.

A session that keeps nothing touches no disk: the folder, the key and the lease are taken when
the session may be resumed later (a session id, a policy, a journal, a task that asks for a
checkpoint), or when the first cut is taken.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.values import attachments
from graflow_ckpt.checkpoint.values.pickles import collector_at_rest
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import Op, execution_of
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine import notices, resuming
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.body.bind import Binding, check_answers, check_graph, wants_home
from graflow_ckpt.engine.body.live import GoBack
from graflow_ckpt.engine.body.random_state import restore_random
from graflow_ckpt.engine.cuts import Cutter
from graflow_ckpt.engine.home import Home
from graflow_ckpt.engine.invoke import Bodies, Invoker, Lapsed
from graflow_ckpt.engine.run import Inbox, Run, RunHost
from graflow_ckpt.engine.signals import Stop, handled

if TYPE_CHECKING:
    from graflow_ckpt.checkpoint.program.plan import Plan
    from graflow_ckpt.engine.body.coroutines import Loop
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.engine")


class WorkflowEngine:
    """Executes sessions; holds nothing between them."""

    def execute(self, context: ExecutionContext, start_task_id: str | None = None) -> Any:
        """Run a session, or continue it; return what its last task returned.

        `start_task_id` on a session that continues: drop what is scheduled and start there.
        """
        return (context.executed_by or OwnExecution)(context, None).run(start_task_id)

    async def aexecute(self, context: ExecutionContext, start_task_id: str | None = None) -> Any:
        """Execute from a coroutine: `async def` tasks run on the caller's loop.

        Cancelled, it stops like a session that gets a signal: what runs is finished, then saved.
        """
        import asyncio

        from graflow_ckpt.engine.body.coroutines import Loop, on_a_thread

        loop = Loop(asyncio.get_running_loop())
        execution = (context.executed_by or OwnExecution)(context, loop)
        with handled(execution.stop):  # signals come to the main thread, wherever the session runs
            return await on_a_thread(partial(execution.run, start_task_id), execution.stop.ask)


class Execution:
    """One call of execute, as far as it is the same for all sessions."""

    def __init__(self, context: ExecutionContext, loop: Loop | None) -> None:
        self.context = context
        self.settings = context.settings
        self.graph = context.graph
        self._loop = loop  # that coroutines run on; else one of its own
        self._run: Run | None = None
        self._line = ""  # how a run begins that is not simply new
        leave = self._leave_at_once if loop is not None else None
        self.stop = Stop(context.session_id, self.settings.grace, self._stop_run, leave)

    def run(self, start: str | None) -> Any:
        try:
            if self._is_over(start):
                return self.context.result()
            if not self._open(start):  # others have brought it to its end meanwhile
                return self._result(self.context.status)
            with handled(self.stop):
                return self._drive()
        except BaseException as error:
            self._broken(error)
            if self._run is not None and self._run.announcer.open:  # fenced, a journal that failed …
                self._emit("session_ended", status="broken", reason=str(error))
            raise
        finally:
            self._close()

    def _open(self, start: str | None) -> bool:
        """Own it, and commit what it begins with; False if nothing is left to do."""
        raise NotImplementedError

    def _drive(self) -> Any:
        """Run until it has ended; the result."""
        raise NotImplementedError

    def _broken(self, error: BaseException) -> None:
        """Report what the end of this execution does not show."""

    def _close(self) -> None:
        """Let go of it."""
        raise NotImplementedError

    @property
    def current(self) -> Run:
        assert self._run is not None
        return self._run

    def _stop_run(self) -> None:
        if self._run is not None:
            self._run.inbox.stop()

    def _leave_at_once(self, error: errors.Interrupted) -> None:
        """End a run in another thread whose grace period is over."""
        if self._run is not None:
            self._run.inbox.leave(error)

    def _emit(self, kind: Any, task: str = "", **facts: Any) -> None:
        self.current.announcer.emit(kind, task, **facts)

    def _notify(self) -> None:
        notices.notify(self.context.session_id, self._line, told=self.settings.told)

    # --- before ------------------------------------------------------------------------

    def _is_over(self, start: str | None) -> bool:
        """Return True if nothing is run, for the session has ended for good; refuse another workflow's."""
        context, state = self.context, self.context.state
        resuming.check_workflow(context, state, self._workflow())
        if start is not None:
            return False
        if state.status == "cancelled":
            raise errors.SessionCancelled(
                f"Session {state.session} was cancelled: {state.reason}",
                hint="Start a new session, or resume from one of its checkpoints by path.",
                session=state.session,
            )
        if not resuming.is_finished(state):
            return False
        self._check_finished()
        self._line = notices.finished_line(context, state)
        self._notify()
        announcer = Announcer(context.session, self.settings.observers)
        announcer.emit("session_finished", **context.facts(), line=self._line)
        return True

    def _workflow(self) -> str | None:
        """Return the name of the workflow that the session is of."""
        raise NotImplementedError

    def _check_finished(self) -> None:
        """Refuse what is not to be executed twice."""
        if self.settings.on_finished != "return":
            again = self.settings.on_finished == "again"
            why = ": an ExecutionContext has one run." if again else " and on_finished='error'."
            raise errors.SessionFinished(
                f"Session {self.context.session_id} was finished{why}",
                hint="Use another session id. The next run begins when the session is opened again.",
                session=self.context.session_id,
            )

    def _check(self, start: str | None, inputs: Collection[str]) -> dict[str, Binding]:
        """Check all that can be checked before the first task."""
        state = self.context.state
        starts = (start,) if start is not None else state.starts or tuple(self.graph.roots())
        if not starts:
            why = "The workflow has no task to start with."
            raise errors.GraphError(why, hint="Decorate functions with @task.")
        self.graph.compile(starts)
        check_answers(self.graph, state.tasks, self.settings)
        return check_graph(self.graph, self.settings, inputs, shared=not self.context.home.alone)

    # --- after -------------------------------------------------------------------------

    def _result(self, status: str) -> Any:
        """Return what the last task returned, or raise the error that the session has ended with."""
        state = self.context.session.known()
        session, reason = state.session, state.reason
        match status:
            case "completed":
                return self.context.result()
            case "stopped":
                larger = f"; resume with a larger one: {self._command()}" if self._can_go_on() else ""
                log.info("session %s: %s%s", session, reason, larger)
                return self.context.result()
            case "cancelled":
                raise errors.WorkflowCancelled(reason, session=session)
            case "paused" if asked := doubts(state):
                raise resuming.in_doubt(session, list(asked.values()))
            case "paused":
                raise paused(session, reason)
            case "stalled":
                raise self._with_note(resuming.stalled(state))
        failure = self._run.announcer.failure if self._run is not None else None
        raise self._with_note(failure or errors.TaskError(reason, session=session))

    def _interrupted(self, message: str, *, ended: bool) -> NoReturn:
        """Stop by a signal, and say how to continue."""
        self._emit("session_ended", status="completed" if ended else "interrupted")
        sys.stderr.write(f"graflow-ckpt: {message}\n")
        raise errors.Interrupted(message, self.context.session_id)

    def _with_note(self, error: BaseException) -> BaseException:
        """Return the task's own exception, with the command that continues."""
        if self._can_go_on():
            error.add_note(f"Session {self.context.session_id} can go on: {self._command()}")
        return error

    def _can_go_on(self) -> bool:
        """Return True if there is something that a command could continue."""
        return True

    def _command(self) -> str:
        return f"graflow-ckpt resume {self.context.session_id}{self.context.home.option()}"


class OwnExecution(Execution):
    """One call of execute on a session of this process."""

    def __init__(self, context: ExecutionContext, loop: Loop | None) -> None:
        super().__init__(context, loop)
        self.home = context.home
        self._lapsed = Lapsed()

    def _close(self) -> None:
        with self.context.session.still():  # not while another thread takes a checkpoint
            self.context.driven_no_more()
            self.home.close()

    def _broken(self, error: BaseException) -> None:
        """Log a late write as evidence: the store keeps nothing of what it has refused."""
        if not isinstance(error, errors.Fenced):
            return
        lease, session, step = self.home.lease, self.context.session_id, self.context.state.steps
        epoch = lease.epoch if lease is not None else 0
        log.error(
            "what session %s was to write at step %d under epoch %d was refused: %s",
            session, step, epoch, error, extra={"session": session, "step": step, "epoch": epoch},
        )  # fmt: skip

    def _drive(self) -> Any:
        while True:
            try:
                self.current.drive()
                break
            except GoBack as back:
                self._go_back(back)
            except errors.Interrupted:
                self._leave()
        # A signal that came too late to stop anything still ends the program.
        if self.stop.signal is not None and self.context.status not in ("failed", "stalled", "cancelled"):
            self._leave()
        return self._end()

    # --- before ------------------------------------------------------------------------

    def _is_over(self, start: str | None) -> bool:
        if super()._is_over(start):
            return True
        if not (self.home.was_left or self.context.session.on_loan()):
            return False
        with self.context.session.still():  # see _move_in
            resuming.catch_up(self.context)
        return super()._is_over(start)

    def _workflow(self) -> str | None:
        return self.context.found.meta.get("workflow") if self.context.found is not None else None

    def _open(self, start: str | None) -> bool:
        with self.context.session.still():  # what another thread adds is in the plan, or comes after it
            self._set_up(self._prepare(start))
        return True

    @collector_at_rest()
    def _prepare(self, start: str | None) -> list[Op]:
        """Check all that can be checked before the first task; the first transition."""
        context, limit = self.context, self.context.taken_limit()
        fresh, again = context.found is None, context.started
        if fresh and not again:
            context.note_inputs()
        self._bindings = self._check(start, self.home.inputs)
        context.begin()
        self.home.trace.follow(self.settings.observers)
        self.home.run_with(self.settings)
        if not fresh or wants_home(context, self._bindings):
            self._move_in(fresh)
        state = context.state
        state.limit_to(limit)
        epoch = self.home.lease.epoch if self.home.lease is not None else 0
        begun = context.found is not None or state.specs or state.gates
        if start is not None or not begun:
            state.start_at(self.graph.starts)
            if context.basis.again:
                self._line = notices.again_line(state.session, state.run)
                self._notify()
            routes = self.graph.routes
            ops: list[Op] = [("clear",), ("reopen", epoch, state.max_steps)]
            return ops + [routes[name].enqueue() for name in self.graph.starts]
        if fresh and not again:
            return [("reopen", epoch, state.max_steps)]  # the caller has queued what is to run
        return self._resume(epoch)

    def _move_in(self, fresh: bool) -> None:
        """Open folder, key, lease and code before the first task, so that no save fails for these later."""
        with self.context.session.still():  # another thread that takes a checkpoint may be about to close it
            self.home.open(take_over=self.settings.take_over)
        _ = self.home.keyring
        if fresh:
            self.home.program.of(self.graph)  # code that has no pickle is told of before the first task
            self.home.lineage.count_on()

    def _resume(self, epoch: int, *, died: bool = True) -> list[Op]:
        context = self.context
        plan = self._plan()
        resuming.remake_tasks(context)
        self._line = notices.continuing_line(context, context.state)
        ops = resuming.reopen(context, plan, epoch, died=died)
        if context.state.gap is not None:
            log.warning(
                "session %s: what followed a change of %r was not saved, and runs again: %s",
                context.session_id,
                *context.state.gap,
                extra={"session": context.session_id},
            )
        if died:
            self._notify()
            resuming.report_settings(context)
        return ops

    def _plan(self) -> Plan:
        plan = resuming.plan_for(self.context, noted=True)
        resuming.accept(plan, self.context.session_id)
        values = ((name, cell) for name, (cell, _) in self.context.state.values.items())
        attachments.check(self.context.session_id, values, reuse=self.settings.changed == "reuse")
        return plan

    def _set_up(self, ops: list[Op]) -> None:
        """Make a run over the context's session as it is now, and its first transition."""
        context, session = self.context, self.context.session
        announcer, inbox = Announcer(session, self.settings.observers), Inbox()
        host = self._host(announcer, inbox)
        bodies = Bodies(self.graph, session, self.settings, host, self._bindings, lapsed=self._lapsed)
        invoker = Invoker(bodies, loop=self._loop)
        cutter = Cutter(
            self.graph, session, self.settings, self.home, announcer.emit,
            on_saved=context.note_checkpoint, begun=invoker.begun,
        )  # fmt: skip
        self._run = Run(invoker, cutter, announcer, inbox)
        undriven = context.driven_by(cutter)
        if self.stop.signal is not None:
            inbox.stop()
        if self.settings.rng and (kept := session.state.take_random()) is not None:
            restore_random(kept)
        self._begin(cutter, ops, undriven)

    def _host(self, announcer: Announcer, inbox: Inbox) -> RunHost:
        session = self.context.session
        return RunHost(
            self.graph, session, self.home, announcer, inbox, context=self.context,
            execution=execution_of(session.id, self.context.state.run),
            keeps=self.settings.durability != "none", random=self.settings.rng,
        )  # fmt: skip

    def _begin(self, cutter: Cutter, ops: list[Op], undriven: list[tuple[int, float, list[Op]]]) -> None:
        """Commit the first transition, and save the checkpoint that has to precede the first task."""
        context, session = self.context, self.context.session
        cause = self._first_cause(cutter)
        if cause:
            session.commit(ops)
            ops, undriven = [], []  # a checkpoint has them
            if cause == "journal":
                self._emit("session_started", **context.facts(), line=self._line, recorded=True)
            cutter.save(cause, None, None)
        context.is_under_way()
        cutter.start(undriven)
        if ops:
            session.commit(ops)
        if cause != "journal":
            self._emit("session_started", **context.facts(), line=self._line)
        if (asked := context.taken_request()) is not None:
            cutter.now(asked)

    def _first_cause(self, cutter: Cutter) -> str:
        """Return why a checkpoint is taken before the first task; "" if none is."""
        context, home = self.context, self.home
        found = context.found if context.basis.named else None
        # not if the session stands at that cut, and looks for its cuts where it is
        if found is not None and not (home.finds(found.path) and home.lineage.ends_at(found, home.keyring)):
            home.lineage.adopt(found, home.open())
            return "rewind"  # the first of this epoch: what came later is superseded by it
        if context.basis.again:
            return "again"  # else after a crash the former run would be the newest
        if context.basis.damage is not None:
            return "until-damage"  # what is damaged is older than this, and read no more
        recorded = cutter.recorder.records
        return "journal" if recorded and context.found is None else ""  # what its records follow

    # --- going back --------------------------------------------------------------------

    def _go_back(self, back: GoBack) -> None:
        """Reset the whole session to its cut: a failed attempt left a live value changed."""
        task = back.claim.spec.task_id
        self._lapsed.count(back.claim, raised=back.outcome.retry)
        context, limit = self.context, self.context.max_steps
        found = resuming.go_back(context, back.names[0], task, back.outcome.exception)
        context.state.limit_to(limit)
        self.home.program.run_with(self.settings)  # the cut may be of a run with others
        while self.stop.signal is None and (left := back.outcome.due - context.session.clock()) > 0:
            sleep(min(left, 0.1))
        self._emit("session_went_back", task, step=context.steps, path=found.path)
        log.warning(
            "task %s failed with %s changed; the session goes on from step %d",
            task,
            back.names[0],
            context.steps,
            extra={"session": context.session_id, "task": task},
        )
        self.graph.compile(self.graph.starts)
        with context.session.still():  # see _open
            self._set_up(self._resume(context.state.epoch, died=False))

    # --- after -------------------------------------------------------------------------

    def _end(self) -> Any:
        """Take the last cut, and return the result or raise the error of the session."""
        state, failed = self.context.state, self.context.status == "failed"
        if failed and self.settings.on_failure == "rollback":
            self.home.delete()
        elif state.status != "completed" or self.context.named or self.home.lineage.sequence > 0:
            # it may be asked again
            self._last_cut("failure" if failed else "end")
        unsaved = self.context.cutter.unsaved if self.context.cutter is not None else ""
        resume = self._command() if self._can_go_on() else ""
        self._emit("session_ended", status=state.status, reason=state.reason, unsaved=unsaved, resume=resume)
        return self._result(state.status)

    def _leave(self) -> NoReturn:
        """Stop by a signal: cut if nothing is on loan, and say how to continue from where."""
        self._last_cut("signal")
        session, last = self.context.session_id, _left_by(self.home)
        ended = self.context.status == "completed"
        saved = f"at step {last.steps} ({last.path})" if last is not None else "and was not saved"
        if self.context.cutter is not None and self.context.cutter.recorder.has_all:
            saved = f"at step {self.context.steps}"
        if ended:
            message = f"session {session} is completed, {saved}"
        elif last is None:
            message = f"session {session} stopped; nothing of it was saved"
        else:
            message = f"session {session} stopped; it goes on {saved} with: {self._command()}"
        self._interrupted(message, ended=ended)

    def _can_go_on(self) -> bool:
        return _left_by(self.home) is not None and self.settings.on_failure != "rollback"

    def _last_cut(self, cause: str) -> None:
        if self.settings.durability == "none":
            return
        if self.context.session.broken is not None:  # a signal's exception came in the middle of a commit
            log.warning("%s", self.context.session.broken.message, extra={"session": self.context.session_id})
        elif torn := self.context.session.torn:
            log.warning(
                "%s may have been changed by the attempt that failed: the last checkpoint stands",
                ", ".join(torn),
                extra={"session": self.context.session_id},
            )
        else:
            assert self.context.cutter is not None
            self.context.cutter.final(cause)


def _left_by(home: Home) -> CheckpointMetadata | None:
    """Return the checkpoint that a resume finds in another process."""
    return None if home.backend == "memory" else home.resumable


def doubts(state: SessionState) -> dict[int, str]:
    """Return the specs that wait for an answer, and their tasks."""
    specs = [state.specs[key] for key in state.dead]
    return {spec.key: spec.task_id for spec in specs if spec.execution_strategy == "doubt"}


def paused(session: str, reason: str) -> errors.SessionError:
    return errors.SessionError(
        f"Session {session} is paused: {reason}",
        hint="The next one who executes it goes on.",
        session=session,
    )
