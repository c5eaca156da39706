"""Planning: the graph of a program that is run until it would execute a workflow. No task is run.

Compared with a session's saved tasks it is a plan; `fleet/control.py` submits it to a fleet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from graflow_ckpt.checkpoint.program.plan import HINT, Plan, make_plan
from graflow_ckpt.checkpoint.program.program import CurrentTask, saved_tasks
from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import Place, ProgramOrigin, standing, status_now
from graflow_ckpt.cli.run import program
from graflow_ckpt.cli.terminal import Document
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.context import ExecutionContext
from graflow_ckpt.engine.resuming import Basis, plan_for
from graflow_ckpt.engine.settings import Changed, Durability, Settings
from graflow_ckpt.frontends.overrides import Planned, overrides


@dataclass(frozen=True, slots=True)
class DryRun:
    """A plan, and what it is about."""

    place: Place
    plan: Plan
    state: SessionState
    replayed: int
    gone: str  # why there is no program to compare with

    def head(self) -> Iterator[str]:
        journal = f" and {words.counted(self.replayed, 'journal record')}" if self.replayed else ""
        place, state = self.place, self.state
        workflow, path = place.found.meta["workflow"], place.found.path
        yield f"session {place.session} ({workflow}), {self.status} at step {state.steps}: {path}{journal}"
        if state.gap is not None:
            yield f"what followed a change of {state.gap[0]!r} was not saved, and runs again: {state.gap[1]}"
        if self.gone:
            yield f"{self.gone}: a resume runs the code in the checkpoint"
        if self.state.status == "completed":
            yield "the session is finished: a resume runs nothing"

    @property
    def status(self) -> str:
        owner = self.place.kept_in.owner(self.place.session)
        return status_now(self.state.status, alive=owner is not None)

    @property
    def refused(self) -> bool:
        """True if a resume would be refused; of a finished session nothing is run, so nothing is."""
        return self.plan.refused and self.state.status != "completed"

    def refusal(self) -> str:
        names = ", ".join(row.task for row in self.plan.offending)
        return f"a resume is refused because of: {names}. {HINT}"

    def document(self) -> Document:
        return {
            "session": self.place.session,
            "workflow": self.place.found.meta["workflow"],
            "path": self.place.found.path,
            "journal_records": self.replayed,
            "gap": self.state.gap,
            "status": self.status,
            "steps": self.state.steps,
            "program_gone": self.gone or None,
            **self.plan.as_json(),
            "refused": self.refused,
        }


def planned(place: Place, origin: ProgramOrigin, changed: Changed | None) -> DryRun:
    """Compare; opens no pickle and touches no session."""
    found = place.found
    state, replayed = standing(place.kept_in, found, journal=not place.named)
    if origin.gone:
        saved = saved_tasks(found.facts)
        same = [CurrentTask(task.name, *task.of_the_program()) for task in saved]
        return DryRun(place, make_plan(saved, same, changed), state, replayed, origin.gone)
    graph = graph_of(origin, found.meta["workflow"])
    journal = not place.named and any(place.kept_in.segments(place.session))
    durability: Durability = "journal" if journal else "checkpoint"
    settings = Settings(workflow=found.meta["workflow"], changed=changed, durability=durability)
    context = ExecutionContext(graph, place.session, settings=settings, store=place.store)
    context.stand_on(Basis(found), state)
    graph.compile(tuple(found.facts["starts"]))
    return DryRun(place, plan_for(context), state, replayed, "")


def graph_of(origin: ProgramOrigin, workflow: str) -> TaskGraph:
    """Return the graph of a program, which is run until it would execute the workflow."""
    with overrides.for_one_program(only=workflow, target=workflow):
        reached, status = reached_by(origin.target, origin.arguments, origin.called)
    if reached is not None:
        graph: TaskGraph = reached.workflow.graph
        return graph
    what = "ended before it executed" if status is not None else "did not execute"
    raise GraphError(
        f"{origin.target} {what} workflow {workflow!r}, so its tasks are not known.",
        hint="See what it needs by running it, or plan against another program: plan FILE.py --session ID.",
        workflow=workflow,
    )


def reached_by(
    target: str, arguments: Sequence[str], called: str | None = None
) -> tuple[Planned | None, int | None]:
    """Return where a program would have run a workflow, its prints led to stderr; else how it ended."""
    overrides.planning = True
    try:
        with redirect_stdout(sys.stderr), program.Sandbox() as sandbox:
            program.run(target, arguments, called)
    except Planned as reached:
        return reached, None
    finally:
        overrides.planning = False
    return None, sandbox.status
