"""`graflow-ckpt status`: how far one session of a fleet is."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy
from graflow_ckpt.cli.options import common, complete_remote, manner_of, of_fleet

EXAMPLES = """\b
Examples:
  graflow-ckpt status night
  graflow-ckpt status night --json | jq .status
"""


@click.command("status", epilog=EXAMPLES, short_help="Show how far a session of a fleet is.")
@click.argument("session", shell_complete=complete_remote)
@of_fleet
@common
def command(ctx: click.Context, /, session: str) -> int:
    """Show how far a session of a fleet is: its counters, its queues, what has failed and why it waits."""
    manner = manner_of(ctx)
    client = lazy.client.client_of(ctx)
    found = lazy.outlook.describe(lazy.client.session_at(client, session), client)
    if manner.json:
        manner.document(found)
    else:
        for line in lazy.outlook.session_lines(found):
            manner.say(line)
    return 0
