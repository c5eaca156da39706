"""`graflow-ckpt submit`: a program's workflow becomes a session of a fleet."""

from __future__ import annotations

from typing import Any

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner


@options.command("submit")
@options.of_program
@click.option(
    "--session",
    metavar="ID",
    envvar="GRAFLOW_CKPT_SESSION",
    shell_complete=options.complete_remote,
    help="Its id, instead of the program's own, or of a new one.",
)
@click.option(
    "--existing",
    type=click.Choice(["return", "again", "error"]),
    help="If there is a session of that id: print its id, run it again once it is finished, or fail. "
    "By default it fails, unless the workflow has on_finished='again'.",
)
@click.option("--max-steps", type=options.COUNT, metavar="N", help="Stop after so many steps.")
@click.option(
    "--ttl", metavar="7d", callback=words.parse_age, help="How long it is kept when it has completed."
)
@click.option("--wait", "waits", is_flag=True, help="And wait for its end, as `wait` does.")
@click.option(
    "--timeout", metavar="SECONDS|5m", callback=words.parse_period, help="With --wait: no longer than this."
)
@click.option("--progress/--no-progress", default=True, help="With --wait: show how far it is.")
@options.of_fleet
def command(
    manner: Manner, /, target: str, arguments: tuple[str, ...], inputs: dict[str, Any], waits: bool,
    timeout: float | None, progress: bool, **said: Any,
) -> int:  # fmt: skip
    """Have a fleet run a program's workflow. Prints the id of the session once it has been accepted.

    The program is run up to its first execute() or submit() to see its tasks; no task runs here. Modules
    are used from where the workers are; the code of the file itself travels with the session, sealed.

    Examples:
      graflow-ckpt submit etl.py                prints the id of the session
      graflow-ckpt submit etl.py --session night --input rows=500 --wait
      graflow-ckpt submit flows.etl:nightly --existing return
      graflow-ckpt submit etl.py -- --verbose   arguments of the program
    """
    if timeout is not None and not waits:
        raise click.UsageError("--timeout is for --wait.")
    terms = lazy.accepting.Terms(**{name: value for name, value in said.items() if value is not None})
    client = lazy.client.client_of(manner, key=True)
    handle = lazy.control.submitted(manner, client, target, arguments, terms, inputs, quiet=waits)
    return lazy.waiting.wait(manner, handle, timeout, progress=progress) if waits else 0
