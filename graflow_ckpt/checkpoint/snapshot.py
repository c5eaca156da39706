"""A snapshot: a SessionState taken apart into control facts and values, and put together again.

Control facts are JSON and can be read without opening a pickle. Values and task data go into
the pickle; the facts refer to them by number.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from graflow_ckpt.checkpoint.model import SCHEMA, Document
from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.facts import Cell, Live, TaskSpec
from graflow_ckpt.core.state import Gate, SessionState

BACKEND = {"queue": "memory", "channel": "memory"}
_fields_of = itemgetter(*TaskSpec._fields)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of one cut, before they are bytes."""

    facts: Document
    values: dict[str, Cell]
    appended: dict[str, list[Cell]]
    data: list[Cell]  # task data, by number
    tasks: dict[str, Cell]
    rng: Cell | None

    def payload(self) -> dict[str, Any]:
        """Return what is pickled: plain cells as their bytes, live ones as the objects."""
        return {
            "plain": {n: c for n, c in self.values.items() if isinstance(c, bytes)},
            "live": {n: c.value for n, c in self.values.items() if isinstance(c, Live)},
            "appended": {n: [_tagged(c) for c in items] for n, items in self.appended.items()},
            "data": [_tagged(c) for c in self.data],
            "tasks": {n: _tagged(c) for n, c in self.tasks.items()},
            "rng": self.rng,
        }


def _tagged(cell: Cell) -> tuple[str, Any]:
    return ("plain", cell) if isinstance(cell, bytes) else ("live", cell.value)


def _untagged(tagged: tuple[str, Any]) -> Cell:
    return tagged[1] if tagged[0] == "plain" else Live(tagged[1])


def capture(state: SessionState, rng: Cell | None = None, begun: Container[int] = ()) -> Snapshot:
    """Take the state apart; what is mutable is copied, values are not."""
    data: list[Cell] = []
    facts: Document = {
        "schema_version": SCHEMA,
        "session_id": state.session,
        "start_node": state.start_node,
        "steps": state.steps,
        "completed_tasks": list(state.completed),
        "cycle_counts": {task: n - 1 for task, n in state.counts.items() if n > 1},
        "pending_tasks": [_spec_facts(state, spec, data, begun) for spec in state.pending()],
        "backend": BACKEND,
        "starts": list(state.starts),
        "max_steps": state.max_steps,
        "status": state.status,
        "reason": state.reason,
        "epoch": state.epoch,
        "transition": state.sequence,
        "counters": [state.next_key, state.next_claim, state.next_order],
        "completed_steps": list(state.completed.values()),
        "enqueued": dict(state.counts),
        "gates": {name: gate.facts() for name, gate in state.gates.items()},
        "skipped": dict(state.skipped),
        "passed": list(state.passed),
        "made": list(state.tasks),
        "errors": dict(state.errors),
    }
    if state.run > 1:
        facts["run"] = state.run
    return Snapshot(
        facts,
        {name: cell for name, (cell, _) in state.values.items()},
        {name: list(items) for name, items in state.appended.items()},
        data,
        dict(state.tasks),
        rng if rng is not None else state.rng,
    )


def _spec_facts(state: SessionState, spec: TaskSpec, data: list[Cell], begun: Container[int]) -> Document:
    """Return a spec's facts; one claimed together with the commit, and not begun, is pending to a reader."""
    where = "running" if spec.key in begun else "failed" if spec.key in state.dead else "pending"
    facts: Document = spec._asdict() | {"task_data": None, "status": where}
    if spec.task_data is not None:
        facts["task_data"] = {"ref": len(data), **preview(spec.task_data)}
        data.append(spec.task_data)
    if spec.key in state.rounds:
        facts |= rounds_of(state, spec.key) | {"round_values": list(state.rounds[spec.key][1])}
    if spec.key in state.claimed:
        facts["claim"] = state.claimed[spec.key]
    elif where == "failed":
        facts["error"] = state.dead[spec.key]
    return facts


def rounds_of(state: SessionState, key: int) -> Document:
    """Return the facts of a spec's loops; nothing if it has none."""
    return {"rounds": json.loads(state.rounds[key][0])} if key in state.rounds else {}


def preview(cell: Cell) -> Document:
    """Return type and size of a value: enough to recognise it, nothing that should not be read."""
    if isinstance(cell, Live):
        return {"type": f"{type(cell.value).__module__}.{type(cell.value).__qualname__}"}
    return {"type": "plain", "size": len(cell)}


def restore(facts: Document, payload: dict[str, Any]) -> SessionState:
    """Return the SessionState of a snapshot."""
    try:
        return _restore(facts, payload)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise CheckpointCorrupt(
            f"The checkpoint of session {facts.get('session_id')} does not hold together: {error!r}.",
            session=facts.get("session_id"),
        ) from error


def _restore(facts: Document, payload: dict[str, Any]) -> SessionState:
    state = SessionState(facts["session_id"], facts["starts"], facts["max_steps"])
    state.run = facts.get("run", 1)
    state.steps, state.status, state.reason = facts["steps"], facts["status"], facts["reason"]
    state.epoch, state.sequence = facts["epoch"], facts["transition"]
    state.next_key, state.next_claim, state.next_order = facts["counters"]
    state.completed = dict(zip(facts["completed_tasks"], facts["completed_steps"], strict=True))
    state.counts = dict(facts["enqueued"])
    state.gates = {name: Gate(*values) for name, values in facts["gates"].items()}
    state.skipped, state.errors = dict(facts["skipped"]), dict(facts["errors"])
    state.passed = dict.fromkeys(facts["passed"], 0)
    values: dict[str, Cell] = dict(payload["plain"])
    values.update((name, Live(value)) for name, value in payload["live"].items())
    state.values = {name: (cell, 0) for name, cell in values.items()}
    state.appended = {name: [_untagged(i) for i in items] for name, items in payload["appended"].items()}
    state.tasks = {name: _untagged(record) for name, record in payload["tasks"].items()}
    state.rng = payload["rng"]
    data = [_untagged(item) for item in payload["data"]]
    for order, spec in enumerate(facts["pending_tasks"]):
        _restore_spec(state, spec, data, order)
    state.next_order = max(state.next_order, len(facts["pending_tasks"]) + 1)
    state.ready.sort()
    state.delayed.sort()
    return state


def _restore_spec(state: SessionState, facts: Document, data: list[Cell], order: int) -> None:
    spec = TaskSpec._make(_fields_of(facts))
    if spec.status != "pending" or spec.task_data is not None:
        own = None if (reference := facts["task_data"]) is None else data[reference["ref"]]
        spec = spec._replace(status="pending", task_data=own)
    key = spec.key
    state.keep(spec)
    if "rounds" in facts:
        where = json.dumps(facts["rounds"], separators=(",", ":"))
        state.rounds[key] = where, tuple(facts["round_values"])
    if "claim" in facts:
        state.claimed[key] = facts["claim"]
    elif facts["status"] == "failed":
        state.dead[key] = facts.get("error", "")
    elif spec.not_before:
        state.delayed.append((spec.not_before, key))
    else:
        state.ready.append((-spec.priority, order, key))
