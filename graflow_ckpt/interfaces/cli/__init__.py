"""The command line: `graflow-ckpt`, also `python -m graflow_ckpt`.

    run, resume            programs under a session            run.py resume.py launch.py program.py
    plan                   what a resume would do              plan.py
    sessions, checkpoints  what there is, and whether it holds sessions.py checkpoints.py
    submit, worker         a fleet is given work, and does it  submit.py worker.py
    status, wait, top      how far it is                       status.py wait.py top.py
    pause, cancel, failed  a session is steered                pause.py cancel.py failed.py steering.py
    trust, key, doctor     seals, keys, this machine           trust.py key.py doctor.py
    db                     tables of a store in a database    db.py
    settings               what counts, and why                settings.py
    completion             for bash, zsh and fish              completion.py

A command's file is loaded when it is called, and the engine and rich when something needs them:
`--help` and the completion of a shell must not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    from graflow_ckpt.interfaces.cli.app import call

    return call(arguments)
