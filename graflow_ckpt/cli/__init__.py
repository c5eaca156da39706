"""The command line: `graflow-ckpt`, also `python -m graflow_ckpt`.

    app                     the commands by name, and where errors become messages and statuses
    options words terminal  what is typed, and how a command speaks
    locate client           what there is, and what a name means, in a store and on a fleet
    live progress           what is shown while something runs
    run/                    run, resume, plan
    inspect/                sessions, checkpoints, settings, doctor, completion
    fleet/                  submit, worker, status, wait, top, pause, cancel, failed
    care/                   prune, trust, key, db, and what `checkpoints` deletes and copies

A command's file is loaded when it is called, and the engine and rich when something needs them:
`--help` and the completion of a shell must not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    from graflow_ckpt.cli.app import call

    return call(arguments)
