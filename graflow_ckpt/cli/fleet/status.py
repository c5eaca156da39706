"""`graflow-ckpt status`: how far one session of a fleet is."""

from __future__ import annotations

import click

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
    from graflow_ckpt.cli.client import client_of, session_at
    from graflow_ckpt.cli.fleet.outlook import describe, session_lines

    manner = manner_of(ctx)
    client = client_of(ctx)
    found = describe(session_at(client, session), client)
    if manner.json:
        manner.document(found)
    else:
        for line in session_lines(found):
            manner.say(line)
    return 0
