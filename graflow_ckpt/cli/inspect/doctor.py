"""`graflow-ckpt doctor`: what is installed, writable and safe here, and the fleet."""

from __future__ import annotations

from dataclasses import asdict

from graflow_ckpt.cli import lazy, options
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import BadSetting, PackageMissing
from graflow_ckpt.frontends.door import needed

COLUMNS = ("what", "verdict", "found")


@options.command("doctor")
@options.store
@options.fleet
def command(manner: Manner, /, store: str) -> int:
    """Say what is installed, writable and safe here.

    Of a fleet that is set up also: how its server keeps what it is told, whether there is a key, which
    workers there are, and which tasks none of them can work on. The exit status is 1 if something would
    keep a session from being saved or resumed.

    Examples:
      graflow-ckpt doctor
      graflow-ckpt doctor --store /mnt/shared/checkpoints --json
      graflow-ckpt doctor --url redis://host:6379/0    the fleet only
    """
    findings = [] if options.named(manner) else lazy.examination.examine(store)
    try:
        with needed():
            if options.configured(manner):
                findings += lazy.examination.examine_fleet(options.with_fleet(manner))
    except (BadSetting, PackageMissing) as error:
        findings.append(lazy.examination.ExaminedRow("settings", "bad", str(error)))
    documents = [asdict(finding) for finding in findings]
    manner.listing(documents, COLUMNS, [tuple(document.values()) for document in documents])
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0
