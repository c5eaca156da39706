"""`graflow-ckpt cancel`: a session of a fleet ends, for good."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import common, complete_remote, manner_of, of_fleet

EXAMPLES = """\b
Examples:
  graflow-ckpt cancel night          tasks that run are told, and may finish
  graflow-ckpt cancel night --hard   what they do counts no more
"""


@click.command("cancel", epilog=EXAMPLES, short_help="End a session of a fleet for good.")
@click.argument("session", shell_complete=complete_remote)
@click.option("--hard", is_flag=True, help="Do not wait for tasks that run: end their code.")
@click.option("--reason", default="cancelled by hand", help="What others are told.")
@of_fleet
@common
def command(ctx: click.Context, /, session: str, hard: bool, reason: str) -> int:
    """End a session of a fleet for good. What was committed stays readable; nothing goes on with it."""
    manner = manner_of(ctx)
    handle = lazy.client.handle_of(ctx, session)
    status = lazy.control.cancelled(handle, reason, hard=hard)
    if manner.json:
        manner.document(lazy.client.document(status, handle.address))
    else:
        told = words.counted(status.running, "task")
        runs = f"; {told} still running, and told (--hard ends them)" if status.running else ""
        manner.note(f"session {session} is {status.status} after {words.counted(status.steps, 'step')}{runs}")
    return 0
