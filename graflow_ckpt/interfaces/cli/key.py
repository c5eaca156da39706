"""`graflow-ckpt key new`: a key that seals checkpoints, for machines that share a store."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.options import common, manner_of

EXAMPLES = """\b
Examples:
  export GRAFLOW_CKPT_KEY=$(graflow-ckpt key new)
  (umask 077; graflow-ckpt key new > graflow.key)  and GRAFLOW_CKPT_KEY_FILE=graflow.key
"""


@click.group("key", short_help="Make a key that seals checkpoints.")
def command() -> None:
    """Make a key that seals checkpoints. One machine alone needs none: it makes its own."""


@command.command("new", epilog=EXAMPLES)
@common
@click.pass_context
def new(ctx: click.Context, /) -> int:
    """Print a new key. It is a secret: whoever has it can write checkpoints that you open."""
    from graflow_ckpt.checkpoint.keys import new_key

    manner = manner_of(ctx)
    made = new_key()
    if manner.json:
        manner.document({"key": made, "id": made.partition(":")[0]})
    else:
        click.echo(made)
    return 0
