"""Moving: what a checkpoint means where a fleet is concerned.

    of a fleet's session    its live session goes on; --rewind, --fork: from the checkpoint, if portable
    of a session in memory  with --url and --fork: a fleet goes on from there, under another id

The fleet is the one of the checkpoint's session, unless --url names another.
"""

from __future__ import annotations

import click

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.fleet.handle import Handle
from graflow_ckpt.interfaces.cli import program, words
from graflow_ckpt.interfaces.cli.configuration import name, named
from graflow_ckpt.interfaces.cli.connecting import client_of, session_at
from graflow_ckpt.interfaces.cli.finding import Place
from graflow_ckpt.interfaces.cli.manner import Manner


def on_fleet_from(
    ctx: click.Context, manner: Manner, place: Place, *, rewind: bool, fork: str | None
) -> Handle:
    """The session of a fleet that goes on."""
    redis = place.found.facts.get("redis")
    path, session = place.found.path, place.session
    if redis is None and fork is None:
        raise click.UsageError("A session of a store goes to a fleet as another one: --fork NEW-ID.")
    if redis is not None and not named(ctx):
        name(ctx, redis["address"])
    if not rewind and fork is None:
        return session_at(client_of(ctx), session)
    client = client_of(ctx, key=True)
    program.looked_for(place.found.meta.get("file"))
    try:
        handle = client.rewind(path) if rewind else client.fork(path, fork)
    except CheckpointError as error:
        if not (redis or {}).get("portable", True):
            take = words.fleet_command("checkpoints", "take", session, "--portable")
            go_on = words.fleet_command("resume", session)
            error.hint = f"That needs a portable one: {take}. The session as it is now goes on with: {go_on}."
        raise
    what = "is back at" if rewind else "begins at"
    manner.note(f"session {handle.session} {what} step {handle.status().steps}: {path}")
    return handle
