"""The owner of a session as a store has written it, read back.

Promise: it is what a store can have written, or `CheckpointCorrupt`, whatever was written since: not
another error, and no owner whose fields are not what they say. Not here: which process owns the session.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Line, Owner
from graflow_ckpt.links.processes import is_myself, named

_logger = logging.getLogger(__name__)

_FIELDS: Final = tuple(field.name for field in fields(Owner))
_RANKS: Final = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_PIDS: Final = range(1, 2**31)
_NUMBERS: Final = range(2**63)


def parsed(said: str | bytes, where: str) -> Any:
    """Return JSON, whatever it holds."""
    try:
        return json.loads(said)
    except (ValueError, RecursionError) as error:
        raise nonsense(where) from error


def owner_of(found: Any, where: str) -> Owner:
    """Return the owner that was written, as its JSON has held it."""
    try:
        owner = Owner(**{name: found[name] for name in _FIELDS})
    except (TypeError, LookupError) as error:
        raise nonsense(where) from error
    texts = (getattr(owner, name) for name in _FIELDS if name != "pid")
    if type(owner.pid) is not int or owner.pid not in _PIDS or not all(type(text) is str for text in texts):
        raise nonsense(where)
    return owner


def lines_of(found: Any, where: str) -> tuple[Line, ...]:
    """Return pairs of an epoch and a sequence, from lists or from a text."""
    try:
        lines = tuple(Line(number(epoch, where), number(sequence, where)) for epoch, sequence in found)
    except (TypeError, ValueError) as error:
        raise nonsense(where) from error
    return lines


def number(found: Any, where: str) -> int:
    """Return a count of this package: not negative, and of no size that nothing ever reaches."""
    try:
        count = int(found) if type(found) is not float else -1
    except (TypeError, ValueError) as error:
        raise nonsense(where) from error
    if count not in _NUMBERS or type(found) is bool:
        raise nonsense(where)
    return count


def nonsense(where: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"What is written of the owners of a session in {where} was not written by this package.",
        hint="Find out who else can write there. The checkpoints are not in it: each can still be looked at, "
        "and another session can be forked from it.",
        where=where,
    )


# --- what is said of them ------------------------------------------------------------------


def lost(session: str, epoch: int, found: int, owner: Owner | None) -> Fenced:
    """Return the error for a store that has another claim than that of this owner. `found`: its epoch."""
    if found > epoch:
        said = f"Session {session!r} was taken over by {named(owner)}."
    elif found == epoch:
        said = (
            f"Session {session!r} belongs to {named(owner)} under the same epoch, {epoch}: "
            "the store has forgotten this owner (a restored backup, a failover), and gave it out once more."
        )
        _logger.warning("a write was refused: %s", said, extra={"session": session})
    else:
        said = (
            f"The store has forgotten epoch {epoch} of session {session!r}, and knows {found} as the last: "
            "it is in an older state (a restored backup, a failover)."
        )
    hint = "Nothing that this process does counts any more; it should end."
    return Fenced(said, hint=hint, session=session, epoch=epoch, owner=owner)


def busy(session: str, owner: Owner | None) -> SessionBusy:
    if owner is not None and is_myself(owner):
        whom, hint = f"this process itself (since {owner.since})", "Leave or release it there first."
    else:
        whom, hint = named(owner), "Wait for it, end it, or take the session over (--take-over)."
    return SessionBusy(
        f"Session {session!r} is in use by {whom}.",
        hint=_rank_hint(session, [name for name in _RANKS if name in os.environ]) or hint,
        session=session,
        owner=owner,
    )


def no_take_over(session: str, url: str) -> SessionBusy:
    """Return the error of a store of files: its owners cannot be fenced, only ended, after a question."""
    command = f"graflow-ckpt resume {session} --take-over --store {shlex.quote(url)}"
    return SessionBusy(
        f"take_over=True is not possible for session {session!r}: in a folder an owner keeps it for life.",
        hint=f"End the owner, or run this command, which names it and asks first: {command}",
        session=session,
        owner=None,
    )


def _rank_hint(session: str, ranks: Sequence[str]) -> str:
    if not ranks and "WORLD_SIZE" not in os.environ:
        return ""
    name = ranks[0] if ranks else "RANK"
    rank = os.environ.get(name, "")
    example = f' (here "{session}-rank{rank}")' if rank else ""
    return (
        f"{name} is set, so this program seems to run once per rank: give each its own session, "
        f'session_id=f"{session}-rank{{r}}" with r from {name}{example}.'
    )


def released(session: str, epoch: int) -> Fenced:
    """Return what to raise where a lease is used after its release, or in a forked child."""
    return Fenced(
        f"Session {session!r} is not owned by this process (any more): the lease was released, "
        "or the process was forked from its owner.",
        hint="Acquire it first.",
        session=session,
        epoch=epoch,
    )


NO_MORE: Final = "Nothing more is written, because another process could own the session now."


def forgotten(server: str, session: str, epoch: int) -> Fenced:
    """Return what to raise where a server does not know the session of its owner."""
    return Fenced(
        f"{server} has forgotten session {session!r}: its data was lost, removed or replaced.",
        hint=NO_MORE,
        session=session,
        epoch=epoch,
    )
