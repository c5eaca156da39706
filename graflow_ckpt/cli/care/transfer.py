"""`graflow-ckpt checkpoints copy`, `export`, `import` and `fork`.

From one store to another no pickle is opened. What arrives has the digests that it had, and the seal of where
it arrives. `fork` opens the verified pickle of a checkpoint: its values go into the first one of the new
session. No task is run; `resume NEW-ID` does that. `resume … --fork` does both at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import NoSession, SessionError
from graflow_ckpt.core.facts import check_session_id

if TYPE_CHECKING:
    from graflow_ckpt.core.protocols import CheckpointStore


@options.command("copy", short_help="Copy sessions or checkpoints to another store.")
@options.places
@click.option("--from", "origin", default=options.default_store, show_default="checkpoints",
              metavar="FOLDER|URL", callback=words.parse_store, help="Where they are.",
              shell_complete=options.complete_folders)  # fmt: skip
@click.option("--to", "target", required=True, metavar="FOLDER|URL", callback=words.parse_store,
              help="Where they are to go.", shell_complete=options.complete_folders)  # fmt: skip
@click.option("--workflow", metavar="NAME", help="Only sessions of this workflow.")
@options.take_over
@options.unasked_end
def copy(
    manner: Manner, /, what: tuple[str, ...], origin: str, target: str, workflow: str | None, take_over: bool,
    yes: bool,
) -> int:  # fmt: skip
    """Copy sessions with their journals, or single checkpoints; without a name all that there is.

    Nothing changes where they come from, so runs may go on there. What is there already is not copied again:
    interrupt it, and call it again; copy what is still being run once more when it has stopped. A session
    that has gone on by itself at the target is refused. What a session has gone back behind is left out.

    Examples:
      graflow-ckpt checkpoints copy --to sqlite:///runs.db   all of ./checkpoints
      graflow-ckpt checkpoints copy --from sqlite:///runs.db \\
          --to postgresql://host/runs
      graflow-ckpt checkpoints copy night --to s3://bucket/runs --json
    """
    if what and workflow is not None:
        raise click.UsageError("--workflow is for all sessions of a store; what is named is copied anyway.")
    here, there = lazy.stores.open_store(origin), lazy.stores.open_store(target)
    if here.url == there.url:
        raise click.UsageError(f"--from and --to are the same place: {there.url}.")
    return _copied(manner, here, there, what, workflow=workflow, take_over=take_over)


def _copied(
    manner: Manner, here: CheckpointStore, there: CheckpointStore, what: Sequence[str], *,
    workflow: str | None = None, take_over: bool = False,
) -> int:  # fmt: skip
    """Copy what is named, or all; the exit status."""
    _check_lasts(there)
    keys, ring = lazy.keys.Keyring.reading(shared=here.shared), lazy.keys.Keyring.for_store(there)
    luggage = lazy.journey.Luggage
    going = luggage.named(here, what) if what else luggage.all(here, workflow)
    if not (what or going.sessions or going.damaged):
        of = f" of workflow {workflow!r}" if workflow is not None else ""
        raise NoSession(f"There are no checkpoints{of} in {here.url}.", hint="--from names another place.")
    for path in going.paths:
        if here.takes(path) is None:
            raise click.UsageError(f"{path} is not in {here.url}: --from {lazy.stores.store_of(path)}.")
    there.probe()
    before, after = (lazy.prefixes.prefix_of(place.url) for place in (here, there))
    if "encrypted" in before and "encrypted" not in after:
        manner.note(f"what is encrypted in {here.url} is in the clear in {there.url}")
    move = lazy.copying.Move(here, there, keys, ring, take_over)
    return lazy.journey.travel(manner, move, going, "copying").tell(manner)


@options.command("export", short_help="Write sessions or checkpoints into one file.")
@options.places
@click.argument("file", shell_complete=options.complete_files)
@click.option("--all", "everything", is_flag=True, help="All sessions of the store.")
@options.found_store
def export(manner: Manner, /, what: tuple[str, ...], file: str, everything: bool, store: str) -> int:
    """Copy sessions with their journals, or single checkpoints, into one file: a SQLite store.

    The same as `copy --to sqlite:///FILE`: what is in the file already is not copied again. `import` puts it
    into any store, here or on another machine; that one needs the key, or --trust.

    Examples:
      graflow-ckpt checkpoints export night night.ckpt   with its journal
      graflow-ckpt checkpoints export checkpoints/best.pkl best.ckpt
      graflow-ckpt checkpoints export --all all.ckpt --store sqlite:///runs.db
    """
    if bool(what) == everything:
        raise click.UsageError("Name sessions or checkpoints, or give --all; the file comes last.")
    there = lazy.sqlite_store.SqliteStore(file)
    try:
        return _copied(manner, lazy.stores.open_store(store), there, what)
    finally:
        there.close()  # what is in the log beside the file goes into it, so that it can be moved


@options.command("import")
@click.argument("file", shell_complete=options.complete_files)
@click.option("--trust", is_flag=True, help="Take what was sealed with a key that is not here; asks first.")
@options.take_over
@options.unasked
@options.store
def import_(manner: Manner, /, file: str, trust: bool, take_over: bool, yes: bool, store: str) -> int:
    """Take the checkpoints of a file into a store.

    Seals and digests are verified; what is there already is left alone. To resume from a checkpoint runs the
    code in it: use --trust only if you know who wrote the file. The journals in it stay out then.

    Examples:
      graflow-ckpt checkpoints import night.ckpt --store sqlite:///runs.db
      graflow-ckpt checkpoints import night.ckpt --trust   of another key
    """
    with lazy.disk.refusing("open", file):
        os.stat(file)
    origin, target = lazy.sqlite_store.SqliteStore(file), lazy.stores.open_store(store)
    _check_lasts(target)
    keys = None if trust else lazy.keys.Keyring.reading(shared=False)
    if trust and not yes:
        for maker in _makers(origin):
            manner.note(maker)
        manner.ask("Resuming from them runs the code in them. Seal them with the key of this machine?")
    target.probe()
    move = lazy.copying.Move(origin, target, keys, lazy.keys.Keyring.for_store(target), take_over)
    going = lazy.journey.Luggage.all(origin)
    journey = lazy.journey.travel(manner, move, going, "importing")
    if trust and any(any(origin.segments(session)) for session in going.sessions):
        manner.note("the journals in it were left out: only their key could tell whether they are whole")
    return journey.tell(manner)


def _check_lasts(target: CheckpointStore) -> None:
    if lazy.stores.backend_of(target.url) == "memory":
        raise click.UsageError(f"{target.url} ends with this command, and with it what is copied there.")


def _makers(origin: CheckpointStore) -> list[str]:
    """Return the programs that say to have written the checkpoints of a file, and with which key."""
    makers: dict[str, None] = {}
    for path, raw in origin.list():
        meta = lazy.model.parse(path, raw, ".meta.json")
        said = f"session {meta.get('session_id')}: {meta.get('file')} on {meta.get('host')}"
        makers[f"{said}, key {meta.get('key_id') or 'none'}"] = None
    return list(makers)


@options.command("fork", short_help="Make a new session that begins at a checkpoint.")
@click.argument("what", metavar="PATH|SESSION", shell_complete=options.complete_places)
@click.argument("new", required=False, metavar="[NEW-ID]")
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", callback=words.parse_inputs,
              help="A value of the channel: JSON if it parses, else text; may be repeated.")  # fmt: skip
@options.found_store
def fork(manner: Manner, /, what: str, new: str | None, values: dict[str, Any], store: str) -> None:
    """Make a new session that goes on from a checkpoint, with some of its values changed. Runs nothing.

    The session that it comes from is not touched, and its checkpoint is kept as long as the new one is. Only
    values that are there can be set, so that a typing error is no new value.

    Examples:
      graflow-ckpt checkpoints fork checkpoints/best.pkl second --set rate=0.01
      graflow-ckpt checkpoints fork night   its newest; called night-fork
      graflow-ckpt checkpoints fork night fast --set 'layers=[64, 32]'
      graflow-ckpt resume fast
    """
    place = lazy.locate.find_place(store, what)
    if place.found.facts.get("redis"):
        raise SessionError(
            f"{place.found.path} is of a session in Redis.",
            hint=f"graflow-ckpt resume {place.found.path} --fork NEW-ID --url URL makes another one there.",
            path=place.found.path,
        )
    own = _free(place.store, f"{place.session[:50]}-fork") if new is None else check_session_id(new)
    made = lazy.continuation.forked(place, own, values)
    document = {
        "session": made.session, "path": made.found.path, "from": place.found.path, "store": made.store,
        "set": sorted(values),
    }  # fmt: skip
    resume = words.resume_command(made.session, made.store)
    said = f"session {made.session} begins at step {made.found.facts['steps']}; {resume}"
    manner.result(document, said, out=made.found.path)


def _free(store: str, wanted: str) -> str:
    """Return the name, or with the first number behind it that no session has."""
    place, name, number = lazy.stores.open_store(store), wanted, 1
    while any(place.list(name)):
        number += 1
        name = f"{wanted}-{number}"
    return name
