"""Opening a session in Redis: what has to be so before a process works on it.

graph and program -> what the dead held is released -> questions -> started, started elsewhere, or reopened
"""

from __future__ import annotations

import logging

from graflow_ckpt.checkpoint.plan import Plan, make_plan
from graflow_ckpt.checkpoint.program import current_tasks, saved_tasks
from graflow_ckpt.core.errors import GraphError, InDoubt, SessionBusy, SessionError
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.bind import Binding
from graflow_ckpt.engine.bodiless import ANSWERS
from graflow_ckpt.engine.preflight import check_answers, check_graph, takes_cuts
from graflow_ckpt.engine.reaping import release_the_dead
from graflow_ckpt.engine.resuming import changes_of
from graflow_ckpt.engine.shared_context import SharedContext

log = logging.getLogger("graflow_ckpt.engine")


class Opening:
    """Of one session, for one execution."""

    def __init__(self, context: SharedContext) -> None:
        self.context = context
        self.session = context.session_id
        self.settings = context.settings

    def prepare(self, start: str | None) -> dict[str, Binding]:
        """All that can be checked before the first task."""
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

    def open(self, start: str | None) -> None:
        """Start it, start elsewhere, or go on."""
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

    # --- a program that differs --------------------------------------------------------

    def _changes(self, state: SessionState) -> list[Op]:
        """What a changed program has to run again; GraphChanged where results would not be its own."""
        plan = self._plan(state)
        if plan is None:
            return []
        plan.raise_if_refused(self.session)
        for row in plan.rows:
            if row.note:
                extra = {"session": self.session, "task": row.task}
                log.info("%s: %s", row.task, row.note, extra=extra)
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
        """The tasks as the session knows them against those of the program; None if they are the same."""
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

    # --- what is in doubt --------------------------------------------------------------

    def _answers(self, state: SessionState) -> list[Op]:
        """What was set aside because somebody has to say what becomes of it; InDoubt if nobody has."""
        answers, waiting = dict(self.settings.in_doubt), doubts(state)
        asked = [name for name in waiting.values() if name not in answers]
        if asked:
            raise in_doubt(self.session, asked)
        return [("answer", key, ANSWERS.get(answers[name], "failed")) for key, name in waiting.items()]


def doubts(state: SessionState) -> dict[int, str]:
    """The specs that wait for an answer, and their tasks."""
    specs = [state.specs[key] for key in state.dead]
    return {spec.key: spec.task_id for spec in specs if spec.execution_strategy == "doubt"}


def paused(session: str, reason: str) -> SessionError:
    return SessionError(
        f"Session {session} is paused: {reason}",
        hint="The next one who executes it goes on.",
        session=session,
    )


def in_doubt(session: str, asked: list[str]) -> InDoubt:
    return InDoubt(
        f"Session {session}: running when the process died: {', '.join(asked)}.",
        hint="Answer with --in-doubt TASK=rerun, TASK=skip or TASK=fail.",
        session=session,
        tasks=asked,
    )
