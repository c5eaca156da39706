"""`graflow-ckpt checkpoints fork`: another session that begins where one was, perhaps with other values.

It opens the verified pickle of the checkpoint: its values go into the first cut of the new session. No task
is run; `resume NEW-ID` does that. `resume … --fork` does both at once.
"""

from __future__ import annotations

from typing import Any

import click

from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.options import common, complete_places, found_store, manner_of

FORK = """\b
Examples:
  graflow-ckpt checkpoints fork checkpoints/best.pkl second --set rate=0.01
  graflow-ckpt checkpoints fork night                            called night-fork; its newest checkpoint
  graflow-ckpt checkpoints fork night fast --set rate=0.1 --set 'layers=[64, 32]' && graflow-ckpt resume fast
"""


@click.command("fork", epilog=FORK, short_help="Make a new session that begins at a checkpoint.")
@click.argument("what", metavar="PATH|SESSION", shell_complete=complete_places)
@click.argument("new", required=False, metavar="[NEW-ID]")
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", callback=words.parse_inputs,
              help="A value of the channel: JSON if it parses, else text; may be repeated.")  # fmt: skip
@found_store
@common
@click.pass_context
def fork(ctx: click.Context, /, what: str, new: str | None, values: dict[str, Any], store: str) -> int:
    """Make a new session that goes on from a checkpoint, with some of its values changed. Runs nothing.

    The session that it comes from is not touched, and its checkpoint is kept as long as the new one is. Only
    values that are there can be set, so that a typing error is no new value.
    """
    from graflow_ckpt.core.errors import SessionError
    from graflow_ckpt.interfaces.cli.finding import find_place
    from graflow_ckpt.interfaces.cli.going_on import forked

    manner = manner_of(ctx)
    place = find_place(store, what)
    if place.found.facts.get("redis"):
        raise SessionError(
            f"{place.found.path} is of a session in Redis.",
            hint=f"graflow-ckpt resume {place.found.path} --fork NEW-ID --url URL makes another one there.",
            path=place.found.path,
        )
    made = forked(place, new or _free(place.store, f"{place.session[:50]}-fork"), values)
    if manner.json:
        manner.document({"session": made.session, "path": made.found.path, "from": place.found.path,
                         "store": made.store, "set": sorted(values)})  # fmt: skip
        return 0
    manner.note(f"session {made.session} begins at step {made.found.facts['steps']}; "
                f"{words.resume_command(made.session, made.store)}")  # fmt: skip
    click.echo(made.found.path)
    return 0


def _free(store: str, wanted: str) -> str:
    """The name, or with the first number behind it that no session has."""
    from graflow_ckpt.stores import open_store

    place, name, number = open_store(store), wanted, 1
    while any(place.list(name)):
        number += 1
        name = f"{wanted}-{number}"
    return name
