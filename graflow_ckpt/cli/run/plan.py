"""`graflow-ckpt plan`: what a resume would reuse and run, before anything is opened or run."""

from __future__ import annotations

from typing import Literal

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner


@options.command("plan")
@click.argument(
    "what", required=False, metavar="[SESSION|PATH|FILE.py]", shell_complete=options.complete_places
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@click.option("--session", metavar="ID", shell_complete=options.complete_sessions,
              help="With FILE.py: of this session.")  # fmt: skip
@click.option("--latest", is_flag=True, help="If there are several sessions: the newest.")
@click.option("--changed", type=click.Choice(["reuse", "rerun"]),
              help="As if the resume were told what to do with completed tasks that have changed.",
)  # fmt: skip
@options.found_store
def command(
    manner: Manner, /, what: str | None, arguments: tuple[str, ...], session: str | None, latest: bool,
    changed: Literal["reuse", "rerun"] | None, store: str,
) -> int:  # fmt: skip
    """Show what a resume would reuse and run; exit status 1 if it would be refused.

    The program is run up to its first execute() to see its tasks; no task runs, no session is
    touched, no pickle is opened.

    Examples:
      graflow-ckpt plan night                     against its program as it is now
      graflow-ckpt plan train.py --session night  against another program
      graflow-ckpt plan checkpoints/best.pkl
      graflow-ckpt plan night --changed rerun     what that would run again
    """
    if what is not None and session is not None:
        place = lazy.locate.by_session(store, session)
        origin = lazy.locate.ProgramOrigin(what, arguments or lazy.locate.argv_of(place)[1:])
    elif what is not None and what.endswith(".py") and lazy.program.is_file(what):
        raise click.UsageError("FILE.py needs --session: graflow-ckpt plan FILE.py --session ID.")
    else:
        place = lazy.locate.find_place(store, what or session, latest=latest)
        place = lazy.locate.in_its_folder(manner, place)
        origin = lazy.locate.origin_of(place)
        if arguments:
            raise click.UsageError("Arguments are for a program: graflow-ckpt plan FILE.py --session ID -- …")
    outlook = lazy.dry_run.planned(place, origin, changed)
    if manner.json:
        manner.document(outlook.document())
    else:
        for line in outlook.head():
            manner.note(line)
        plan = outlook.plan
        manner.table(("task", "verdict", "state", "note"), plan.rows)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in plan.counts().items())
        manner.note(f"{words.counted(len(plan.rows), 'task')}: {counts}")
        if outlook.refused:
            manner.note(outlook.refusal())
    return 1 if outlook.refused else 0
