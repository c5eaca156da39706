"""`graflow-ckpt run`: a program under a session."""

from __future__ import annotations

from typing import Any

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.facts import check_session_id


@options.command("run")
@options.of_program
@click.option("--session", metavar="ID", shell_complete=options.complete_sessions,
              help="Go on with this session, or start it.")  # fmt: skip
@click.option("--resume", type=click.Choice(["auto", "never", "must"]),
              help="If the session exists: go on (auto, must) or refuse (never); if not, must refuses.",
)  # fmt: skip
@options.running
@click.option("--store", metavar="FOLDER|URL", callback=words.parse_store,
              shell_complete=options.complete_folders,
              help="Where to keep checkpoints, instead of where the program says.")  # fmt: skip
@click.option("--again", is_flag=True,
              help="If the session is finished: run it again; the former run is kept.")  # fmt: skip
@click.option("--here", is_flag=True, help="Begin a new session, although this one is in another place.")
def command(manner: Manner, /, target: str, arguments: tuple[str, ...], **wished: Any) -> int:
    """Run a program's workflow under a session.

    A file is run as `python FILE.py` would run it; what follows `--` becomes its sys.argv. Of a module
    the workflow is executed that is named, by variable or name, or the only one.

    Examples:
      graflow-ckpt run train.py                   a new session; its id is printed
      graflow-ckpt run train.py --session night   new, or from where it was
      graflow-ckpt run train.py --session night --every 30s \\
          --input lr=0.01 -- --verbose
      graflow-ckpt run flows.etl:nightly --durability journal
    """
    if wished["session"] is not None:
        check_session_id(wished["session"])
    elif wished["resume"] == "must":
        raise click.UsageError("--resume must needs --session.")
    return lazy.launch.launch(manner, lazy.launch.Wishes.typed(**wished), target, arguments)
