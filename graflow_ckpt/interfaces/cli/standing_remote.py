"""How a session of a fleet stands, in full: counters, queues, where it came from, what holds it up."""

from __future__ import annotations

from collections.abc import Iterator

from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.fleet.health import pools
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.fleet_rows import document
from graflow_ckpt.interfaces.cli.manner import Document

_FACTS = ("store", "host", "python", "starts")


def describe(handle: Handle, client: Client) -> Document:
    """As JSON."""
    facts = handle.facts()
    status = handle.status()
    waiting = [] if status.over else [name for name, size in status.queues if size]
    served = {name for pool in pools(client.link) for name in pool.queues} if waiting else set()
    return {
        **document(status, client.link.address),
        **{name: facts.get(name) for name in _FACTS},
        "unserved": [name for name in waiting if name not in served],
        "declined": handle.declined(),
    }


def lines(found: Document) -> Iterator[str]:
    """The same for people."""
    yield f"session {found['session']} of workflow {found['workflow']} at {found['at']}"
    yield _field("status", f"{found['status']}{': ' if found['reason'] else ''}{found['reason']}")
    limit = f" of at most {found['max_steps']}" if found["max_steps"] else ""
    yield _field("steps", f"{found['steps']}{limit}")
    total = f" of {found['tasks']}" if found["tasks"] else ""
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    yield _field("tasks", f"{found['completed']}{total} done, {found['failed']} failed{skipped}")
    yield _field("pending", f"{found['ready']} ready, {found['running']} running, {found['delayed']} delayed")
    waiting = [f"{name} {size}" for name, size in found["queues"].items() if size]
    if waiting:
        nobody = f" (no worker serves {', '.join(found['unserved'])})" if found["unserved"] else ""
        yield _field("queues", f"{', '.join(waiting)}{nobody}")
    cap = f", at most {found['cap']} tasks at once" if found["cap"] else ""
    yield _field("workers", f"{words.counted(found['tokens'], 'token')}{cap}")
    ended = found["ended"]
    took = f", ran for {words.age(ended - found['created'])}" if ended else ""
    yield _field("submitted", f"{words.age(found['age'])} ago from {found['host'] or '?'}{took}")
    yield _field("checkpoint", found["checkpoint"] or "none")
    for host, why in found["declined"].items():
        yield _field("declined", f"{host}: {why}")
    if found["failed"]:
        yield _field("errors", words.fleet_command("failed", "list", "--session", found["session"]))


def _field(name: str, value: str) -> str:
    return f"  {name:<11} {value}"
