"""`graflow-ckpt failed`: tasks that have failed on a fleet, and how to have them run again."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner

COLUMNS = ("session", "task", "error", "attempts", "ended", "then", "message")


@options.group("failed")
def command() -> None:
    """List tasks that have failed on a fleet, and have them run again."""


@command.command("list", short_help="List tasks that have failed, by session.")
@click.option("--session", metavar="ID", shell_complete=options.complete_remote, help="Only of this one.")
@click.option("--task", metavar="NAME", help="Only this one.")
@click.option("--traceback", "tracebacks", is_flag=True, help="With the tracebacks.")
@click.option("--limit", type=options.COUNT, metavar="N", default=1000, show_default=True)
@options.of_fleet
def list_(manner: Manner, /, session: str | None, task: str | None, tracebacks: bool, limit: int) -> None:
    """List tasks that have failed, by session, the newest session first.

    THEN says what can be done: `requeue` for what was set aside and can run again, `gone` where the session
    went on without it. ENDED is how long ago its session has ended.

    Examples:
      graflow-ckpt failed list   of all sessions that are there
      graflow-ckpt failed list --session night --traceback
      graflow-ckpt failed list --json | jq -r '.[].type' | sort | uniq -c
    """
    client = lazy.client.client_of(manner)
    found, more = lazy.control.failed_at(client, session, task, limit)
    documents = [row.document(tracebacks) for row in found]
    if tracebacks and found:
        manner.result(documents, lines=(line for row in found for line in row.lines()))
    else:
        none = f"Nothing has failed{f' in session {session}' if session else ''} at {client.link.address}."
        cells = [row.cells() for row in found]
        manner.listing(documents, COLUMNS, cells, right=("attempts", "ended"), none=none)
    if more:
        manner.note(f"There are more than {limit}: --limit.")


@command.command("requeue", short_help="Have what has failed in a session run again.")
@options.remote_session
@click.argument("tasks", nargs=-1, metavar="[TASK]…")
@options.of_fleet
def requeue(manner: Manner, /, session: str, tasks: tuple[str, ...]) -> None:
    """Have what has failed in a session run again, with fresh retries; the session goes on.

    Examples:
      graflow-ckpt failed requeue night   what was set aside; the session goes on
      graflow-ckpt failed requeue night load
    """
    client = lazy.client.client_of(manner)
    found = lazy.control.requeued(client, lazy.client.session_at(client, session), tasks)
    names = found["requeued"]
    said = f"session {session} goes on with {words.counted(len(names), 'task')}: {', '.join(names)}"
    manner.result(found, said)
