"""Rows of fleet sessions: what `sessions`, `status` and `top` show of a session that is in Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from graflow_ckpt.fleet.client import Client
from graflow_ckpt.fleet.status import Status, read_all
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import Document, Manner

FINISHED = frozenset({"completed", "cancelled"})
"""How sessions end that nothing goes on with."""

COLUMNS = (
    "session", "workflow", "status", "steps", "done", "ready", "running", "delayed", "failed", "tokens",
    "age", "reason",
)  # fmt: skip
NUMBERS = ("steps", "done", "ready", "running", "delayed", "failed", "tokens", "age")
_REASON = 60  # characters of it in a table


def rows_of(
    client: Client, *, workflow: str | None = None, unfinished: bool = False, limit: int | None = None
) -> list[Status]:
    """The newest first. One whose time is over may still be in the list, and is left out."""
    found: list[Status] = []
    for row in read_all(client.link, client.sessions()):
        if workflow in (None, row.workflow) and not (unfinished and row.status in FINISHED):
            found.append(row)
            if len(found) == limit:
                break
    return found


def document(row: Status, at: str) -> Document:
    now = time.time()
    return {
        **asdict(row),
        "queues": dict(row.queues),
        "slices": dict(row.slices),
        "pending": row.ready + row.delayed + row.running,
        "age": max(0.0, now - row.created),
        "at": at,
    }


def table(manner: Manner, rows: Sequence[Status]) -> None:
    columns = COLUMNS if any(row.reason for row in rows) else COLUMNS[:-1]
    now = time.time()
    cells = [
        (r.session, r.workflow, r.status, r.steps, r.completed, r.ready, r.running, r.delayed, r.failed,
         r.tokens, words.age(max(0.0, now - r.created)), shortened(r.reason))[: len(columns)]
        for r in rows
    ]  # fmt: skip
    manner.table(columns, cells, right=NUMBERS)


def shortened(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
