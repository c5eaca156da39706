"""Resuming: from the newest good cut and its journal to a state that can go on.

    1 newest meta whose seal and digests hold     4 values
    2 control facts                               5 journal records of the same line
    3 the plan, before any pickle                 6 attempts in doubt
                                                  7 the new epoch, before the first task
"""

from __future__ import annotations

import logging

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.plan import Plan, make_plan
from graflow_ckpt.checkpoint.program import current_tasks, saved_tasks, unpack_task
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.errors import InDoubt, NoSession, SessionCancelled, SessionExists
from graflow_ckpt.core.facts import Op
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.context import Channel, ExecutionContext
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.sessions.memory import MemorySession

log = logging.getLogger("graflow_ckpt.engine")

CRASH_BUDGET = 3
"""How often a task may be running when its process dies before it counts as failed."""


def open_session(graph: TaskGraph, session_id: str | None, settings: Settings, store: str) -> ExecutionContext:
    """A new session, or the one of that id as it was left."""
    context = ExecutionContext(graph, session_id, settings=settings, store=store)
    if session_id is None:
        if settings.resume == "must":
            raise NoSession("resume='must' needs a session id.", hint='Give session_id="..." or --session.')
        return context
    context.home.open(take_over=settings.take_over)
    try:
        found = context.home.newest()
        if found is None and settings.resume == "must":
            raise NoSession(
                f"Session {session_id} has no checkpoint.",
                hint="Start it first, or look at: graflow-ckpt sessions.",
                session=session_id,
            )
        if found is not None:
            if settings.resume == "never":
                raise SessionExists(
                    f"Session {session_id} exists already ({found.path}) and resume='never'.",
                    hint="Use another session id, or resume='auto'.",
                    session=session_id,
                )
            load(context, found)
    except BaseException:
        context.home.close()
        raise
    return context


def load(context: ExecutionContext, found: Found) -> None:
    """Values and journal of a verified cut into the context."""
    home = context.home
    payload = archive.open_values(home.store, found).payload
    state = restore(found.facts, payload)
    home.continue_from(found)
    if not context.rewinds:
        context.replayed = archive.replay(home.store, home.keyring, state, found, context.session_id)
    adopt(context, found, payload, MemorySession(state))


def adopt(context: ExecutionContext, found: Found, payload: dict[str, object], session: MemorySession) -> None:
    context.found = found
    context._payload = payload
    context.session = session
    context._channel = Channel(context)


def runs_nothing(context: ExecutionContext) -> bool:
    """Whether a resumed session has ended for good."""
    status = context.status
    if status == "cancelled":
        raise SessionCancelled(
            f"Session {context.session_id} was cancelled: {context.state.reason}",
            hint="Start a new session, or resume from one of its checkpoints by path.",
            session=context.session_id,
        )
    if status == "completed":
        log.info("session %s is finished; nothing runs", context.session_id)
        return True
    return False


def plan_for(context: ExecutionContext) -> Plan:
    """The saved tasks against those of the program; opens no pickle."""
    assert context.found is not None
    facts = dict(context.found.facts)
    state = context.state  # with the journal's records, where there are any
    facts["completed_tasks"] = list(state.completed)
    facts["skipped"] = dict(state.skipped)
    facts["made"] = list(state.tasks)
    running = [{"task_id": state.specs[k].task_id, "status": "running"} for k in state.claimed]
    failed = [{"task_id": state.specs[k].task_id, "status": "failed"} for k in state.dead]
    pending = [{"task_id": s.task_id, "status": "pending"} for s in state.pending()]
    facts["pending_tasks"] = [*pending, *running, *failed]
    return make_plan(saved_tasks(facts), current_tasks(context.graph), context.settings.changed)


def remake_tasks(context: ExecutionContext) -> None:
    """Tasks that were made at run time join the compiled graph again."""
    for record in context.state.tasks.values():
        task, spawner, before = unpack_task(record)
        context.graph.extend(spawner, task, before)


def reopen(context: ExecutionContext, plan: Plan, epoch: int, max_steps: int | None) -> list[Op]:
    """The transition with which a new owner goes on."""
    state = context.state
    ops: list[Op] = []
    if plan.rerun:
        ops += _again(context, plan)
    ops += _new_edges(context, plan)
    going_on, failing = _in_doubt(context, plan.rerun)
    reopened = ("reopen", epoch, max_steps if max_steps is not None else state.max_steps)
    return [*ops, *going_on, reopened, *failing]


def _again(context: ExecutionContext, plan: Plan) -> list[Op]:
    """Tasks that run again: their heads are enqueued, joins get the arrivals that will not come again."""
    ops: list[Op] = [("again", *sorted(plan.rerun))]
    routes = context.graph.routes
    for name in plan.rerun:
        route = routes.get(name)
        if route is None:
            continue
        inside = [p for p in route.preds if _members(context.graph, p) & plan.rerun]
        outside = len(route.preds) - len(inside)
        if not inside:
            ops.append(route.enqueue())
        elif outside and route.waits:
            ops += [route.arrive(1)] * outside
    return ops


def _members(graph: TaskGraph, name: str) -> set[str]:
    node = graph.nodes[name]
    return {name} if isinstance(node, Task) else set(node.members)


def _new_edges(context: ExecutionContext, plan: Plan) -> list[Op]:
    """A new task after completed ones: they will not tell it, so it is told now."""
    ops: list[Op] = []
    for name in plan.new:
        route = context.graph.routes.get(name)
        if route is None or name not in context.graph.live:
            continue
        done = [p for p in route.preds if p in context.state.completed and p not in plan.rerun]
        if done and route.waits:
            ops += [route.arrive(1)] * len(done)
        elif done:
            ops.append(route.enqueue())
    return ops


def _in_doubt(context: ExecutionContext, rerun: frozenset[str]) -> tuple[list[Op], list[Op]]:
    """What was claimed by the owner before and not committed: by each task's on_interrupted."""
    state, graph = context.state, context.graph
    answers = dict(context.settings.in_doubt)
    ops: list[Op] = []
    failing: list[Op] = []
    asked: list[str] = []
    for key in sorted(state.claimed, key=state.claimed.__getitem__, reverse=True):
        spec, number = state.specs[key], state.claimed[key]
        if spec.task_id in rerun:
            continue
        counts = context.settings.durability == "journal"
        crashes = spec.crashes + 1 if counts else 0
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
        elif choice == "fail" or crashes >= CRASH_BUDGET:
            why = f"WorkerDied: {spec.task_id} was running when its process died ({crashes} times)"
            failing += [("end", key, number, "failed", why), ("status", "failing", why)]
        else:
            ops.append(("release", key, crashes))
    if asked:
        raise InDoubt(
            f"In session {context.session_id} these tasks were running when the process died: {', '.join(asked)}.",
            hint="Answer with --in-doubt TASK=rerun, TASK=skip or TASK=fail.",
            session=context.session_id,
            tasks=asked,
        )
    return ops, failing


