"""`graflow-ckpt checkpoints audit`: what belongs to no checkpoint. Nothing is opened or changed."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.bars import counter
from graflow_ckpt.interfaces.cli.options import common, found_store, manner_of

AUDIT = """\b
Examples:
  graflow-ckpt checkpoints audit
  graflow-ckpt checkpoints audit --store sqlite:///runs.db --json | jq '.orphans | length'
"""
COLUMNS = ("what", "name", "session", "size", "why")


@click.command("audit", epilog=AUDIT, short_help="Find what belongs to no checkpoint.")
@found_store
@common
@click.pass_context
def audit(ctx: click.Context, /, store: str) -> int:
    """Find what belongs to no checkpoint, and checkpoints that lack a part.

    Parts without a meta, saves that were never committed, journals of no session, foreign files.

    Names and sizes are compared, not contents (`verify` does that). Nothing is deleted. The exit status is
    1 if something was found.
    """
    from graflow_ckpt.checkpoint.auditing import audit as audit_of
    from graflow_ckpt.stores import open_store

    manner = manner_of(ctx)
    place = open_store(store)
    with counter("looking", show=not manner.json) as seen:
        found = audit_of(place, seen)
    if manner.json:
        orphans = [
            {"kind": one.kind, "name": one.name, "size": one.size, "session": one.session,
             "why": one.why or one.advice} for one in found.orphans
        ]  # fmt: skip
        manner.document(
            {
                "store": place.url,
                "checkpoints": found.checkpoints,
                "size": found.size,
                "orphans": orphans,
                "whole": found.whole,
            }
        )
        return 1 if orphans else 0
    rows = [(one.kind, one.name, one.session, words.size(one.size), one.why or one.advice)
            for one in found.orphans]  # fmt: skip
    if rows:
        manner.table(COLUMNS, rows, right=("size",))
    said = words.counted(len(rows), "orphan") if rows else "no orphans"
    manner.note(f"{words.counted(found.checkpoints, 'checkpoint')}, {said} ({words.size(found.size)})")
    if not found.whole:
        manner.note(f"what lies in {place.url} beside checkpoints was not looked at: it shows nothing else")
    return 1 if rows else 0
