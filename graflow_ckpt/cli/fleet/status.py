"""`graflow-ckpt status`: how far one session of a fleet is."""

from __future__ import annotations

from graflow_ckpt.cli import lazy, options
from graflow_ckpt.cli.terminal import Manner


@options.command("status")
@options.remote_session
@options.of_fleet
def command(manner: Manner, /, session: str) -> None:
    """Show how far a session of a fleet is: its counters, its queues, what has failed and why it waits.

    Examples:
      graflow-ckpt status night
      graflow-ckpt status night --json | jq .status
    """
    client = lazy.client.client_of(manner)
    found = lazy.outlook.describe(lazy.client.session_at(client, session), client)
    manner.result(found, lines=lazy.outlook.session_lines(found))
