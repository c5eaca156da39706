"""The public types, pinned: `mypy --strict tests/typing/api.py`. It is never run.

`assert_type` fails the check if a type changes; a line under `error` has to stay an error, since an
ignore that nothing needs is one itself (warn_unused_ignores is part of --strict).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_type

from graflow_ckpt import (
    All,
    AtLeast,
    Backoff,
    BestEffort,
    BestOf,
    Budget,
    CheckpointManager,
    CheckpointMetadata,
    DeleteOnSuccess,
    Event,
    EveryN,
    EverySeconds,
    EveryTask,
    ExecutionContext,
    GraflowError,
    InMemoryTaskQueue,
    KeepEvery,
    KeepFor,
    KeepLast,
    KeepWithin,
    LastSuccessful,
    MemoryChannel,
    OfAll,
    OnRequest,
    PendingCheckpoint,
    RedisChannel,
    RedisTaskQueue,
    TaskExecutionContext,
    TaskGraph,
    TaskSpec,
    WhenIdle,
    Workflow,
    WorkflowEngine,
    connect,
    group,
    load,
    task,
    workflow,
)
from graflow_ckpt.checkpoint.retention import Retention
from graflow_ckpt.core.policy import Policy
from graflow_ckpt.engine.body.task_context import TaskChannel
from graflow_ckpt.engine.context import CycleController, Inputs
from graflow_ckpt.fleet.client import Fleet
from graflow_ckpt.fleet.handle import Handle, Progress
from graflow_ckpt.fleet.status import Failure, Status
from graflow_ckpt.frontends.expressions import Chain, DecoratedTask, Decorator, Parallel
from graflow_ckpt.sessions.views import TaskQueue
from graflow_ckpt.stores.around.encoded import Encrypted
from graflow_ckpt.stores.driver import Driver
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.keyed import KeyedStore

# --- tasks -----------------------------------------------------------------------------


@task
def bare(x: int) -> int:
    return x


@task(
    id="other",
    inject_context=True,
    max_retries=3,
    backoff=Backoff(1.0),
    jitter=0.5,
    timeout=60,
    priority=1,
    max_cycles=10,
    on_interrupted="ask",
    isolation="process",
    queue="gpu",
)
def full(context: TaskExecutionContext) -> None: ...


@task(backoff=1.5)
async def coroutine() -> None: ...


assert_type(bare, DecoratedTask)
assert_type(full, DecoratedTask)
assert_type(coroutine, DecoratedTask)
assert_type(task(id="x"), Decorator)
assert_type(bare.bind(id="y", x=1), DecoratedTask)
assert_type(bare.name, str)
assert_type(bare.id, str)


# --- expressions -----------------------------------------------------------------------

assert_type(bare >> full, Chain)
assert_type(bare >> (full | coroutine) >> bare, Chain)
assert_type(bare | full, Parallel)
assert_type(bare >> [full, coroutine], Chain)
assert_type([full, coroutine] >> bare, Chain)
assert_type((bare | full).best_effort(), Parallel)
assert_type((bare | full).at_least(1), Parallel)
assert_type((bare | full).with_policy(AtLeast(1), "name"), Parallel)
assert_type(group(bare, bare >> full, policy=BestEffort(), name="g"), Parallel)
assert_type(All(), All)


# --- workflows -------------------------------------------------------------------------


def observer(event: Event) -> None:
    assert_type(event.session, str)
    assert_type(event.facts, dict[str, Any])


def workflows(driver: Driver) -> None:
    policy = OnRequest() | EveryN(10) | EverySeconds(30) | EveryTask() | WhenIdle() | Budget(0.05)
    assert_type(policy, Policy)
    keep = KeepLast(3) & KeepFor(days=7) | KeepEvery(10) | BestOf("loss", 3, "min") | LastSuccessful()
    assert_type(keep, Retention)
    assert_type(OfAll(KeepWithin(gb=10, per="workflow")) & DeleteOnSuccess(), Retention)
    made = workflow(
        "name",
        session_id="s",
        resume="must",
        durability="journal",
        checkpoint=policy,
        on_failure="rollback",
        max_parallel=2,
        store="checkpoints",
        keep=keep,
        on_save_failure="fail",
        changed="rerun",
        rng=False,
        grace=1.0,
        observers=[observer],
    )
    assert_type(made, Workflow)
    assert_type(workflow("name", store=Encrypted(SqliteStore("runs.db"), fernet=b"")), Workflow)
    assert_type(workflow("name", store=KeyedStore(driver, "mine://here")), Workflow)
    with made as ctx:
        assert_type(ctx, Workflow)
        assert_type(ctx.graph, TaskGraph)
        assert_type(ctx.session_id, str)
        assert_type(ctx.execution_context, ExecutionContext)
        assert_type(ctx.execute("a", max_steps=3, inputs={"k": 1}), Any)
        assert_type(ctx.execute(bare), Any)
        assert_type(ctx.add(bare, bare >> full), Workflow)


def refused() -> None:
    workflow("name", resume="perhaps")  # type: ignore[arg-type]
    workflow("name", durability="disk")  # type: ignore[arg-type]
    task(isolation="fiber")  # type: ignore[call-overload]
    task(retries=3)  # type: ignore[call-overload]
    workflow("name", checkpoint=10)  # type: ignore[arg-type]


async def asynchronous(ctx: Workflow, context: ExecutionContext) -> None:
    assert_type(await ctx.aexecute("a", inputs={}), Any)
    assert_type(await WorkflowEngine().aexecute(context), Any)


# --- fleets ----------------------------------------------------------------------------


def fleets(made: Workflow) -> None:
    fleet = connect("redis://localhost")
    assert_type(fleet, Fleet)
    assert_type(connect(), Fleet)
    assert_type(fleet.sessions(), list[str])
    assert_type(fleet.session("s"), Handle)
    assert_type(fleet.submit(made, inputs={"k": 1}), Handle)
    assert_type(fleet.submit(bare, 1, key="one"), Handle)
    assert_type(made.submit("redis://localhost", "a", 3, inputs={}, existing="return", ttl=60), Handle)
    assert_type(made.submit(fleet, ledger=True, value_limit=1 << 30), Handle)
    assert_type(bare.submit(1, url=fleet, priority=1, delay=5, key="k", existing="again", ttl=60), Handle)
    assert_type(bare.submit_call((1,), {"y": 2}, url="redis://localhost"), Handle)
    assert_type(bare.submit_many([1, (2,), {"x": 3}], url="redis://localhost"), Handle)
    made.submit(existing="perhaps")  # type: ignore[arg-type]


def handles(handle: Handle) -> None:
    assert_type(handle.session, str)
    assert_type(handle.status(), Status)
    assert_type(handle.wait(timeout=1), Status)
    assert_type(handle.result(1), Any)
    assert_type(handle.results(1, strict=True), list[Any])
    assert_type(handle.failures(), dict[str, Failure])
    assert_type(handle.events(after=3), Iterator[Progress])
    assert_type(handle.value("name", default=0), Any)
    assert_type(handle.checkpoint({"k": 1}, portable=True), CheckpointMetadata)
    assert_type(handle.reason(), str)
    handle.pause("why")
    handle.resume(max_steps=3)
    handle.cancel("why", hard=True)


def views(queue: RedisTaskQueue, shared: RedisChannel, own: MemoryChannel, mine: InMemoryTaskQueue) -> None:
    assert_type(mine.get_pending_task_specs(), list[TaskSpec])
    assert_type(queue.get_pending_task_specs(), list[TaskSpec])
    assert_type(shared.get("name"), Any)
    assert_type(own.get("name"), Any)


# --- contexts --------------------------------------------------------------------------


def in_a_task(context: TaskExecutionContext) -> None:
    assert_type(context.get_channel(), TaskChannel)
    assert_type(context.get_channel().get("x", default=1, readonly=True), Any)
    assert_type(context.get_channel().keys(), list[str])
    assert_type(context.checkpoint(metadata={"epoch": 1}), PendingCheckpoint)
    assert_type(context.checkpoint().metadata, CheckpointMetadata)
    assert_type(context.checkpoint().done(), bool)
    assert_type(context.checkpoint().error, GraflowError | None)
    _path, _metadata = context.checkpoint()
    assert_type(iter(context.checkpoint()), Iterator[Any])
    context.next_iteration()
    context.next_iteration({"k": 1})
    context.next_task("b", goto=True, data=1)
    context.next_task(bare, before=["b"])
    context.terminate_workflow("enough")
    context.cancel_workflow("no more")
    context.progress(1, 10)
    epochs = context.rounds(range(3), state={"model": {"weight": 0.0}}, every=2)
    assert_type(epochs.index, int)
    for epoch in epochs:
        assert_type(epoch, int)
    for word in context.rounds(iter(["a"]), name="words"):
        assert_type(word, str)
    context.logger.info("hello %s", "you")
    assert_type(context.cancelled, bool)
    assert_type(context.attempt, int)
    assert_type(context.cycle, int)
    assert_type(context.idempotency_key, str)
    assert_type(context.session_id, str)
    assert_type(context.task_id, str)


def outside(graph: TaskGraph) -> None:
    context = ExecutionContext.create(graph, "a", session_id="s", max_steps=3)
    assert_type(context, ExecutionContext)
    assert_type(context.completed_tasks, set[str])
    assert_type(context.cycle_counts, dict[str, int])
    assert_type(context.cycle_controller, CycleController)
    assert_type(context.task_queue, TaskQueue)
    assert_type(context.task_queue.get_pending_task_specs(), list[TaskSpec])
    assert_type(context.channel, Inputs)
    assert_type(context.checkpoint(), tuple[str, CheckpointMetadata])
    assert_type(context.last_checkpoint_path, str | None)
    assert_type(context.steps, int)
    assert_type(context.max_steps, int | None)
    assert_type(context.execute(max_steps=5), Any)
    assert_type(ExecutionContext.load("x.pkl"), ExecutionContext)
    assert_type(WorkflowEngine().execute(context, "a"), Any)
    context.add_to_queue(TaskSpec("a"))
    context.request_checkpoint({"note": "now"})


def manager(context: ExecutionContext) -> None:
    created: Callable[..., tuple[str, CheckpointMetadata]] = CheckpointManager.create_checkpoint
    created(context, "x.pkl", {"epoch": 1})
    assert_type(
        CheckpointManager.resume_from_checkpoint("x.pkl"), tuple[ExecutionContext, CheckpointMetadata]
    )
    assert_type(load("x.pkl"), ExecutionContext)
    assert_type(CheckpointManager.list_checkpoints("s"), list[CheckpointMetadata])
    assert_type(CheckpointManager.get_latest("s"), str)
    assert_type(CheckpointManager.cleanup_old_checkpoints(keep_last_n=5), int)
    assert_type(CheckpointManager.verify("x.pkl"), CheckpointMetadata)
    found: Sequence[CheckpointMetadata] = CheckpointManager.list_checkpoints(path_pattern="*.pkl")
    assert_type(found[0].user_metadata, dict[str, Any])
    assert_type(found[0].steps, int)
