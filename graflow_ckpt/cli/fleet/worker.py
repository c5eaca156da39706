"""`graflow-ckpt worker`: a pool of processes that run the tasks of a fleet."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click

from graflow_ckpt.cli import lazy
from graflow_ckpt.cli.options import common, kept, manner_of, of_fleet, with_fleet
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import BadAddress
from graflow_ckpt.links.addresses import parse
from graflow_ckpt.links.environment import PREFIX, unknown, variable

if TYPE_CHECKING:
    from graflow_ckpt.config.settings import Resolved
    from graflow_ckpt.fleet.worker import PoolSettings

T = TypeVar("T")

EXAMPLES = """\b
Examples:
  graflow-ckpt worker                              as graflow-ckpt.toml says
  graflow-ckpt worker --queues gpu,default -n 2 --grace 5m
  graflow-ckpt worker --preload my_company.models  loaded once, for all
  graflow-ckpt worker --health                     for probes: status 0 or 1

\b
Signals: SIGTERM or Ctrl-C drains (finish the task, commit, hand over);
once more leaves at once; SIGHUP starts the workers anew, one after the other.
"""


@click.command("worker", epilog=EXAMPLES, short_help="Run the tasks of a fleet.")
@kept("--queues", metavar="NAMES", help="What to work on, the first one first: default,gpu.")
@kept("-n", "--workers", "workers", metavar="N", help="How many processes.")
@kept("--grace", metavar="30s", help="How long a task may go on when the pool is told to stop.")
@kept("--lease", metavar="15s", help="After how long a machine without a sign of life is given up.")
@kept("--budget", metavar="2s", help="How long a worker stays with one session while others wait.")
@kept("--code-patience", metavar="60s", help="How long a session waits for a worker that has its code.")
@kept("--log", type=click.Choice(["text", "json"]), help="How to log, on stderr.")
@kept("--preload", metavar="MODULES", help="Modules to import before the workers are forked.")
@kept("--observers", metavar="MODULE:NAME,…", help="What makes the observers that are told what runs here.")
@click.option("--health", is_flag=True, help="Only say whether the workers of this machine are well.")
@of_fleet
@common
def command(ctx: click.Context, /, health: bool) -> int:
    """Run the tasks of a fleet: a pool of processes that share a parent, which starts them anew.

    All of this can be set in the environment and in a file: graflow-ckpt settings. Modules are found as
    by `python -m`: in the working folder, PYTHONPATH and what is installed.
    """
    manner = manner_of(ctx)
    return _probe(manner, with_fleet(ctx)) if health else _work(manner, ctx)


def _probe(manner: Manner, resolved: Resolved) -> int:
    said = resolved.origin("queues").kind != "default"
    assert resolved.url is not None
    well, text = lazy.health.health(resolved.url, resolved.fleet.queues if said else ())
    if manner.json:
        manner.document({"healthy": well, "message": text})
    else:
        manner.say(text)
    return 0 if well else 1


def _work(manner: Manner, ctx: click.Context) -> int:
    for name in unknown():
        manner.note(f"{name} is set, and nothing reads it: graflow-ckpt settings shows what is.")
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path[0:0] = [os.getcwd()]  # the script of an installation has its own folder there
    with suppress(BadAddress):  # what it knows of passwords, for addresses that are given without
        parse(os.environ.get(variable("redis_url"), "")).remember()
    settings, environment = in_child(lambda: _settings(manner, ctx))
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update(environment)
    return lazy.pool.run(settings)


def _settings(manner: Manner, ctx: click.Context) -> tuple[PoolSettings, dict[str, str]]:
    """Return how the pool is run, and the environment that its tasks will find."""
    resolved = with_fleet(ctx)
    fleet = resolved.fleet
    assert resolved.url is not None
    settings = lazy.fleet_worker.PoolSettings(
        resolved.url,
        resolved.rq_url or "",
        fleet.queues,
        fleet.workers,
        fleet.lease,
        fleet.budget,
        fleet.grace,
        "json" if manner.json else fleet.log,
        fleet.preload,
        fleet.code_patience,
        fleet.observers,
    )
    return settings, {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def in_child(ask: Callable[[], T]) -> T:
    """Return a forked child's answer, or raise its error. What it imported for that, 9 MB to check settings,
    ends with it: else every process of the pool would carry that, and pay for it at each fork.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: object = ask()
        except BaseException as error:  # noqa: BLE001  it is raised by the parent
            answer = error
        with open(writing, "wb") as out:
            pickle.dump(answer, out)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as found:
        text = found.read()
    os.waitpid(child, 0)
    answered: T | BaseException = pickle.loads(text)
    if isinstance(answered, BaseException):
        raise answered
    return answered
