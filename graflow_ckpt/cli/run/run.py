"""`graflow-ckpt run`: a program under a session."""

from __future__ import annotations

from typing import Any

import click

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.options import (
    common,
    complete_folders,
    complete_sessions,
    manner_of,
    of_program,
    running,
)
from graflow_ckpt.core.facts import check_session_id

EXAMPLES = """\b
Examples:
  graflow-ckpt run train.py                   a new session; its id is printed
  graflow-ckpt run train.py --session night   new, or from where it was
  graflow-ckpt run train.py --session night --every 30s \\
      --input lr=0.01 -- --verbose
  graflow-ckpt run flows.etl:nightly --durability journal
"""


@click.command("run", epilog=EXAMPLES, short_help="Run a program's workflow under a session.")
@of_program
@click.option(
    "--session", metavar="ID", shell_complete=complete_sessions, help="Go on with this session, or start it."
)
@click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    help="If the session exists: go on (auto, must) or refuse (never); if not, must refuses.",
)
@running
@click.option(
    "--store",
    metavar="FOLDER|URL",
    callback=words.parse_store,
    shell_complete=complete_folders,
    help="Where to keep checkpoints, instead of where the program says.",
)
@click.option(
    "--again", is_flag=True, help="If the session is finished: run it again; the former run is kept."
)
@click.option("--here", is_flag=True, help="Begin a new session, although this one is in another place.")
@common
def command(
    ctx: click.Context, /, target: str, arguments: tuple[str, ...], **options: Any
) -> int:  # fmt: skip
    """Run a program's workflow under a session.

    A file is run as `python FILE.py` would run it; what follows `--` becomes its sys.argv. Of a module
    the workflow is executed that is named, by variable or name, or the only one.
    """

    if options["session"] is not None:
        check_session_id(options["session"])
    elif options["resume"] == "must":
        raise click.UsageError("--resume must needs --session.")
    return lazy.launch.launch(manner_of(ctx), lazy.launch.Wishes(**options), target, arguments)
