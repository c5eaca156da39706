"""`graflow-ckpt wait`: until a session of a fleet has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING

import click

from graflow_ckpt.cli import lazy, options, words
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import ServerGone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from graflow_ckpt.fleet.handle import Handle
    from graflow_ckpt.fleet.status import Status


@options.command("wait")
@options.remote_session
@click.option(
    "--timeout", metavar="SECONDS|5m", callback=words.parse_period, help="Wait no longer than this."
)
@click.option("--progress/--no-progress", default=True, help="Show how far it is.")
@options.of_fleet
def command(manner: Manner, /, session: str, timeout: float | None, progress: bool) -> int:
    """Wait until a session of a fleet has ended, or has paused.

    The exit status says how: 0 completed, or stopped at its limit; 1 failed, cancelled or stalled; 3
    paused, a user has to act; 124 it has not ended in time.

    Examples:
      graflow-ckpt wait night
      graflow-ckpt wait night --timeout 2h \\
          || graflow-ckpt failed list --session night
    """
    return wait(manner, lazy.client.handle_of(manner, session), timeout, progress=progress)


TIMED_OUT = 124
"""The status of `timeout`, of the GNU core utilities, for the same."""

EXITS = {"completed": 0, "stopped": 0, "paused": 3, "failed": 1, "cancelled": 1, "stalled": 1}
PERIOD = 5.0  # seconds between two lines on a pipe
PATIENCE = 60.0  # seconds for which a server may be away
_SOON, _LATER = 0.02, 0.25  # seconds between two looks


def wait(manner: Manner, handle: Handle, timeout: float | None, *, progress: bool) -> int:
    """Wait until it has ended, paused, or the time is over; the exit status says how it ended.

    A server that goes away meanwhile is waited for, as workers do.
    """

    began = monotonic()
    shown = _shown(manner, progress)
    status: Status | None = None
    try:
        for status in follow(manner, handle, timeout):
            shown.show(status)
    except KeyboardInterrupt:
        again = words.fleet_command("wait", handle.session)
        manner.note(f"session {handle.session} goes on by itself; wait again: {again}")
        return 130
    finally:
        shown.close()
    assert status is not None
    code = EXITS.get(status.status, TIMED_OUT)
    waited = round(monotonic() - began, 3)
    document = {**lazy.client.document(status, handle.address), "code": code, "waited": waited}
    manner.result(document, f"session {status.session}: {closing(status, code, timeout)}")
    return code


def follow(manner: Manner, handle: Handle, timeout: float | None) -> Iterator[Status]:
    """Yield how far it is, until it has ended or paused, or the time is over; at least once."""
    deadline = None if timeout is None else monotonic() + timeout
    away: float | None = None
    pause = _SOON
    while True:
        try:
            status = handle.status()
        except ServerGone as error:
            if away is None:
                away = monotonic()
                manner.note(f"{error.message} Waiting for it.")
            elif monotonic() > away + PATIENCE:
                raise
            sleep(_LATER)
            continue
        away = None
        yield status
        if status.status in EXITS or (deadline is not None and monotonic() >= deadline):
            return
        left = pause if deadline is None else min(pause, max(0.0, deadline - monotonic()))
        sleep(left)
        pause = min(2 * pause, _LATER)


def closing(status: Status, code: int, timeout: float | None) -> str:
    """Return how it ended, and what to do next."""
    steps = f"after {words.counted(status.steps, 'step')}"
    failed = f", {status.failed} failed" if status.failed else ""
    resume = words.fleet_command("resume", status.session)
    match status.status:
        case "completed":
            look = f": {words.fleet_command('failed', 'list', '--session', status.session)}" if failed else ""
            return f"completed {steps}{failed}{look}"
        case "failed":
            look = words.fleet_command("failed", "list", "--session", status.session, "--traceback")
            return f"failed {steps}: {status.reason}; look: {look}; go on: {resume}"
        case "paused":
            return f"paused {steps}{failed}: {status.reason}; go on: {resume}"
        case "stopped":
            limit = str(2 * max(1, status.steps))
            larger = words.fleet_command("resume", status.session, "--max-steps", limit)
            return f"{status.reason or 'stopped'} {steps}; go on with a larger one: {larger}"
        case "cancelled" | "stalled":
            return f"{status.status} {steps}{': ' if status.reason else ''}{status.reason}"
    assert code == TIMED_OUT
    return f"has not ended after {timeout:g} s ({counts(status)})"


def counts(status: Status) -> str:
    told = f"{status.completed} done, {status.running} running, {status.ready + status.delayed} waiting"
    return f"{told}, {status.failed} failed" if status.failed else told


# --- the picture -------------------------------------------------------------------------


class Silent:
    """For JSON, and for --no-progress."""

    def show(self, status: Status) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(Silent):
    """For a pipe or a log."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._told = monotonic()

    def show(self, status: Status) -> None:
        if monotonic() - self._told >= PERIOD and status.status not in EXITS:
            self._told = monotonic()
            self._manner.note(f"session {status.session}: {counts(status)}")


class Block(Silent):
    """For a terminal."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def show(self, status: Status) -> None:
        self._status = status
        if self._live is None:
            self._first = monotonic(), status.steps
            self._live = lazy.live.block_on(sys.stderr, self._draw)
            self._live.start()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self) -> RenderableType:
        began, steps = self._first
        rate = (self._status.steps - steps) / max(monotonic() - began, 1e-6)
        return lazy.live.remote_block(self._status, rate)


def _shown(manner: Manner, progress: bool) -> Silent:
    if manner.json or not progress:
        return Silent()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Block()
    return Lines(manner)
