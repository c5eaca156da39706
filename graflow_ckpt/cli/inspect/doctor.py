"""`graflow-ckpt doctor`: what is installed, writable and safe here, and the fleet."""

from __future__ import annotations

import click

from graflow_ckpt.cli import lazy
from graflow_ckpt.cli.options import common, configured, fleet, manner_of, named, store, with_fleet
from graflow_ckpt.cli.terminal import ExaminedRow
from graflow_ckpt.config.sources import BadSetting
from graflow_ckpt.core.errors import PackageMissing
from graflow_ckpt.frontends.door import needed

EXAMPLES = """\b
Examples:
  graflow-ckpt doctor
  graflow-ckpt doctor --store /mnt/shared/checkpoints --json
  graflow-ckpt doctor --url redis://host:6379/0    the fleet only
"""


@click.command(
    "doctor", epilog=EXAMPLES, short_help="What is installed, writable and safe here, and reached."
)
@store
@fleet
@common
def command(ctx: click.Context, /, store: str) -> int:
    """Say what is installed, writable and safe here.

    Of a fleet that is set up also: how its server keeps what it is told, whether there is a key, which
    workers there are, and which tasks none of them can work on. The exit status is 1 if something would
    keep a session from being saved or resumed.
    """

    manner = manner_of(ctx)
    findings = [] if named(ctx) else lazy.examination.examine(store)
    try:
        with needed():
            if configured(ctx):
                findings += lazy.examination.examine_fleet(with_fleet(ctx))
    except (BadSetting, PackageMissing) as error:
        findings.append(ExaminedRow("settings", "bad", str(error)))
    if manner.json:
        manner.document([finding.document() for finding in findings])
    else:
        manner.table(("what", "verdict", "found"), [(f.what, f.verdict, f.found) for f in findings])
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0
