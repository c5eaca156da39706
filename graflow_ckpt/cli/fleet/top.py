"""`graflow-ckpt top`: the sessions and workers of a fleet, as they are now."""

from __future__ import annotations

import sys
from time import sleep

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner

MOMENT = 0.5  # seconds between the two looks that one picture needs for its rates


@options.command("top")
@click.option(
    "--every", metavar="SECONDS", default="1", show_default=True, callback=words.parse_period,
    help="How often to look.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="One picture, and the end; also where there is no terminal.")
@click.option("--limit", type=options.COUNT, metavar="N", default=20, show_default=True,
              help="So many sessions, those that do most first.")  # fmt: skip
@options.of_fleet
def command(manner: Manner, /, every: float, once: bool, limit: int) -> None:
    """Watch the sessions and workers of a fleet: what is ready and running, and how fast it goes.

    With --json one document per look. A worker is shown with what it runs and for how long; SEEN is the
    age of its pool's last sign of life.

    Examples:
      graflow-ckpt top                                 Ctrl-C ends it
      graflow-ckpt top --once                          one picture
      graflow-ckpt top --once --json | jq .rate        tasks per second
    """
    overview = lazy.outlook.Overview(lazy.client.client_of(manner), limit)
    if not (manner.json or once) and sys.stdout.isatty():
        lazy.outlook.live(overview, max(every, 0.1))
        return
    overview.look()
    sleep(min(MOMENT, every))
    if not manner.json:
        lazy.outlook.printed(manner, overview.look())
        return
    manner.document(overview.look().document())
    while not once:
        sleep(every)
        manner.document(overview.look().document())
