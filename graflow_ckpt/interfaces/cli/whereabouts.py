"""Whereabouts: whether a session that is to go on lives on a fleet or in a store.

    --url, or --store on the command line     there
    a path, or nothing at all                 in the store
    an id                                     wherever it is found; in both places: which one is asked for

A store that holds checkpoints of a fleet's session is not another place: its live session is on the fleet.
A server that cannot be asked is an error only if the store does not have it.

What a checkpoint means where a fleet is concerned:

    of a fleet's session    its live session goes on; --rewind, --fork: from the checkpoint, if portable
    of a session in memory  with --url and --fork: a fleet goes on from there, under another id

The fleet is the one of the checkpoint's session, unless --url names another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from graflow_ckpt.core.errors import BadSessionId, CheckpointError, NoSession, ServerError
from graflow_ckpt.interfaces.cli import program, words
from graflow_ckpt.interfaces.cli.finding import Ambiguous, Place, by_session, checkpoint_path
from graflow_ckpt.interfaces.cli.manner import Manner
from graflow_ckpt.interfaces.cli.options import configured, name, named
from graflow_ckpt.interfaces.cli.overview import overview

if TYPE_CHECKING:
    from graflow_ckpt.fleet.handle import Handle


_SUFFIXES = (".pkl", ".meta.json", ".state.json")


def on_fleet(ctx: click.Context, manner: Manner, what: str | None, store: str) -> Handle | None:
    """The session, if it is one of the fleet's."""
    typed = ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE
    if what is not None and (os.sep in what or what.endswith(_SUFFIXES)):
        return None  # of whose session it is, its file says
    if named(ctx):
        return _named(ctx, what, typed)
    if what is None or typed or not configured(ctx):
        return None
    from graflow_ckpt.interfaces.cli.connecting import client_of, unknown

    hits = _in_store(store, what)
    try:
        client = client_of(ctx)
        handle = client.session(what)
        handle.status()
    except BadSessionId:
        return None
    except NoSession:
        if hits or checkpoint_path(what) is not None:
            return None
        nowhere = unknown(client, what)
        nowhere.message += f" It is neither a checkpoint nor a session nor a workflow in {store} either."
        raise nowhere from None
    except ServerError as error:
        if not hits:
            raise
        manner.note(f"{error.message} What is in {store} is taken.")
        return None
    if hits:
        hits.append(f"session {what} at {client.link.address}")
        raise Ambiguous(
            f"{what!r} may mean: {'; '.join(hits)}.",
            hint="--store takes the one of the store, --url that of the fleet.",
            hits=hits,
        )
    return handle


def _named(ctx: click.Context, what: str | None, typed: bool) -> Handle:
    from graflow_ckpt.interfaces.cli.connecting import handle_of

    if typed:
        raise click.UsageError("--store is for sessions of a store, --url for those of a fleet: one of them.")
    if what is None:
        raise click.UsageError("Which session of the fleet? graflow-ckpt sessions lists them.")
    return handle_of(ctx, what)


def _in_store(store: str, what: str) -> list[str]:
    """What it may mean there; a fleet's session that is only checkpointed there is left out."""
    rows = [row for row in overview(store) if what in (row.session, row.workflow)]
    return [
        f"session {row.session} of workflow {row.workflow} in {store}"
        for row in rows
        if row.status == "bad" or not by_session(store, row.session).found.facts.get("redis")
    ]


def on_fleet_from(
    ctx: click.Context, manner: Manner, place: Place, *, rewind: bool, fork: str | None
) -> Handle:
    """The session of a fleet that goes on."""
    from graflow_ckpt.interfaces.cli.connecting import client_of, handle_of

    redis = place.found.facts.get("redis")
    path, session = place.found.path, place.session
    if redis is None and fork is None:
        raise click.UsageError("A session of a store goes to a fleet as another one: --fork NEW-ID.")
    if redis is not None and not named(ctx):
        name(ctx, redis["address"])
    if not rewind and fork is None:
        return handle_of(ctx, session)
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
