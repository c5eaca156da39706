"""`graflow-ckpt worker`: a pool of processes that run the tasks of a fleet."""

from __future__ import annotations

import os
import sys

import click

from graflow_ckpt.cli import lazy, options
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.config.settings import FleetSettings
from graflow_ckpt.links.environment import unknown


@options.command("worker")
@options.kept("--queues", metavar="NAMES", help="What to work on, the first one first: default,gpu.")
@options.kept("-n", "--workers", "workers", metavar="N", help="How many processes.")
@options.kept("--grace", metavar="30s", help="How long a task may go on when the pool is told to stop.")
@options.kept("--lease", metavar="15s", help="After how long a machine without a sign of life is given up.")
@options.kept("--budget", metavar="2s", help="How long a worker stays with one session while others wait.")
@options.kept(
    "--code-patience", metavar="60s", help="How long a session waits for a worker that has its code."
)
@options.kept("--log", type=click.Choice(["text", "json"]), help="How to log, on stderr.")
@options.kept("--preload", metavar="MODULES", help="Modules to import before the workers are forked.")
@options.kept(
    "--observers", metavar="MODULE:NAME,…", help="What makes the observers that are told what runs here."
)
@click.option("--health", is_flag=True, help="Only say whether the workers of this machine are well.")
@options.of_fleet
def command(manner: Manner, /, health: bool) -> int:
    """Run the tasks of a fleet: a pool of processes that share a parent, which starts them anew.

    All of this can be set in the environment and in a file: graflow-ckpt settings. Modules are found as
    by `python -m`: in the working folder, PYTHONPATH and what is installed.

    Examples:
      graflow-ckpt worker                              as graflow-ckpt.toml says
      graflow-ckpt worker --queues gpu,default -n 2 --grace 5m
      graflow-ckpt worker --preload my_company.models  loaded once, for all
      graflow-ckpt worker --health                     for probes: status 0 or 1

    Signals: SIGTERM or Ctrl-C drains (finish the task, commit, hand over);
    once more leaves at once; SIGHUP starts the workers anew, one after the other.
    """
    return _probe(manner, options.with_fleet(manner)) if health else _work(manner)


def _probe(manner: Manner, settings: FleetSettings) -> int:
    said = settings.origin("queues").kind != "default"
    well, text = lazy.health.health(settings.redis_url, settings.queues if said else ())
    manner.result({"healthy": well, "message": text}, lines=[text])
    return 0 if well else 1


def _work(manner: Manner) -> int:
    for name in unknown():
        manner.note(f"{name} is set, and nothing reads it: graflow-ckpt settings shows what is.")
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path[0:0] = [os.getcwd()]  # the script of an installation has its own folder there
    found = options.with_fleet(manner)
    settings = lazy.fleet_worker.PoolSettings(
        found.redis_url, found.rq_url, found.queues, found.workers, found.lease, found.budget, found.grace,
        "json" if manner.json else found.log, found.preload, found.code_patience, found.observers,
    )  # fmt: skip
    return lazy.pool.run(settings)
