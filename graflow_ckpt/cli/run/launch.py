"""Launch: a program is run with what the command line says about it, and its end becomes a status."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import click

from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import UNFINISHED, overview
from graflow_ckpt.cli.progress import Reporter, Tally, reporter_for
from graflow_ckpt.cli.run import program
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import GraflowError, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Owner
from graflow_ckpt.frontends.overrides import overrides
from graflow_ckpt.links.processes import end, is_gone, is_myself, is_near, named, user_of
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.owners import busy
from graflow_ckpt.stores.prefixes import unwrapped

UNSAVED = 74
"""The exit status (EX_IOERR) of a run that did all its work, and whose end could not be saved."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options typed for a run. Where a field is None, or a setting is not there, the program decides."""

    session: str | None = None
    workflow: str | None = None  # the one that the session belongs to
    store: str | None = None
    here: bool = False  # begin again what the program has begun in another place
    max_steps: int | None = None
    inputs: dict[str, Any] = field(default_factory=dict)  # Any: JSON
    settings: dict[str, Any] = field(default_factory=dict)  # fields of Settings
    yes: bool = False
    log_level: str | None = None
    progress: bool = True

    @classmethod
    def typed(cls, *, again: bool = False, **options: Any) -> Wishes:
        """Return the options of a command: those named above, and settings, as far as they were typed."""
        own = {one.name: options.pop(one.name) for one in fields(cls) if one.name in options}
        settings = {name: value for name, value in options.items() if value}
        if settings.get("durability") == "none" and "policy" in settings:
            raise click.UsageError("--every does nothing with --durability none.")
        return cls(**own, settings=settings | ({"on_finished": "again"} if again else {}))

    def options(self) -> dict[str, str]:
        """Return what a resume does not find in the program, and has to know."""
        durability, policy = self.settings.get("durability"), self.settings.get("policy")
        options = {"durability": durability} if durability is not None else {}
        return options if policy is None else {**options, "every": words.policy_text(policy)}

    def remembering(self, options: dict[str, str]) -> Wishes:
        """Return wishes with what was said when the session was started, where nothing else is said now."""
        policy = words.policy_of(options.get("every", "").split())
        former = {"durability": options.get("durability"), "policy": policy}
        return replace(self, settings={name: it for name, it in former.items() if it} | self.settings)


def launch(
    manner: Manner, wishes: Wishes, target: str, arguments: Sequence[str], called: str | None = None
) -> int:
    """Run a program; the exit status."""
    return conducted(manner, wishes, lambda: program.run(target, arguments, called), what=target)


def conducted(manner: Manner, wishes: Wishes, body: Callable[[], object], *, what: str) -> int:
    """Run a body that executes a workflow, show what happens, and report its end."""
    if manner.json:
        _set_documents_apart(manner)
    tell = partial(_mention, manner) if wishes.session is None else lambda tally: None
    reporter = reporter_for(manner, tell, progress=wishes.progress)
    if wishes.log_level:
        _show_log(wishes.log_level)
    sandbox = program.Sandbox()
    settings = {**wishes.settings, "told": True, "options": tuple(wishes.options().items())}
    with overrides.for_one_program(
        session=wishes.session, target=wishes.workflow, store=wishes.store, here=wishes.here,
        inputs=wishes.inputs, max_steps=wishes.max_steps, settings=settings, observers=(reporter,),
        take_over=partial(_freed, manner, wishes, reporter),
    ):  # fmt: skip
        try:
            with sandbox:
                body()
        finally:
            reporter.close()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        return _concluded(manner, reporter, sandbox, what, wishes.workflow)


def _concluded(
    manner: Manner, reporter: Reporter, sandbox: program.Sandbox, what: str, workflow: str | None
) -> int:
    tallies = list(reporter.tallies.values())
    status = sandbox.status or 0
    if sandbox.status is None and not tallies and workflow is not None:
        manner.note(f"{what} did not execute workflow {workflow!r}: nothing of the session was run.")
        status = 1
    elif sandbox.status is None and not tallies and not overrides.executed:
        manner.note(f"{what} executed no workflow. Call its execute(), or: graflow-ckpt run MODULE:WORKFLOW")
        status = 2
    for tally in tallies:
        if status == 0 and tally.unsaved:
            manner.note(
                f"session {tally.session} ended, and its end could not be saved: {tally.unsaved} "
                "Run the same command again when the store can be written."
            )
            status = UNSAVED
    if manner.json:
        error = sandbox.error
        failure = {} if error is None else {"error": type(error).__name__, "message": str(error)}
        sessions = [tally.document() for tally in tallies]
        manner.document({"event": "exit", "code": status, **failure, "sessions": sessions})
    return status


def _mention(manner: Manner, tally: Tally) -> None:
    """Say which session of the workflow could continue, where a new one starts."""
    try:
        found = [
            row
            for row in overview(tally.store)
            if row.workflow == tally.workflow and row.session != tally.session and row.status in UNFINISHED
        ]
    except GraflowError:
        return  # the run itself will say what is wrong with the store, if it needs it
    if found:
        newest = found[0]
        more = f" (and {len(found) - 1} more: graflow-ckpt sessions)" if len(found) > 1 else ""
        manner.note(
            f"session {newest.session} of {tally.workflow} is {newest.status} at step {newest.steps}{more}; "
            f"to go on with it: {words.resume_command(newest.session, tally.store)}"
        )


def _set_documents_apart(manner: Manner) -> None:
    """Lead what the program prints to stderr from here on: with --json stdout has documents only."""
    sys.stdout.flush()
    manner.documents = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # to the end of the process
    os.dup2(2, 1)  # of the process, so that children and C code are led there, too


def _show_log(level: str) -> None:
    """Show the log of the engine on what stderr is by now: the door of a live block leads above it."""
    logger = logging.getLogger("graflow_ckpt")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else a program that configures logging itself shows each line twice


# --- taking a session over -----------------------------------------------------------------

GRACE = 35.0
"""Seconds between SIGTERM and SIGKILL: a run has 30 by itself to end its tasks and to save."""


def is_of_files(store: CheckpointStore) -> bool:
    """Return True if the owners of sessions in that store cannot be fenced."""
    return unwrapped(store.url).startswith("file://")


def end_owner(manner: Manner, store: CheckpointStore, session: str, *, yes: bool) -> str:
    """End the owner of a session in a folder, and wait until the session is free.

    Return what is true as soon as this process has the session; "" if it had no owner. An owner's lock cannot
    be taken from it, so it has to end, once the user has agreed to it: it gets SIGTERM, time to save, then
    SIGKILL. Refused for what cannot be ended from here: this process, another host, container or user. In all
    other stores a take-over ends no process: the store refuses what the former owner writes from then on.
    """
    owner = store.owner(session)
    if owner is None or is_gone(owner):  # a process that keeps its lock is named by `acquire`
        return ""
    if is_myself(owner):
        raise busy(session, owner)
    if (why := _out_of_reach(owner)) is not None:
        raise SessionBusy(
            f"Session {session!r} is in use by {named(owner)}, which cannot be ended from here: {why}.",
            hint="End it there, then run this command again.",
            session=session,
            owner=owner,
        )
    if not yes:
        manner.ask(f"Session {session} is in use by {named(owner)}. End that process?")
    manner.note(f"process {owner.pid} is asked to end; it has {GRACE:g} s to save")
    if not end(owner, GRACE):
        raise SessionBusy(
            f"Session {session!r} is still in use: {named(owner)} has not ended.",
            hint="It may hang in a system call: look at it with ps, then run this command again.",
            session=session,
            owner=owner,
        )
    free = time.monotonic() + 5.0
    while store.owner(session) == owner and time.monotonic() < free:
        time.sleep(0.02)
    manner.note(f"process {owner.pid} has ended")
    return f"session {session} is taken over from process {owner.pid}"


def _freed(manner: Manner, wishes: Wishes, reporter: Reporter, where: str, session: str) -> bool:
    """End the owner of a session; False if the store can fence it instead."""
    store = open_store(where)
    if not is_of_files(store):
        return False
    reporter.taken[session] = end_owner(manner, store, session, yes=wishes.yes)
    return True


def _out_of_reach(owner: Owner) -> str | None:
    if not is_near(owner):
        return "it runs on another host or in another container, or this machine has been restarted since"
    user = user_of(owner)
    if user is not None and os.geteuid() not in (0, user):
        return f"it belongs to user {user}"
    if user is None and not is_gone(owner):
        return "it belongs to another user"
    return None
