"""`graflow-ckpt resume`: continue a session, or from one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner

if TYPE_CHECKING:
    from graflow_ckpt.fleet.handle import Handle


OF_FLEET = ("max_steps", "in_doubt", "progress")  # what else is said is about a run in this process


@options.command("resume")
@click.argument(
    "what", required=False, metavar="[SESSION|PATH|WORKFLOW]", shell_complete=options.complete_everywhere
)
@click.option("--latest", is_flag=True, help="If there are several sessions: the newest.")
@click.option("--rewind", is_flag=True,
              help="With PATH: go back to it although the session has gone on; what came later is "
                   "superseded.")  # fmt: skip
@click.option("--fork", metavar="NEW-ID", help="With PATH or SESSION: a new session that goes on from there.")
@options.running
@options.found_store
@options.fleet
def command(
    manner: Manner, /, what: str | None, latest: bool, rewind: bool, fork: str | None, **wished: Any
) -> int:
    """Go on with a session, or from one checkpoint.

    A session's program is run again, with its arguments, from where the session is: its newest good
    checkpoint and the journal after it. If the program is gone, the code in the checkpoint is run.
    The path of a checkpoint means that checkpoint and nothing after it.

    A session of a fleet goes on there, after a pause, a failure or --max-steps. An id is looked for in the
    store and on the fleet that is set up; --store and --url say which one is meant. The path of a fleet's
    checkpoint means its live session, unless --rewind or --fork is given; that needs a portable one.

    Examples:
      graflow-ckpt resume                 the one unfinished session
      graflow-ckpt resume night           its program, with its arguments
      graflow-ckpt resume etl --latest    the newest session of workflow etl
      graflow-ckpt resume night --max-steps 500
      graflow-ckpt resume --rewind \\
          checkpoints/session_night_step_40_1794992986-4.pkl
      graflow-ckpt resume checkpoints/best.pkl --fork second-try
      graflow-ckpt resume night --url redis://host:6379/0   a session of a fleet
      graflow-ckpt resume checkpoints/best.pkl --fork fast \\
          --url redis://host:6379/0
    """
    if rewind and fork is not None:
        raise click.UsageError("--rewind goes back in the session, --fork leaves it alone: one of them.")

    handle = lazy.continuation.on_fleet(manner, what, wished["store"])
    if handle is not None:
        if rewind or fork is not None:
            take = words.fleet_command("checkpoints", "take", handle.session, "--portable")
            how = "--rewind" if rewind else "--fork"
            raise click.UsageError(f"{how} needs the path of a portable checkpoint: {take}.")
        _check_options(OF_FLEET)
        _on_fleet(manner, handle, wished)
        return 0
    place = lazy.locate.find_place(wished["store"], what, latest=latest)
    if rewind and not place.named:
        raise click.UsageError("--rewind needs the path of a checkpoint: graflow-ckpt checkpoints list.")
    if options.named(manner) or place.found.facts.get("redis"):
        _check_options((*OF_FLEET, "latest", "rewind", "fork", "store"))
        handle = lazy.continuation.on_fleet_from(manner, place, rewind=rewind, fork=fork)
        _on_fleet(manner, handle, wished)
        return 0
    del wished["store"]
    return lazy.continuation.go_on(
        manner, place, lazy.launch.Wishes.typed(**wished), rewind=rewind, fork=fork
    )


def _check_options(allowed: Sequence[str]) -> None:
    ctx = click.get_current_context()
    for parameter in ctx.command.get_params(ctx):
        name = parameter.name or ""
        is_option = isinstance(parameter, click.Option) and parameter.expose_value
        if is_option and name not in allowed and options.typed(name):
            raise click.UsageError(f"{parameter.opts[0]} is not for sessions of a fleet.")


def _on_fleet(manner: Manner, handle: Handle, wished: dict[str, Any]) -> None:
    before, status = lazy.control.gone_on(handle, wished["max_steps"], dict(wished["in_doubt"]))
    if before.status == "completed":
        said = f" is finished ({words.counted(status.steps, 'step')}); nothing runs"
    elif status.status == "stopped":  # nothing to follow: it is at its limit, still or again
        said = f": {lazy.waiting.closing(status, lazy.waiting.EXITS['stopped'], None)}"
    else:
        follow = words.fleet_command("wait", status.session)
        was = f"was {before.status} and " if before.status != status.status else ""
        said = f" {was}is {status.status}; follow it: {follow}"
    manner.result(lazy.client.document(status, handle.address), f"session {status.session}{said}")
