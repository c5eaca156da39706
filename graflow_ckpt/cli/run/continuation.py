"""Resuming: from a place in a session's history, with its program or with the code that it carries."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from graflow_ckpt.checkpoint.manager import CheckpointManager
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.cli import lazy, locate, options, words
from graflow_ckpt.cli.locate import Place, overview, standing
from graflow_ckpt.cli.run import program
from graflow_ckpt.cli.run.launch import Wishes, conducted, end_owner, is_of_files, launch
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import BadSessionId, CheckpointError, NoSession, ServerError, SessionError
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.engine.adopt import Standing, adopt, standing_at
from graflow_ckpt.engine.context import ExecutionContext, open_session
from graflow_ckpt.engine.engine import WorkflowEngine
from graflow_ckpt.engine.notices import since
from graflow_ckpt.engine.settings import Settings
from graflow_ckpt.frontends.overrides import overrides

if TYPE_CHECKING:
    from graflow_ckpt.fleet.handle import Handle


class GoneOn(SessionError):
    """The session has continued since the checkpoint that was named."""


def go_on(manner: Manner, place: Place, wishes: Wishes, *, rewind: bool, fork: str | None) -> int:
    """Resume; the exit status."""
    place = locate.in_its_folder(manner, place)
    if fork is not None:
        place = forked(place, fork)
    elif place.named:
        _check_not_gone_on(place, rewind)
        if locate.is_kept(place):
            _rewind(manner, place, wishes)
    journal, until_damage = not place.named, wishes.settings.get("until_damage", False)
    state, _ = standing(place.kept_in, place.found, journal=journal, until_damage=until_damage)
    if state.status == "completed":
        how = f"; to run it again: graflow-ckpt run … --session {place.session} --again"
        when = since(place.found.meta)
        after = words.counted(state.steps, "step")
        manner.note(f"session {place.session} was finished {when} ({after}); nothing is run{how}")
        if manner.json:
            manner.document({"event": "exit", "code": 0, "session": place.session, "status": "completed"})
        return 0
    wishes = wishes.remembering(place.found.meta["options"])
    wishes = replace(
        wishes, session=place.session, store=place.store, workflow=place.found.meta["workflow"],
        settings=wishes.settings | {"resume": "must"},
    )  # fmt: skip
    origin = locate.origin_of(place)
    if place.named and not locate.is_kept(place):
        return _with_its_code(manner, place, wishes, "it lies outside of its session's store")
    if origin.gone:
        return _with_its_code(manner, place, wishes, origin.gone)
    return launch(manner, wishes, origin.target, origin.arguments, origin.called)


# --- the program ---------------------------------------------------------------------------


def _with_its_code(manner: Manner, place: Place, wishes: Wishes, why: str) -> int:
    manner.note(f"session {place.session}: {why}; the code in the checkpoint is run")

    def execute() -> None:
        main = program.new_main()
        sys.argv = list(locate.argv_of(place) or [""])
        context = _context(place, wishes)
        main.__file__ = file = place.found.meta.get("file")
        context.home.program.says(file=file)
        overrides.executed.append(place.found.meta["workflow"])
        WorkflowEngine().execute(context)

    return conducted(manner, wishes, execute, what=place.found.path)


def _context(place: Place, wishes: Wishes) -> ExecutionContext:
    """Return code from the cut; state from it, or with the journal, from the newest one."""
    program.looked_for(place.found.meta.get("file"))
    context, metadata = CheckpointManager.resume_from_checkpoint(place.found.path)
    settings = context.settings
    if "settings" not in place.found.meta and any(place.kept_in.segments(place.session)):
        settings = replace(settings, durability="journal")  # an older checkpoint does not say so
    _, settings, store = overrides.apply(metadata.workflow, place.session, settings, place.store)
    if place.named and not locate.is_kept(place):
        context.settings = settings
    else:
        context = open_session(context.graph, place.session, settings, store)
    if wishes.max_steps is not None:
        context.state.limit_to(wishes.max_steps)
    return context


# --- named cuts ----------------------------------------------------------------------------


def _check_not_gone_on(place: Place, rewind: bool) -> None:
    later = locate.gone_on(place)
    if later and not rewind:
        path = place.found.path
        raise GoneOn(
            f"Session {place.session} has gone on since {path}: {later[0]}"
            f"{f' and {len(later) - 1} more' if len(later) > 1 else ''}.",
            hint=f"Go on with the session: {words.resume_command(place.session, place.store)}. Go back to "
            "this checkpoint and give up what came after it: --rewind. Go on from it as another session: "
            "--fork NEW-ID.",
            session=place.session,
            path=path,
            later=later,
        )


def _rewind(manner: Manner, place: Place, wishes: Wishes) -> None:
    """Write the named cut again as the first one of a new epoch, before anything runs."""
    take_over = wishes.settings.get("take_over", False)
    if take_over and is_of_files(place.kept_in):
        take_over = False
        if taken := end_owner(manner, place.kept_in, place.session, yes=wishes.yes):
            manner.note(taken)
    adopt(_standing(place), None, place.kept_in, take_over=take_over)


def forked(place: Place, new: str, values: Mapping[str, Any] | None = None) -> Place:
    """Return a new session whose first cut is this place, with other values; the old one is not touched."""
    stands = _standing(place)
    _set(stands, values or {})
    adopt(stands, new, place.kept_in)
    return locate.by_session(place.store, new)


def _set(stands: Standing, values: Mapping[str, Any]) -> None:
    known = [name for name in stands.state.values if not name.endswith(RESULT)]
    for name, value in values.items():
        if name not in known:
            near = get_close_matches(name, known, 3) or sorted(known)[:5]
            raise CheckpointError(
                f"Checkpoint {stands.found.path} has no value {name!r} that could be set.",
                hint=f"It has: {', '.join(near)}." if near else "It has no values at all.",
                path=stands.found.path,
                name=name,
            )
        apply(stands.state, [("put", name, encode(value), -1)], time.time())


def _standing(place: Place) -> Standing:
    """Return what is at the place; of a session, with its journal."""
    program.looked_for(place.found.meta.get("file"))
    stands = standing_at(place.found.path)
    if place.named:
        return stands
    settings = Settings(workflow=stands.found.meta["workflow"], durability="none")
    context = open_session(stands.graph, place.session, settings, place.store)
    context.home.close()
    assert context.found is not None
    return stands._replace(found=context.found, state=context.state)


# --- a fleet, or a store -------------------------------------------------------------------


def on_fleet(manner: Manner, what: str | None, store: str) -> Handle | None:
    """Return the session that is to continue, if it is on a fleet.

    --url, or --store on the command line     there
    a path, or nothing at all                 in the store
    an id                                     wherever it is found; in both places: which one is asked for

    A store that holds checkpoints of a fleet's session is not another place: its live session is on the
    fleet. A server that cannot be asked is an error only if the store does not have it.
    """
    typed = options.typed("store")
    if what is not None and locate.is_path(what):
        return None  # which session it is of, its file says
    if options.named(manner):
        return _named(manner, what, typed)
    if what is None or typed or not options.configured(manner):
        return None

    hits = _in_store(store, what)
    try:
        client = lazy.client.client_of(manner)
        handle = client.session(what)
        handle.status()
    except BadSessionId:
        return None
    except NoSession:
        if hits or locate.checkpoint_path(what) is not None:
            return None
        nowhere = lazy.client.unknown(client, what)
        nowhere.message += f" It is neither a checkpoint nor a session nor a workflow in {store} either."
        raise nowhere from None
    except ServerError as error:
        if not hits:
            raise
        manner.note(f"{error.message} What is in {store} is taken.")
        return None
    if hits:
        hits.append(f"session {what} at {client.link.address}")
        raise locate.Ambiguous(
            f"{what!r} may mean: {'; '.join(hits)}.",
            hint="--store takes the one of the store, --url that of the fleet.",
            hits=hits,
        )
    return handle


def _named(manner: Manner, what: str | None, typed: bool) -> Handle:
    if typed:
        raise options.store_or_fleet()
    if what is None:
        raise click.UsageError("Which session of the fleet? graflow-ckpt sessions lists them.")
    return lazy.client.handle_of(manner, what)


def _in_store(store: str, what: str) -> list[str]:
    """Return what it may mean there, without a fleet's session that is only checkpointed there."""
    rows = [row for row in overview(store) if what in (row.session, row.workflow)]
    return [
        f"session {row.session} of workflow {row.workflow} in {store}"
        for row in rows
        if row.status == "bad" or not locate.by_session(store, row.session).found.facts.get("redis")
    ]


def on_fleet_from(manner: Manner, place: Place, *, rewind: bool, fork: str | None) -> Handle:
    """Return the session of a fleet that continues where a checkpoint is involved.

    of a fleet's session    its live session continues; --rewind, --fork: from the checkpoint, if portable
    of a session in memory  with --url and --fork: a fleet continues from there, under another id

    The fleet is the one of the checkpoint's session, unless --url names another.
    """

    redis = place.found.facts.get("redis")
    path, session = place.found.path, place.session
    if redis is None and fork is None:
        raise click.UsageError("A session of a store goes to a fleet as another one: --fork NEW-ID.")
    if redis is not None and not options.named(manner):
        manner.flags["redis_url"] = redis["address"]
    if not rewind and fork is None:
        return lazy.client.handle_of(manner, session)
    client = lazy.client.client_of(manner, key=True)
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
