"""A slice: what a worker does with a token.

    begin on the token -> open the program -> claim, run, commit + claim … -> retire the token

It ends when nothing is ready, when its time is over (other sessions wait behind it), when the worker
drains, or when the token is lost. RQ is told nothing but that the job is done: all that matters has
been committed. Nothing leaves `run_slice` but what ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any

from graflow_ckpt.checkpoint.seals import LIMIT, SealedCells
from graflow_ckpt.core import errors
from graflow_ckpt.core.events import Observer
from graflow_ckpt.engine.reaping import HELP_AFTER, Keeper, Kept, lasts
from graflow_ckpt.engine.run import Run
from graflow_ckpt.engine.shared import Part
from graflow_ckpt.engine.shared_home import SharedHome
from graflow_ckpt.fleet.deaths import FALLS, take
from graflow_ckpt.fleet.declining import NOTED, Declining, forget
from graflow_ckpt.fleet.lists import Presence
from graflow_ckpt.fleet.programs import Loaded, ProgramMissing, Programs, check_proof, missing
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.complaints import readable, translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.protocol import MadeSoFar
from graflow_ckpt.sessions.redis.keys import START, keys_of
from graflow_ckpt.sessions.redis.sender import PATIENCE, new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.stores.around.keys import Keyring

log = logging.getLogger("graflow_ckpt.fleet")

_FACTS = ("code", "starts", "store", "proof", "limit", FALLS, *NOTED)

CODE_PATIENCE = 60.0
"""Seconds for which a session waits for a worker that has its program, before it pauses."""


class Worker:
    """The worker of one process, which runs slices."""

    def __init__(
        self,
        link: RedisLink,
        carrier: Carrier,
        keyring: Keyring | None,
        *,
        owner: str,
        lease: float = 15.0,
        budget: float = 2.0,
        code_patience: float = CODE_PATIENCE,
    ) -> None:
        self.link = link
        self.carrier = carrier
        self.lease = lease
        self.budget = budget
        self.programs = Programs(link, keyring)
        self.keeper = Keeper(lease)
        self.draining = False
        self.worn = False  # a body that cannot be ended is still running here: the process should be replaced
        self.leaving = False  # what runs has been released: whatever the body says now does not count
        self.slice: Slice | None = None
        self.note: Callable[[str, str], None] = lambda session, token: None  # tells the parent what runs
        self.on_lost: Callable[[], None] = lambda: None
        self.presence = Presence(link, owner)
        self.declining = Declining(link, code_patience)
        self.observers: tuple[Observer, ...] = ()

    def run(self, session: str, token: str) -> None:
        """Run one slice; whatever happens in it is logged here and nowhere else."""
        facts = {"session": session, "token": token}
        self.note(session, token)
        try:
            self._run(session, token)
        except errors.SchemaUnsupported as error:  # its token stays, for a worker that knows its format
            self.declining.say(session, error)
        except (errors.Fenced, errors.NoSession) as error:
            log.info("slice %s of session %s: %s", token, session, error, extra=facts)
        except errors.GraflowError as error:
            log.warning("slice %s of session %s: %s", token, session, error, extra=facts)
        except BaseException as error:  # a worker's loop; RQ would take it for a failure of its own
            if not self.leaving:
                log.error("slice %s of session %s failed", token, session, extra=facts, exc_info=error)
        finally:
            self.keeper.forget()
            self.slice = None
            self.presence.end(session, token)
            self.note("", "")

    def _run(self, session: str, token: str) -> None:
        facts, reply = self._begin(session, token)
        if reply[0] in (b"gone", b"fenced"):
            if reply[0] == b"gone":
                log.info(
                    "token %s: session %s is gone", token, session, extra={"session": session, "token": token}
                )
            return
        with readable(session, self.link.address):
            cells = SealedCells(session, self.programs.keyring, int(facts[4] or LIMIT))
            queue, *began = reply[2].decode(), reply[3].decode(), *map(int, reply[4:])
        offer = partial(self.carrier.offer, session)
        mine = RedisSession(self.link, session, cells, token, *began, queue=queue, retires=True, post=offer)
        try:
            loaded = self._program(mine, facts, cells)
            if loaded is not None:
                program, store = loaded.parcel.program, facts[2].decode()
                home = SharedHome(self.link, session, cells, store, self.programs.keyring, program)
                self.slice = Slice(self, mine, loaded, home, cells)
                self.slice.run()
        finally:
            mine.close()

    def _begin(self, session: str, token: str) -> tuple[list[Any], list[Any]]:
        """Return the session's facts, and if the token counts; a server that is away is waited for."""
        prefix, nonce = keys_of(session), new_nonce()
        deadline = monotonic() + PATIENCE
        while True:
            try:
                with translated(self.link.address):
                    pipe = self.link.client.pipeline(transaction=False)
                    self.presence.begin(session, token, pipe)
                    listed, facts = pipe.hmget(f"{prefix}h", *_FACTS).execute(raise_on_error=False)
                    if isinstance(facts, Exception):
                        raise facts
                self.presence.noted(listed)
                # asked again by the same owner it answers the same, until the first commit
                args = (token, self.presence.owner, int(lasts(self.lease) * 1000), "", nonce)
                return facts, self.link.script(START)([f"{prefix}c"], args)
            except errors.ServerGone:
                if self.draining or monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _program(self, mine: RedisSession, facts: list[Any], cells: SealedCells) -> Loaded | None:
        """Return the program, or None: then the token has been left to others."""
        try:
            with readable(mine.id, self.link.address):
                digest, starts, store = (word.decode() for word in facts[:3])
                check_proof(cells, facts[3], digest, starts, store)
                start = tuple(json.loads(starts))
            if not self.programs.knows(digest, start):  # to import a module may take longer than a lease
                self.keeper.keep(Kept(mine, lambda news: None, lambda: None))
            loaded = mine.patiently(lambda: self.programs.load(digest, start, mine.id))
        except Exception as error:
            passing = isinstance(error, errors.ServerError | errors.NoSession)
            if passing and not isinstance(error, errors.KeyTaken):
                raise
            self.declining.decline(mine, error)
            return None
        if any(fact is not None for fact in facts[5:]):
            forget(self.link, mine.id, FALLS)
        return loaded

    def watched_by(self, on_lost: Callable[[], None], look: Callable[[], None]) -> None:
        """Set `on_lost`, for a token void while a body runs, and `look`, called many times a second."""
        self.on_lost = on_lost
        self.keeper.looks(look)

    def wears_out(self) -> None:
        """Note that a body that cannot be ended is still running here."""
        self.worn = True

    def leaves(self) -> None:
        """Note that what runs has been released, or is another's."""
        self.leaving = True

    def drain(self) -> None:
        """Finish the task that runs, and no other; callable from a signal handler."""
        self.draining = True
        if self.slice is not None:
            self.slice.part.inbox.stop()


class Slice:
    """One token's worth of work."""

    def __init__(
        self, worker: Worker, session: RedisSession, loaded: Loaded, home: SharedHome, cells: SealedCells
    ) -> None:
        self._worker = worker
        self._outside = RedisSession(worker.link, session.id, cells, post=session.post, patience=0.0)
        settings = loaded.settings
        if worker.observers:
            settings = replace(settings, observers=worker.observers)
        self._surroundings = Surroundings()
        self.part = Part(
            session, loaded.graph, loaded.bindings, settings, home, worker.keeper,
            slots=1, made=loaded.made, join=self._made_since, after_body=self._surroundings.put_back,
            on_lost=worker.on_lost,
        )  # fmt: skip

    def _made_since(self, made: MadeSoFar, own: Sequence[str]) -> None:
        """Add tasks that were made elsewhere: their modules may not be here."""
        try:
            self.part.host.made_since(made, own)
            self._surroundings.note()
        except (errors.ServerError, errors.SessionError):
            raise
        except (Exception, SystemExit) as error:  # what a module does when it is imported
            raise missing(self.part.run.settings.workflow, error) from error

    def run(self) -> None:
        """Run until there is nothing more to do here."""
        part, worker, run = self.part, self._worker, self.part.run
        part.session.claims_for(worker.budget, HELP_AFTER)
        if worker.draining:
            part.inbox.stop()
        # work waits while this worker is busy: another token, in a commit of no slice. The keeper has leases
        # to renew, so it waits for nothing
        part.keep(partial(self._outside.commit, [], mode="s"))
        try:
            with watched(run, part.home) if run.settings.observers else nullcontext():
                run.drive()
        except BaseException as error:
            if not self._settled(error):
                raise
        finally:
            worker.keeper.forget()
            if run.left_behind:
                worker.wears_out()
            self._surroundings.put_back()
            self._outside.close()
            part.leave()

    def _settled(self, error: BaseException) -> bool:
        """Report a failure that is no outcome, else what is held would fail again; True if it is settled."""
        session, worker, given_back = self.part.session, self._worker, self.part.given_back
        if (
            worker.leaving
            or isinstance(error, errors.Fenced | errors.NoSession | errors.ServerError)
            or session.broken is not None
        ):
            return False
        if isinstance(error, ProgramMissing):
            worker.declining.decline(session, error, given_back())
            return True
        if isinstance(error, errors.GraflowError):  # a checkpoint that had to be taken, for instance
            session.commit([*given_back(), ("status", "paused", str(error)), ("claim", 0)], mode="q")
            return False
        why = f"it raised {type(error).__name__}: {error}"  # SystemExit of a body, or a fault of ours
        if take(worker, session.id, session.token, why, forced=True, crashed=True):
            session.retire()
        return False


class Surroundings:
    """Working folder and environment of this process: what a task changes in them ends with it.

    What modules do when they are imported with their program stays. What is not seen: `os.putenv` and what
    libraries in C set for themselves.
    """

    def __init__(self) -> None:
        # as bytes, behind os.environ: to decode all variables takes longer than most tasks of a bag
        self._here: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self.note()

    def note(self) -> None:
        """Note what tasks find from here on."""
        self._variables = dict(self._here)
        self._folder = _folder()

    def put_back(self) -> None:
        """Restore environment and folder after each body."""
        if self._here != self._variables:
            for name in self._here.keys() - self._variables.keys():
                del os.environb[name]
            os.environb.update(self._variables)
        if _folder() != self._folder and self._folder is not None:
            try:
                os.chdir(self._folder)
            except OSError as error:
                log.warning("the working folder of this worker cannot be entered again: %s", error)


def _folder() -> bytes | None:
    try:
        return os.getcwdb()
    except FileNotFoundError:  # it was deleted
        return None


# --- the process --------------------------------------------------------------------------

_worker: Worker | None = None


def serve(worker: Worker) -> None:
    """Run slices with `worker` in this process from now on."""
    global _worker
    _worker = worker


def run_slice(session: str, token: str) -> None:
    """Run a slice; an RQ job calls this."""
    if _worker is None:
        raise errors.ServerGone(
            "This RQ worker was not started by graflow-ckpt.", hint="Start it with: graflow-ckpt worker."
        )
    _worker.run(session, token)


# --- observers ------------------------------------------------------------------------------


def observers_of(makers: Iterable[str]) -> Iterator[Observer]:
    """Make a worker's own observers, which are told of each of its slices; a program's stay in its process.

    `makers` is what `--observers` names: a function without parameters, or a class, `MODULE:NAME`. It is
    called once in each worker, so that whatever it starts is there. One that cannot be made or fails costs
    the tasks nothing.
    """
    for name in makers:
        try:
            yield maker_of(name)()
        except Exception:
            log.exception("the observer %s could not be made; nothing is told to it here", name)


def maker_of(name: str) -> Callable[[], Observer]:
    """Return what `MODULE:NAME` means."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[[], Observer] = getattr(import_module(module), attribute)
    except errors.PackageMissing:
        raise
    except (ImportError, AttributeError) as error:
        raise errors.GraflowError(
            f"The observer {name!r} cannot be had: {error}.", hint="Check --observers and PYTHONPATH."
        ) from error
    return found


@contextmanager
def watched(run: Run, home: SharedHome) -> Iterator[None]:
    """Show observers the slice that runs inside.

    Promise: to an observer a slice is an execution, from `session_started` to `session_ended`, whose status
    is that of the session then: `running` if others continue. A tracer's spans are linked to the session's
    trace.
    """
    home.trace.follow(run.settings.observers)
    if home.trace.traces:
        home.join_trace()
    run.announcer.emit(
        "session_started", workflow=run.settings.workflow, resumed=True, path=None, replayed=0, completed=0,
        pending=run.session.pending, max_steps=None, kept=True, store=home.facts.link.address,
        trace_context=home.trace.former, original_trace_id=home.trace.original,
    )  # fmt: skip
    if home.trace.traces and home.trace.former is None:  # no submitter of it traces: it begins here
        home.keep_trace(first=True)
    status = "broken"
    try:
        yield
        status = run.session.status
    finally:
        run.announcer.emit("session_ended", status=status, reason="")
