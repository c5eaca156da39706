"""How an execution ends: the last cut, what the caller gets, and the command that goes on."""

from __future__ import annotations

import logging
import shlex
import sys
from typing import Any, NoReturn

from graflow_ckpt.checkpoint.pruning import forget_journal
from graflow_ckpt.core.errors import Interrupted, Stalled, TaskError, WorkflowCancelled
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.run import Run
from graflow_ckpt.stores import as_typed
from graflow_ckpt.stores.places import goes_without_saying

log = logging.getLogger("graflow_ckpt.engine")


class Ending:
    """Of one execution, with the run that it came to."""

    def __init__(self, context: ExecutionContext, run: Run) -> None:
        self.context = context
        self.settings = context.settings
        self.home = context.home
        self.run = run

    def result(self) -> Any:
        """What the last task returned, or the error that the session has ended with."""
        state = self.context.state
        status = state.status
        failed = status == "failed"
        if failed and self.settings.on_failure == "rollback":
            self._roll_back()
        elif status != "completed" or self._keeps_end():
            self._last_cut("failure" if failed else "end")
        unsaved = self.context.cutter.unsaved if self.context.cutter is not None else ""
        self.run.announcer.emit("session_ended", status=status, reason=state.reason, unsaved=unsaved)
        if status == "completed":
            return self.context.result()
        if status == "stopped":
            goes_on = f"; resume with a larger one: {self._command()}" if self.home.last is not None else ""
            log.info("session %s: %s%s", state.session, state.reason, goes_on)
            return self.context.result()
        if status == "cancelled":
            raise WorkflowCancelled(state.reason, session=state.session)
        raise self.with_note(self._stalled() if status == "stalled" else self._failure())

    def leave(self) -> NoReturn:
        """Stopped by a signal: cut if nothing is on loan, and say what goes on from where."""
        self._last_cut("signal")
        session, last = self.context.session_id, self.home.last
        saved = f"at step {last.steps} ({last.path})" if last is not None else "and was not saved"
        if self.context.cutter is not None and self.context.cutter.recorded:
            saved = f"at step {self.context.steps}"
        ended = self.context.status == "completed"
        message = f"session {session} stopped; it goes on {saved} with: {self._command()}"
        if last is None:
            message = f"session {session} stopped; nothing of it was saved"
        if ended:
            message = f"session {session} is completed, {saved}"
        self.run.announcer.emit("session_ended", status="completed" if ended else "interrupted")
        sys.stderr.write(f"graflow-ckpt: {message}\n")
        raise Interrupted(message, session)

    def fail(self, error: BaseException, reason: str) -> NoReturn:
        """An error that no commit has taken down: the last cut stands."""
        self.run.announcer.emit("session_ended", status="failed", reason=reason)
        raise self.with_note(error)

    def with_note(self, error: BaseException) -> BaseException:
        """The task's own exception, with the command that goes on."""
        if self.home.last is not None and self.settings.on_failure != "rollback":
            error.add_note(f"Session {self.context.session_id} can go on: {self._command()}")
        return error

    def _stalled(self) -> Stalled:
        state = self.context.state
        return Stalled(
            f"Session {state.session} is stalled: nothing is left to run, and {state.reason}.",
            session=state.session,
            gates=sorted(state.waiting_gates()),
        )

    def _failure(self) -> BaseException:
        state = self.context.state
        return self.run.announcer.failure or TaskError(state.reason, session=state.session)

    def _keeps_end(self) -> bool:
        """A session that somebody may ask for again keeps its end."""
        return self.context.named or self.home.sequence > 0

    def _last_cut(self, cause: str) -> None:
        if self.settings.durability == "none":
            return
        if self.context.session.broken is not None:  # a signal's exception came in the middle of a commit
            log.warning("%s", self.context.session.broken.message, extra={"session": self.context.session_id})
        elif self.run.torn:
            log.warning(
                "%s may have been changed by the attempt that failed: the last checkpoint stands",
                ", ".join(self.run.torn),
                extra={"session": self.context.session_id},
            )
        else:
            assert self.context.cutter is not None
            self.context.cutter.final(cause)

    def _roll_back(self) -> None:
        """on_failure="rollback": nothing of the session is kept."""
        if self.home.lease is not None:
            for path, _ in list(self.home.store.list(self.context.session_id)):
                self.home.store.delete(path)
            self.home.close_journal()
            forget_journal(self.home.store, self.context.session_id, self.home.lease)

    def _command(self) -> str:
        folder = self.home.store.folder
        where = "" if goes_without_saying(folder) else f" --store {shlex.quote(as_typed(folder))}"
        return f"graflow-ckpt resume {self.context.session_id}{where}"
