"""`graflow-ckpt checkpoints copy`, `export` and `import`: checkpoints from one store to another.

No pickle is opened. What arrives has the digests that it had, and the seal of where it arrives.
"""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.options import (
    TAKE_OVER,
    common,
    complete_files,
    complete_folders,
    complete_places,
    default_store,
    found_store,
    manner_of,
    store,
)

COPY = """\b
Examples:
  graflow-ckpt checkpoints copy --to sqlite:///runs.db           all of ./checkpoints
  graflow-ckpt checkpoints copy --from sqlite:///runs.db --to postgresql://host/runs
  graflow-ckpt checkpoints copy night --to s3://bucket/runs --json
"""
EXPORT = """\b
Examples:
  graflow-ckpt checkpoints export night night.ckpt               a session, with its journal
  graflow-ckpt checkpoints export checkpoints/best.pkl best.ckpt
  graflow-ckpt checkpoints export --all all.ckpt --store sqlite:///runs.db
"""
IMPORT = """\b
Examples:
  graflow-ckpt checkpoints import night.ckpt --store sqlite:///runs.db
  graflow-ckpt checkpoints import night.ckpt --trust             made with a key that is not here
"""


@click.command("copy", epilog=COPY, short_help="Copy sessions or checkpoints to another store.")
@click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)
@click.option("--from", "origin", default=default_store, show_default="checkpoints",
              metavar="FOLDER|URL", callback=words.parse_store, help="Where they are.",
              shell_complete=complete_folders)  # fmt: skip
@click.option("--to", "target", required=True, metavar="FOLDER|URL", callback=words.parse_store,
              help="Where they are to go.", shell_complete=complete_folders)  # fmt: skip
@click.option("--workflow", metavar="NAME", help="Only sessions of this workflow.")
@click.option("--take-over", is_flag=True, help=TAKE_OVER)
@click.option("--yes", is_flag=True, help="With --take-over: do not ask before a process is ended.")
@common
@click.pass_context
def copy(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    origin: str,
    target: str,
    workflow: str | None,
    take_over: bool,
    yes: bool,
) -> int:
    """Copy sessions with their journals, or single checkpoints; without a name all that there is.

    Nothing changes where they come from, so runs may go on there. What is there already is not copied again:
    interrupt it, and call it again; copy what is still being run once more when it has stopped. A session
    that has gone on by itself at the target is refused. What a session has gone back behind is left out.
    """
    from graflow_ckpt.checkpoint.copying import Move
    from graflow_ckpt.checkpoint.keys import Keyring
    from graflow_ckpt.core.errors import NoSession
    from graflow_ckpt.interfaces.cli.finding import checkpoint_path
    from graflow_ckpt.interfaces.cli.journey import Luggage, travel, unveiled
    from graflow_ckpt.interfaces.cli.takeover import may_fence
    from graflow_ckpt.stores import open_store, store_of

    if what and workflow is not None:
        raise click.UsageError("--workflow is for all sessions of a store; what is named is copied anyway.")
    manner = manner_of(ctx)
    here, there = open_store(origin), open_store(target)
    if here.url == there.url:
        raise click.UsageError(f"--from and --to are the same place: {there.url}.")
    keys, ring = Keyring.reading(shared=here.shared), Keyring.for_store(there)
    going = Luggage.named(here, origin, what, checkpoint_path) if what else Luggage.all(here, workflow)
    if not (what or going.sessions or going.damaged):
        of = f" of workflow {workflow!r}" if workflow is not None else ""
        raise NoSession(f"There are no checkpoints{of} in {origin}.", hint="--from names another place.")
    for path in going.paths:
        if here.takes(path) is None:
            raise click.UsageError(f"{path} is not in {here.url}: --from {store_of(path)}.")
    there.probe()
    move = Move(
        here, there, keys, ring, may_fence(manner, there, going.sessions, take_over=take_over, yes=yes)
    )
    if veil := unveiled(here.url, there.url):
        manner.note(veil)
    return travel(move, going, watched=not manner.json, what="copying").tell(manner)


@click.command("export", epilog=EXPORT, short_help="Write sessions or checkpoints into one file.")
@click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)
@click.argument("file", shell_complete=complete_files)
@click.option("--all", "everything", is_flag=True, help="All sessions of the store.")
@click.option("--force", is_flag=True, help="Take the place of a file that is there.")
@found_store
@common
@click.pass_context
def export(
    ctx: click.Context, /, what: tuple[str, ...], file: str, everything: bool, force: bool, store: str
) -> int:  # fmt: skip
    """Write sessions with their journals, or single checkpoints, into one file.

    All of it is verified on the way, and one that is bad is an error: then there is no file. `import` puts it
    into any store, here or on another machine; that one needs the key, or --trust.
    """
    from graflow_ckpt.interfaces.cli.exporting import exported
    from graflow_ckpt.interfaces.cli.journey import unveiled

    if bool(what) == everything:
        raise click.UsageError("Name sessions or checkpoints, or give --all; the file comes last.")
    manner = manner_of(ctx)
    if veil := unveiled(store, file):
        manner.note(veil)
    document = exported(store, what, file, replace=force, watched=not manner.json)
    if manner.json:
        manner.document(document)
    else:
        counted = words.counted(document["checkpoints"], "checkpoint")
        manner.note(f"{counted} of {words.counted(len(document['sessions']), 'session')} "
                    f"in {file} ({words.size(document['size'])})")  # fmt: skip
    return 0


@click.command("import", epilog=IMPORT)
@click.argument("file", shell_complete=complete_files)
@click.option("--trust", is_flag=True, help="Take what was sealed with a key that is not here; asks first.")
@click.option("--take-over", is_flag=True, help=TAKE_OVER)
@click.option("--yes", is_flag=True, help="Do not ask.")
@store
@common
@click.pass_context
def import_(ctx: click.Context, /, file: str, trust: bool, take_over: bool, yes: bool, store: str) -> int:
    """Take the checkpoints of a file into a store.

    Seals and digests are verified; what is there already is left alone. To resume from a checkpoint runs the
    code in it: use --trust only if you know who wrote the file. The journals in it stay out then.
    """
    from graflow_ckpt.checkpoint.copying import Move, survey
    from graflow_ckpt.checkpoint.keys import Keyring
    from graflow_ckpt.checkpoint.portable import PortableFile
    from graflow_ckpt.interfaces.cli.exporting import contents
    from graflow_ckpt.interfaces.cli.journey import Luggage, travel
    from graflow_ckpt.interfaces.cli.takeover import may_fence
    from graflow_ckpt.stores import open_store

    manner = manner_of(ctx)
    with PortableFile(file) as origin:
        target = open_store(store)
        ring = Keyring.for_store(target)
        keys = None if trust else Keyring.reading(shared=False)
        whole, paths, makers = contents(origin)
        if trust and not yes:
            for maker in makers:
                manner.note(maker)
            manner.ask("Resuming from them runs the code in them. Seal them with the key of this machine?")
        target.probe()
        known = survey(origin)
        fencing = may_fence(manner, target, whole, take_over=take_over, yes=yes)
        move = Move(origin, target, keys, ring, fencing)
        going = Luggage({session: known.get(session) for session in whole}, paths)
        journey = travel(move, going, watched=not manner.json, what="importing")
        if trust and any(any(origin.segments(session)) for session in whole):
            manner.note("the journals in it were left out: only their key could tell whether they are whole")
        return journey.tell(manner)
