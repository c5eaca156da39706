"""A state machine of one task, A to D with a checkpoint after each step; what its sessions left behind."""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt import CheckpointManager, CheckpointMetadata, TaskExecutionContext, Workflow, task, workflow

LOG: list[str] = []
WORLD = {"down": False}


@task(inject_context=True)
def step(context: TaskExecutionContext) -> str:
    """A state machine: A, B, C, one iteration each, with a checkpoint after each."""
    channel = context.get_channel()
    state: str = channel.get("state", default="A")
    LOG.append(state)
    if state == "C" and WORLD["down"]:
        raise ConnectionError("down")
    channel.set("state", {"A": "B", "B": "C", "C": "D"}[state])
    context.checkpoint(metadata={"was": state})
    if state != "C":
        context.next_iteration()
    return state


@task
def last() -> str:
    return "last"


def machine(session_id: str | None = None) -> Workflow:
    with workflow("machine", session_id) as flow:
        flow.add(step, last)
    return flow


def files_of(path: str) -> dict[str, Path]:
    base = path.removesuffix(".pkl")
    return {part: Path(f"{base}.{part}") for part in ("pkl", "state.json", "meta.json")}


def cuts(session: str) -> list[CheckpointMetadata]:
    """The cuts that were asked for, oldest first."""
    return [m for m in reversed(CheckpointManager.list_checkpoints(session)) if m.cause == "request"]
