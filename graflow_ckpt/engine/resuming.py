"""Resuming: from the newest good cut and its journal to a state that can continue, and its program.

1 newest meta whose seal and digests hold     4 values
2 control facts                               5 journal records of the same line
3 the plan, before any pickle                 6 attempts in doubt
                                              7 the new epoch, before the first task
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.care.inventory import cut_of
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.program import program
from graflow_ckpt.checkpoint.program.plan import Plan, make_plan
from graflow_ckpt.checkpoint.program.program import CurrentTask, Program, saved_tasks, unpack_task
from graflow_ckpt.checkpoint.snapshot import restore, rounds_of
from graflow_ckpt.core import errors
from graflow_ckpt.core.events import Kind
from graflow_ckpt.core.facts import JUMP, Op
from graflow_ckpt.core.graph import Route, TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import Gate, SessionState
from graflow_ckpt.engine.announcer import Announcer
from graflow_ckpt.engine.notices import since, some
from graflow_ckpt.engine.run import CRASH_BUDGET
from graflow_ckpt.engine.settings import Settings, tell_slow

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.engine")


@dataclass(frozen=True, slots=True)
class Basis:
    """The state that a session continues from; a new one from nothing."""

    found: Found | None = None
    payload: dict[str, Any] | None = None  # what is in its pickle
    replayed: int = 0  # journal records after it
    damage: errors.JournalDamaged | None = None  # where the journal that was replayed ends too early
    named: bool = False  # by a user: what came after it does not count, or is where the session is live
    there: bool = False  # the session was there before, without a checkpoint: in Redis
    again: bool = False  # the session was finished, and begins its next run

    @property
    def resumed(self) -> bool:
        """True if the session is not new."""
        return self.found is not None or self.there


def open_newest(context: ExecutionContext) -> None:
    """Own a session, and continue where it was left."""
    settings, session_id = context.settings, context.session_id
    context.home.open(take_over=settings.take_over)
    try:
        found = _newest(context)
        if found is None and settings.resume == "must":
            raise errors.NoSession(
                f"Session {session_id} has no checkpoint.",
                hint="Start it first, or look at: graflow-ckpt sessions.",
                session=session_id,
            )
        if found is not None and settings.resume == "never":
            raise errors.SessionExists(
                f"Session {session_id} exists already ({found.path}) and resume='never'.",
                hint="Use another session id, or resume='auto'.",
                session=session_id,
            )
        if found is not None and context.status == "completed" and settings.on_finished != "return":
            _finished(context, found)
    except BaseException:
        context.home.close()
        raise


def catch_up(context: ExecutionContext) -> None:
    """Own a session again that this context has left; load it if what is known of it here is old or torn."""
    home, session = context.home, context.session
    torn = session.on_loan() if session.broken is None else []  # a run that was interrupted leaves loans
    if home.was_left:
        home.open(take_over=context.settings.take_over)
    if not (torn or home.is_behind):
        return
    if count := len(context.undriven):
        raise errors.SessionError(
            f"Session {context.session_id} continues from its newest checkpoint, which has nothing of the "
            f"{count} change{'s' * (count > 1)} made here since its last run.",
            hint="Open the session again, and change it there.",
            session=context.session_id,
        )
    if torn:
        tasks = (session.state.specs[key].task_id for key in session.state.claimed)
        go_back(context, torn[0], ", ".join(tasks))
    else:
        _newest(context)


def _finished(context: ExecutionContext, found: Found) -> None:
    """Refuse to execute a finished session, or begin its next run; the former one stays as history."""
    if not is_finished(context.state):
        return
    if context.settings.on_finished == "error":
        raise errors.SessionFinished(
            f"Session {context.session_id} was finished {since(found.meta)} and on_finished='error'.",
            hint="Use another session id, or on_finished='again'.",
            session=context.session_id,
        )
    check_workflow(context, context.state, found.meta.get("workflow"))
    context.home.program.says(inputs={})
    context.stand_on(Basis(again=True), next_run(context.state, context.home.store))


def next_run(former: SessionState, store: CheckpointStore, max_steps: int | None = None) -> SessionState:
    """Return the next run of a finished session, with a number that none of its runs has had."""
    cuts = (cut_of("", raw) for _, raw in store.list(former.session))
    last = max((cut.run for cut in cuts if cut is not None), default=1)
    state = SessionState(former.session, (), max_steps)
    state.run, state.epoch = max(last, former.run) + 1, former.epoch
    return state


def check_workflow(context: ExecutionContext, state: SessionState, known: str | None) -> None:
    """Refuse to continue a session of another workflow: one of another name, or without a task in common."""
    own = context.settings.workflow
    tasks = state.completed.keys() - state.tasks.keys()
    common = tasks & context.graph.nodes.keys()
    if common or not tasks:
        nameless = {"", None, "workflow"}  # ExecutionContext.create gives everything this name
        if known == own or nameless & {known, own} or context.settings.changed == "reuse":
            return
        why = f"belongs to workflow {known!r}, and this one is {own!r}"
        hint = "Use another session id. If the workflow was renamed: --changed reuse."
    else:
        why = (
            f"has completed {some(tasks)} of workflow {known or 'unknown'!r}; workflow {own!r} has "
            f"{some(context.graph.task_names())}"
        )
        hint = "Use another session id for another workflow."
    raise errors.OtherWorkflow(
        f"Session {context.session_id} {why}.", hint=hint,
        session=context.session_id, workflow=own, other=known,
    )  # fmt: skip


def _newest(context: ExecutionContext) -> Found | None:
    """Load the newest good cut, and report what that took to the observers, or why there is none."""
    home, settings, began = context.home, context.settings, monotonic()

    def emit(kind: Kind, **facts: Any) -> None:
        Announcer(context.session, settings.observers).emit(kind, **facts, backend=home.backend)

    try:
        found = home.newest(partial(load, context))
    except (errors.GraflowError, OSError) as error:
        emit("restore_failed", path="", error=str(error), error_type=type(error).__name__)
        raise
    seconds = monotonic() - began
    for path, why in home.passed:
        emit("restore_failed", path=path, error=str(why), error_type=type(why).__name__)
    if (damage := context.basis.damage) is not None:
        emit("journal_damaged", error=str(damage), error_type=type(damage).__name__)
    if found is not None:
        emit("checkpoint_restored", path=found.path, seconds=seconds, bytes=found.metadata.size)
        tell_slow("LOAD", seconds, found.path, context.session_id, settings.slow_save)
    return found


def load(context: ExecutionContext, found: Found) -> None:
    """Load the values and the journal of a verified cut into the context."""
    home = context.home
    if place := found.facts.get("redis"):
        raise errors.SessionError(
            f"Session {context.session_id} is in Redis, at {place['address']}; its newest checkpoint: "
            f"{found.path}.",
            hint="ExecutionContext.resume(path) goes on with it; from a portable one, in this process.",
            session=context.session_id,
            path=found.path,
        )
    payload = archive.open_values(home.store, found)
    found = archive.unredacted(found, payload)
    state = restore(found.facts, payload)
    replayed, damage = _replay(context, state, found)
    home.continue_from(found)  # not before: what is known here is old until all of it is read
    context.stand_on(Basis(found, payload, replayed, damage), state)


def go_back(context: ExecutionContext, name: str, task: str, error: BaseException | None = None) -> Found:
    """Replace the session, of which a value is torn, by its newest cut; ValueTorn if there is none."""
    why = errors.SessionError("the session went back to an earlier cut", session=context.session_id)
    context.session.close(why)
    found = context.home.newest(partial(load, context)) if context.home.lease is not None else None
    if found is None:
        raise errors.ValueTorn(
            f"{f'Task {task!r}' if task else 'A task'} failed or was interrupted after it may have changed "
            f"{name!r} in place, and there is no checkpoint to go back to.",
            hint="Give the session an id: what rounds keep is saved then."
            if "__rounds__" in name
            else "Cut before it (context.checkpoint(), a policy), or get the value with readonly=True.",
            task=task,
            name=name,
        ) from error
    return found


def _replay(
    context: ExecutionContext, state: SessionState, found: Found
) -> tuple[int, errors.JournalDamaged | None]:
    """Apply the journal after the cut, up to a damaged record if the settings say so: how many, and that."""
    home = context.home
    damaged: list[errors.JournalDamaged] = []

    def note(error: errors.JournalDamaged) -> None:
        damaged.append(error)
        log.warning(
            "%s The session continues from step %d: what was committed after it is lost and runs again.",
            error.message,
            state.steps,
            extra={"session": context.session_id, "step": state.steps},
        )

    at_damage = note if context.settings.until_damage else None
    count = history.replay(home.store, home.keyring, state, found, context.session_id, at_damage=at_damage)
    return count, damaged[0] if damaged else None


def is_finished(state: SessionState) -> bool:
    """Return whether nothing is left to do in a session that has ended well."""
    return state.status == "completed" and not (state.ready or state.delayed)


def stalled(state: SessionState) -> errors.Stalled:
    """Return the error of a session in which nothing is left to run, and joins wait."""
    return errors.Stalled(
        f"Session {state.session} is stalled: nothing is left to run, and {state.reason}.",
        session=state.session,
        gates=sorted(state.waiting_gates()),
    )


def plan_for(context: ExecutionContext, *, noted: bool = False) -> Plan:
    """Return the comparison of the saved tasks with those of the program; opens no pickle.

    `noted`: if nothing has changed, only with the rows that have a note.
    """
    if context.found is None:  # all that it has done, it has done with these tasks
        return make_plan((), ())
    facts, state = context.found.facts, context.state  # with the journal's records, where there are any
    if context.settings.recorded:  # it has a record of every claim
        running: Collection[int] = state.claimed
    else:
        running = {spec["key"] for spec in facts["pending_tasks"] if spec["status"] == "running"}
    facts = facts_of(facts, state, running)
    graph, changed, known = context.graph, context.settings.changed, context.home.program
    if noted and known.is_unchanged(graph, facts["graph"]):
        saved = saved_tasks(facts, noted=True)
        same = [CurrentTask(t.name, *t.of_the_program()) for t in saved if t.name in graph.nodes]
        return make_plan(saved, same, changed)
    return make_plan(saved_tasks(facts), known.tasks_of(graph), changed)


def facts_of(facts: Document, state: SessionState, running: Collection[int]) -> Document:
    """Return control facts as of this state, as far as a plan needs them; `running`: the keys of specs."""
    where = dict.fromkeys(running, "running") | dict.fromkeys(state.dead, "failed")
    return {
        **facts, "completed_tasks": list(state.completed), "skipped": dict(state.skipped),
        "made": list(state.tasks), "passed": list(state.passed), "gates": list(state.gates),
        "pending_tasks": [
            {"task_id": s.task_id, "status": where.get(s.key, "pending"), **rounds_of(state, s.key)}
            for s in state.pending()
        ],
    }  # fmt: skip


def accept(plan: Plan, session: str) -> None:
    """Refuse a plan that would lose results; log what it has to say of tasks."""
    plan.raise_if_refused(session)
    for row in plan.rows:
        if row.note:
            log.info("%s: %s", row.task, row.note, extra={"session": session, "task": row.task})


def report_settings(context: ExecutionContext) -> None:
    """Log how the settings differ from those of the checkpoint, and which of those no checkpoint keeps."""
    session = context.session_id
    stored = context.found.meta.get("settings") if context.found is not None else None
    missing = set((stored or {}).get("lost", ())) - set(context.settings.document().get("lost", ()))
    for how, found in (
        ("with other settings", "; ".join(context.settings.differences(stored))),
        ("without what no checkpoint keeps", ", ".join(sorted(missing))),
    ):
        if found:
            log.warning("session %s continues %s: %s", session, how, found, extra={"session": session})


def remake_tasks(context: ExecutionContext) -> None:
    """Add tasks that were made at run time to the compiled graph again."""
    for record in context.state.tasks.values():
        task, spawner, before = unpack_task(record, context.payload["python"] if context.found else "")
        context.graph.extend(spawner, task, before)


def reopen(context: ExecutionContext, plan: Plan, epoch: int, *, died: bool) -> list[Op]:
    """Return the transition with which a new owner continues, or, if none has died, the same one."""
    going_on, failing = _in_doubt(context, plan.rerun | plan.recalled | plan.dropped, died)
    again: Op = ("reopen", epoch, context.state.max_steps)
    return [*changes_of(context.graph, plan, context.state), *going_on, again, *failing]


def changes_of(graph: TaskGraph, plan: Plan, state: SessionState) -> list[Op]:
    """Return what a changed program has to run again, or does without."""
    ops: list[Op] = []
    anew = plan.rerun | plan.recalled
    if anew or plan.dropped:
        ops.append(("again", *sorted(anew | plan.dropped)))
    late: dict[str, int] = {}
    for _, target in plan.absorbed:
        late[target] = late.get(target, 0) + 1
    for target, count in late.items():
        graph.gate(target)
        ops.append(("absorb", target, count))
    ops += [graph.edge(source, target) for source, target in plan.arrivals]
    ops += [
        graph.routes[n].enqueue() for n in sorted(anew) if n in graph.routes and not graph.routes[n].preds
    ]
    queued = {spec.task_id for spec in state.specs.values()}
    waiting = {name: gate for name, gate in state.waiting_gates().items() if name not in queued}
    judged = [_judged(graph.routes[name], waiting[name]) for name in sorted(plan.judged & waiting.keys())]
    return [*ops, *chain.from_iterable(judged)]


def _judged(group: Route, gate: Gate) -> list[Op]:
    """Return the ops with which a group waits under its present policy: what has arrived counts."""
    need = group.need
    if need > 0:  # less of a gate that waits for members that run again: the others are through
        need = max(1, need - max(0, group.indegree - gate.size))
    ops: list[Op] = [("again", group.name), ("expect", group.name, 0, gate.size, need)]
    ops += [("toward", group.name, to, gate.size, need) for to in gate.toward.split(JUMP) if to]
    return ops + [group.arrive(1)] * gate.ok + [group.arrive(0)] * (gate.arrived - gate.ok)


def _in_doubt(context: ExecutionContext, rerun: frozenset[str], died: bool) -> tuple[list[Op], list[Op]]:
    """Return what the former owner claimed and did not commit: by each task's on_interrupted."""
    state, graph = context.state, context.graph
    answers = dict(context.settings.in_doubt)
    ops: list[Op] = []
    failing: list[Op] = []
    asked: list[str] = []
    for key in sorted(state.claimed, key=state.claimed.__getitem__, reverse=True):
        spec, number = state.specs[key], state.claimed[key]
        if spec.task_id in rerun:
            continue
        counts = died and context.settings.recorded
        crashes = spec.crashes if not died else spec.crashes + 1 if counts else 0
        choice = graph.routes[spec.task_id].options.on_interrupted if counts else "rerun"
        if choice == "ask":
            choice_given = answers.get(spec.task_id)
            if choice_given is None:
                asked.append(spec.task_id)
                continue
            choice = "rerun" if choice_given == "rerun" else "skip" if choice_given == "skip" else "fail"
        if choice == "skip":
            node = graph.routes[spec.task_id]
            ops += [("end", key, number, "skipped"), *node.done]
        elif choice == "fail" or (died and crashes >= CRASH_BUDGET):
            why = f"WorkerDied: {spec.task_id} was running when its process died ({crashes} times)"
            failing += [("end", key, number, "failed", why), ("status", "failing", why)]
        else:
            ops.append(("release", key, crashes))
    if asked:
        raise in_doubt(context.session_id, asked)
    return ops, failing


def in_doubt(session: str, asked: list[str]) -> errors.InDoubt:
    return errors.InDoubt(
        f"Session {session}: running when the process died: {', '.join(asked)}.",
        hint="Answer with --in-doubt TASK=rerun, TASK=skip or TASK=fail.",
        session=session,
        tasks=asked,
    )


# --- the program: what checkpoints say of it in addition to where the session is --------------------


def program_file() -> str | None:
    """Return the file that runs as `__main__`, so that `resume SESSION` finds the code."""
    found = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(found) if found else None


@dataclass(frozen=True, slots=True)
class Written:
    """The program of a session, as each checkpoint describes it in addition to its graph and code."""

    workflow: str = ""
    program: str = ""  # the file that defines the workflow
    inputs: Mapping[str, str] = field(default_factory=dict)  # their digests
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Document | None = None
    file: str | None = field(default_factory=program_file)
    cwd: str | None = field(default_factory=os.getcwd)
    argv: tuple[str, ...] | None = None  # None: those of this process

    def following(self, meta: Document) -> Written:
        """Return the same program, with the session's facts of a checkpoint."""
        return replace(
            self, inputs=dict(meta.get("inputs", {})), workflow=meta.get("workflow", ""),
            settings=meta.get("settings"), program=self.program or meta.get("program", ""),
        )  # fmt: skip

    def adopting(self, meta: Document) -> Written:
        """Return the program of a checkpoint, whichever process writes the next one."""
        return replace(
            self.following(meta), file=meta.get("file"), options=dict(meta["options"]),
            cwd=meta.get("cwd") or self.cwd, argv=tuple(meta.get("argv") or ("",)),
        )  # fmt: skip

    def with_code(self, facts: Document, code: bytes) -> Program:
        return Program(
            facts, code, self.file, tuple(sys.argv) if self.argv is None else self.argv, self.workflow,
            {**self.inputs}, {**self.options}, self.cwd, self.program, self.settings,
        )  # fmt: skip


class Description:
    """The program of a session, as its checkpoints have it; described once, before the first task."""

    def __init__(self, written: Written, made: Program | None = None) -> None:
        self.written = written
        self._made = made
        self._tasks: list[CurrentTask] | None = None
        self._summary: str | None = None
        self._facts: Document | None = None

    def writes(self, written: Written) -> None:
        """Have the next checkpoints say this of the program."""
        self.written = written

    def says(self, **facts: Any) -> None:
        """Replace some of what the next checkpoints say."""
        self.written = replace(self.written, **facts)

    def run_with(self, settings: Settings) -> None:
        """Say what a run is begun with."""
        options, stored = dict(settings.options), settings.document()
        self.says(workflow=settings.workflow, options=options, settings=stored)

    @property
    def known(self) -> Program:
        """The program that `of` has returned or was given."""
        assert self._made is not None
        return self._made

    def tasks_of(self, graph: TaskGraph) -> list[CurrentTask]:
        """Return the program's tasks as they were before the first ran: fingerprints are taken once."""
        if self._tasks is None:
            self._tasks = program.current_tasks(graph)
        return self._tasks

    def is_unchanged(self, graph: TaskGraph, described: Document) -> bool:
        """Return True if the program is the one that a checkpoint describes; its description is then kept."""
        if self._summary is None:
            self._summary = program.summary_of(graph)
        if self._summary == described.get("summary"):
            self._facts = described
        return self._facts is described

    def of(self, graph: TaskGraph) -> Program:
        """Return the program; tasks made at run time are kept with the state."""
        if self._made is None:
            if self._facts is None:
                self._facts = program.describe(graph, self.tasks_of(graph))
                self._facts["summary"] = self._summary or program.summary_of(graph)
            self._made = self.written.with_code(self._facts, program.pack_code(graph))
        return self._made
