"""`graflow-ckpt resume`: go on with a session, or from one checkpoint."""

from __future__ import annotations

from typing import Any

import click

from graflow_ckpt.interfaces.cli.options import common, complete_places, manner_of, running, store

EXAMPLES = """\b
Examples:
  graflow-ckpt resume                              the one unfinished session
  graflow-ckpt resume night                        its program is run again, with its arguments
  graflow-ckpt resume etl --latest                 the newest session of workflow etl
  graflow-ckpt resume night --max-steps 500
  graflow-ckpt resume checkpoints/session_night_step_40_1794992986-4.pkl --rewind
  graflow-ckpt resume checkpoints/best.pkl --fork second-try
"""


@click.command("resume", epilog=EXAMPLES, short_help="Go on with a session, or from one checkpoint.")
@click.argument("what", required=False, metavar="[SESSION|PATH|WORKFLOW]", shell_complete=complete_places)
@click.option("--latest", is_flag=True, help="If there are several sessions: the newest.")
@click.option(
    "--rewind",
    is_flag=True,
    help="With PATH: go back to it although the session has gone on; what came later is superseded.",
)
@click.option("--fork", metavar="NEW-ID", help="With PATH or SESSION: a new session that goes on from there.")
@running
@store
@common
@click.pass_context
def command(
    ctx: click.Context, /, what: str | None, latest: bool, rewind: bool, fork: str | None, **options: Any
) -> int:  # fmt: skip
    """Go on with a session, or from one checkpoint.

    A session's program is run again, with its arguments, from where the session is: its newest good
    checkpoint and the journal after it. If the program is gone, the code in the checkpoint is run.
    The path of a checkpoint means that checkpoint and nothing after it.
    """
    from graflow_ckpt.interfaces.cli.finding import find_place
    from graflow_ckpt.interfaces.cli.going_on import go_on
    from graflow_ckpt.interfaces.cli.launch import Wishes

    if rewind and fork is not None:
        raise click.UsageError("--rewind goes back in the session, --fork leaves it alone: one of them.")
    place = find_place(options.pop("store"), what, latest=latest)
    if rewind and not place.named:
        raise click.UsageError("--rewind needs the path of a checkpoint: graflow-ckpt checkpoints list.")
    return go_on(manner_of(ctx), place, Wishes(**options), rewind=rewind, fork=fork)
