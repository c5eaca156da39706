"""`graflow-ckpt checkpoints sync`: what waits in the folder of a fallback is handed over to its store."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.options import common, manner_of, store
from graflow_ckpt.interfaces.cli.words import counted

EXAMPLES = """\b
Examples:
  graflow-ckpt checkpoints sync --store fallback+postgresql://host/database
"""


@click.command("sync", epilog=EXAMPLES)
@store
@common
@click.pass_context
def sync(ctx: click.Context, /, store: str) -> int:
    """Hand over checkpoints that were saved while their store was away.

    The next run of a session does so by itself; this is for sessions that do not run again. What belongs to
    a session that somebody else has gone on with is set aside, and what is being run is left to who runs
    it. The exit status is 1 if something is still waiting.
    """
    from graflow_ckpt.interfaces.cli.waiting_saves import fallbacks
    from graflow_ckpt.stores import open_store
    from graflow_ckpt.stores.fallback_folder import entries

    manner = manner_of(ctx)
    found = fallbacks(open_store(store))
    if not found:
        raise click.UsageError(f"{store} has no fallback: its address does not begin with fallback+.")
    waited = left = refused = 0
    for fallback in found:
        before = len(list(entries(fallback.waits.refused)))
        waited += len(fallback.waits.waiting())
        left += fallback.hand_over_all()
        refused += len(list(entries(fallback.waits.refused))) - before
    handed = waited - left - refused
    if manner.json:
        manner.document({"handed_over": handed, "refused": refused, "waiting": left})
    else:
        manner.note(f"{counted(handed, 'checkpoint')} handed over, {refused} refused, {left} waiting")
    return 1 if left else 0
