"""`graflow-ckpt pause`: a session of a fleet starts no more tasks."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import common, complete_remote, manner_of, of_fleet

EXAMPLES = """\b
Examples:
  graflow-ckpt pause night --reason "disk is full"
  graflow-ckpt resume night                        goes on with it
"""


@click.command("pause", epilog=EXAMPLES, short_help="Have a session of a fleet hand out no more tasks.")
@click.argument("session", shell_complete=complete_remote)
@click.option("--reason", default="paused by hand", help="What others are told.")
@of_fleet
@common
def command(ctx: click.Context, /, session: str, reason: str) -> int:
    """Have a session of a fleet hand out no more tasks; those that run are finished and committed."""
    manner = manner_of(ctx)
    handle = lazy.client.handle_of(ctx, session)
    status = lazy.control.paused(handle, reason)
    if manner.json:
        manner.document(lazy.client.document(status, handle.address))
    else:
        runs = f"; {words.counted(status.running, 'task')} still running" if status.running else ""
        manner.note(
            f"session {session} is {status.status}{runs}; go on: {words.fleet_command('resume', session)}"
        )
    return 0
