"""`graflow-ckpt wait`: until a session of a fleet has ended."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.options import common, complete_remote, fleet, manner_of

EXAMPLES = """\b
Examples:
  graflow-ckpt wait night
  graflow-ckpt wait night --timeout 2h || graflow-ckpt failed list --session night
"""


@click.command("wait", epilog=EXAMPLES, short_help="Wait until a session of a fleet has ended.")
@click.argument("session", shell_complete=complete_remote)
@click.option(
    "--timeout", metavar="SECONDS|5m", callback=words.parse_period, help="Wait no longer than this."
)
@click.option("--progress/--no-progress", default=True, help="Show how far it is.")
@fleet
@common
def command(ctx: click.Context, /, session: str, timeout: float | None, progress: bool) -> int:
    """Wait until a session of a fleet has ended, or has paused.

    The exit status says how: 0 completed, or stopped at its limit; 1 failed, cancelled or stalled; 3
    paused, somebody has to do something; 124 it has not ended in time.
    """
    from graflow_ckpt.interfaces.cli.connecting import handle_of
    from graflow_ckpt.interfaces.cli.waiting import wait

    handle = handle_of(ctx, session)
    return wait(manner_of(ctx), handle, timeout, progress=progress)
