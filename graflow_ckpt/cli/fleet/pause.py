"""`graflow-ckpt pause`: a session of a fleet starts no more tasks."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner


@options.command("pause")
@options.remote_session
@click.option("--reason", default="paused by hand", help="What others are told.")
@options.of_fleet
def command(manner: Manner, /, session: str, reason: str) -> None:
    """Have a session of a fleet hand out no more tasks; those that run are finished and committed.

    Examples:
      graflow-ckpt pause night --reason "disk is full"
      graflow-ckpt resume night                        goes on with it
    """
    handle = lazy.client.handle_of(manner, session)
    status = lazy.control.paused(handle, reason)
    runs = f"; {words.counted(status.running, 'task')} still running" if status.running else ""
    manner.result(
        lazy.client.document(status, handle.address),
        f"session {session} is {status.status}{runs}; go on: {words.fleet_command('resume', session)}",
    )
