"""Take-over: the living owner of a session in a folder is ended, once the user has agreed to it.

Its lock cannot be taken from it, so it has to end: it gets SIGTERM, time to save, then SIGKILL. Refused for
what cannot be ended from here: this process, another host, container or user.
In all other stores a take-over ends no process: the store refuses what the former owner writes from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Owner
from graflow_ckpt.interfaces.cli.manner import Manner
from graflow_ckpt.links.processes import end, is_gone, is_myself, is_near, named, user_of
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.claims import busy
from graflow_ckpt.stores.prefixes import unwrapped

GRACE = 35.0
"""Seconds between SIGTERM and SIGKILL: a run has 30 by itself to end its tasks and to save."""


def is_of_files(store: CheckpointStore) -> bool:
    """Return True if the owners of sessions in that store cannot be fenced."""
    return unwrapped(store.url).startswith("file://")


def end_owner(
    manner: Manner, store: CheckpointStore, session: str, *, yes: bool, grace: float = GRACE
) -> None:
    """End the owner of a session, if there is one, and wait until the session is free."""
    owner = store.owner(session)
    if owner is None or is_gone(owner):  # a process that keeps its lock is named by `acquire`
        return
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
    if not end(owner, grace):
        raise SessionBusy(
            f"Session {session!r} is still in use: {named(owner)} has not ended.",
            hint="It may hang in a system call: look at it with ps, then run this command again.",
            session=session,
            owner=owner,
        )
    free = time.monotonic() + 5.0
    while store.owner(session) == owner and time.monotonic() < free:
        time.sleep(0.02)
    manner.note(f"process {owner.pid} has ended; session {session} is taken over")


def may_fence(
    manner: Manner, store: CheckpointStore, sessions: Iterable[str], *, take_over: bool, yes: bool
) -> bool:
    """Return the `take_over` that `acquire` is to be called with, after owners were ended where need be."""
    if not take_over or not is_of_files(store):
        return take_over
    for session in sessions:
        end_owner(manner, store, session, yes=yes)
    return False


def ended_at(manner: Manner, address: str, session: str, *, yes: bool) -> bool:
    """Do so where an address leads to files; False if the store there fences."""
    store = open_store(address)
    if not is_of_files(store):
        return False
    end_owner(manner, store, session, yes=yes)
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
