"""`graflow-ckpt checkpoints repair`: damage is shown, asked about, kept aside, and mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.bars import along
from graflow_ckpt.interfaces.cli.options import (
    common,
    complete_folders,
    complete_places,
    found_store,
    manner_of,
)

if TYPE_CHECKING:
    from graflow_ckpt.checkpoint.repairing import Damage, Repair, Repaired
    from graflow_ckpt.core.protocols import CheckpointStore
    from graflow_ckpt.interfaces.cli.manner import Document, Manner

REPAIR = """\b
Examples:
  graflow-ckpt checkpoints repair --all --dry-run                what is damaged
  graflow-ckpt checkpoints repair night --from s3://bucket/runs  from a copy
  graflow-ckpt checkpoints repair --all --aside /backups/damaged --yes
"""
COLUMNS = ("path", "session", "good copy", "why")
DONE = ("path", "session", "done", "kept in", "why")


@click.command("repair", epilog=REPAIR)
@click.argument("what", nargs=-1, metavar="[SESSION|PATH]…", shell_complete=complete_places)
@click.option("--all", "everything", is_flag=True, help="Whatever is damaged in the store.")
@click.option("--aside", default="damaged", show_default=True, metavar="FOLDER",
              help="Where the damaged bytes are kept.", shell_complete=complete_folders)  # fmt: skip
@click.option("--from", "copies", metavar="FOLDER|URL", callback=words.parse_store,
              help="A store with good copies.", shell_complete=complete_folders)  # fmt: skip
@click.option("--force", is_flag=True, help="Take away also those of which something cannot be read.")
@click.option("--dry-run", is_flag=True, help="Only say what is damaged.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@found_store
@common
@click.pass_context
def repair(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    everything: bool,
    aside: str,
    copies: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    store: str,
) -> int:
    """Mend damaged checkpoints and journals.

    Their bytes are kept aside first. A checkpoint is replaced by a good copy from another store, or else
    taken away, so that nobody stumbles over it; of a journal what is before the damage still counts. A seal
    of another key is no damage. The exit status is 1 if something is left.
    """
    if bool(what) == everything:
        raise click.UsageError("Name sessions or checkpoints, or give --all.")
    manner = manner_of(ctx)
    work, paths, sessions = _planned(store, what, aside, copies, force)
    found = [*work.look(along(paths, "looking", show=not manner.json)), *work.look_at_journals(sessions)]
    if dry_run or not found:
        _show(manner, work.store, found)
        return 1 if found else 0
    if not yes:
        for damage in found:
            manner.note(f"{damage.path or f'journal of session {damage.session}'}: {damage.error.message}")
        lost = sum(bool(damage.path) and not damage.good for damage in found)
        manner.ask(f"Mend {len(found)}? {words.counted(lost, 'checkpoint')} will not be there any more; "
                   f"the bytes are kept in {aside}.")  # fmt: skip
    done = [_mended(work, damage) for damage in found]
    _tell(manner, work.store, done)
    return 1 if any(one.done == "left" for one in done) else 0


def _planned(
    store: str, what: Sequence[str], aside: str, copies: str | None, force: bool
) -> tuple[Repair, list[str], list[str]]:
    from graflow_ckpt.checkpoint.keys import Keyring
    from graflow_ckpt.checkpoint.repairing import Repair, copy_of, meant
    from graflow_ckpt.interfaces.cli.verifying import paths_of
    from graflow_ckpt.stores import open_store, store_of

    paths = paths_of(store, what) if what else []
    places = {place.url: place for place in map(open_store, dict.fromkeys(map(store_of, paths)))}
    place = open_store(store) if not what else next(iter(places.values()))
    if len(places) > 1:
        raise click.UsageError(f"What is named lies in several stores: {', '.join(sorted(places))}.")
    found, sessions = meant(place, paths)
    work = Repair(place, Keyring.for_store(place), aside, force=force)
    if copies is not None:
        other = open_store(copies)
        keys = Keyring.reading(shared=other.shared)
        work = Repair(place, work.keyring, aside, other, keys, copy_of(other), force)
    return work, found or paths, sessions


def _mended(work: Repair, damage: Damage) -> Repaired:
    from graflow_ckpt.checkpoint.repairing import Repaired
    from graflow_ckpt.core.errors import GraflowError

    try:
        return work.mend(damage)
    except GraflowError as error:
        return Repaired(damage, "left", why=str(error))


def _show(manner: Manner, place: CheckpointStore, found: Sequence[Damage]) -> None:
    if manner.json:
        manner.document({"store": place.url, "damaged": [_document(damage) for damage in found]})
        return
    if found:
        rows = [(_name(damage), damage.session, damage.good, damage.error.message) for damage in found]
        manner.table(COLUMNS, rows)
    manner.note(f"{len(found)} damaged" if found else "nothing is damaged")


def _tell(manner: Manner, place: CheckpointStore, done: Sequence[Repaired]) -> None:
    if manner.json:
        told = [_document(one.damage) | {"done": one.done, "kept": list(one.kept), "left_because": one.why,
                                         "records": one.records} for one in done]  # fmt: skip
        manner.document({"store": place.url, "damaged": told})
        return
    rows = [(_name(one.damage), one.damage.session, one.done, ", ".join(one.kept), _why(one)) for one in done]
    manner.table(DONE, rows)


def _why(one: Repaired) -> str:
    if not one.damage.path and one.done != "left":
        return f"{words.counted(one.records, 'record')} of it still count"
    return one.why


def _name(damage: Damage) -> str:
    return damage.path or "(journal)"


def _document(damage: Damage) -> Document:
    return {
        "path": damage.path or None,
        "session": damage.session,
        "error": type(damage.error).__name__,
        "why": str(damage.error),
        "good_copy": damage.good or None,
    }
