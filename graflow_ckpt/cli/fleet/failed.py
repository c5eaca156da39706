"""`graflow-ckpt failed`: tasks that have failed on a fleet, and how to have them run again."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import as_json, common, complete_remote, manner_of, of_fleet

LIST = """\b
Examples:
  graflow-ckpt failed list   of all sessions that are there
  graflow-ckpt failed list --session night --traceback
  graflow-ckpt failed list --json | jq -r '.[].type' | sort | uniq -c
"""
REQUEUE = """\b
Examples:
  graflow-ckpt failed requeue night   what was set aside; the session goes on
  graflow-ckpt failed requeue night load
"""
COLUMNS = ("session", "task", "error", "attempts", "ended", "then", "message")


@click.group("failed", short_help="List tasks that have failed on a fleet; run them again.")
def command() -> None:
    """List tasks that have failed on a fleet, and have them run again."""


@command.command("list", epilog=LIST, short_help="List tasks that have failed, by session.")
@click.option("--session", metavar="ID", shell_complete=complete_remote, help="Only of this one.")
@click.option("--task", metavar="NAME", help="Only this one.")
@click.option("--traceback", "tracebacks", is_flag=True, help="With the tracebacks.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", default=1000, show_default=True)
@of_fleet
@as_json
def list_(ctx: click.Context, /, session: str | None, task: str | None, tracebacks: bool, limit: int) -> int:
    """List tasks that have failed, by session, the newest session first.

    THEN says what can be done: `requeue` for what was set aside and can run again, `gone` where the session
    went on without it. ENDED is how long ago its session has ended.
    """

    manner = manner_of(ctx)
    client = lazy.client.client_of(ctx)
    found, more = lazy.control.failed_at(client, session, task, limit)
    if manner.json:
        manner.document([row.document(tracebacks) for row in found])
    elif not found:
        manner.note(
            f"Nothing has failed{f' in session {session}' if session else ''} at {client.link.address}."
        )
    elif tracebacks:
        for row in found:
            for line in row.lines():
                manner.say(line)
    else:
        manner.table(COLUMNS, [row.cells() for row in found], right=("attempts", "ended"))
    if more:
        manner.note(f"There are more than {limit}: --limit.")
    return 0


@command.command("requeue", epilog=REQUEUE, short_help="Have what has failed in a session run again.")
@click.argument("session", shell_complete=complete_remote)
@click.argument("tasks", nargs=-1, metavar="[TASK]…")
@of_fleet
@common
def requeue(ctx: click.Context, /, session: str, tasks: tuple[str, ...]) -> int:
    """Have what has failed in a session run again, with fresh retries; the session goes on."""
    manner = manner_of(ctx)
    client = lazy.client.client_of(ctx)
    found = lazy.control.requeued(client, lazy.client.session_at(client, session), tasks)
    if manner.json:
        manner.document(found)
    else:
        names = ", ".join(found["requeued"])
        manner.note(
            f"session {session} goes on with {words.counted(len(found['requeued']), 'task')}: {names}"
        )
    return 0
