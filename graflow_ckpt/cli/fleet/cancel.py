"""`graflow-ckpt cancel`: a session of a fleet ends, for good."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner


@options.command("cancel")
@options.remote_session
@click.option("--hard", is_flag=True, help="Do not wait for tasks that run: end their code.")
@click.option("--reason", default="cancelled by hand", help="What others are told.")
@options.of_fleet
def command(manner: Manner, /, session: str, hard: bool, reason: str) -> None:
    """End a session of a fleet for good. What was committed stays readable; nothing goes on with it.

    Examples:
      graflow-ckpt cancel night          tasks that run are told, and may finish
      graflow-ckpt cancel night --hard   what they do counts no more
    """
    handle = lazy.client.handle_of(manner, session)
    status = lazy.control.cancelled(handle, reason, hard=hard)
    told = words.counted(status.running, "task")
    runs = f"; {told} still running, and told (--hard ends them)" if status.running else ""
    manner.result(
        lazy.client.document(status, handle.address),
        f"session {session} is {status.status} after {words.counted(status.steps, 'step')}{runs}",
    )
