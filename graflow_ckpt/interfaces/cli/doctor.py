"""`graflow-ckpt doctor`: what is installed, writable and safe here, and what durability costs."""

from __future__ import annotations

import click

from graflow_ckpt.interfaces.cli.options import common, manner_of, store

EXAMPLES = """\b
Examples:
  graflow-ckpt doctor
  graflow-ckpt doctor --store /mnt/shared/checkpoints --json
"""


@click.command(
    "doctor", epilog=EXAMPLES, short_help="What is installed, writable and safe, what durability costs."
)
@store
@common
@click.pass_context
def command(ctx: click.Context, /, store: str) -> int:
    """Say what is installed, writable and safe here, and measure what each durability costs.

    The exit status is 1 if something would keep a session from being saved.
    """
    from graflow_ckpt.interfaces.cli.examination import examine

    manner = manner_of(ctx)
    findings = examine(store)
    if manner.json:
        manner.document([finding.document() for finding in findings])
    else:
        manner.table(("what", "verdict", "found"), [(f.what, f.verdict, f.found) for f in findings])
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0
