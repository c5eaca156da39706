"""What a store has written of who owns a session, read back.

Promise: it is what a store can have written, or `CheckpointCorrupt`, whoever has been there since: not
another error, and no owner whose fields are something else than they say. Not here: whose the session is.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Line, Owner

_FIELDS: Final = tuple(field.name for field in fields(Owner))
_PIDS: Final = range(1, 2**31)
_NUMBERS: Final = range(2**63)


def parsed(said: str | bytes, where: str) -> Any:
    """JSON, whatever it holds."""
    try:
        return json.loads(said)
    except (ValueError, RecursionError) as error:
        raise nonsense(where) from error


def owner_in(said: str | bytes | None, where: str) -> Owner | None:
    """The owner that was written as JSON; None if nobody was."""
    return owner_of(parsed(said, where), where) if said else None


def owner_of(found: Any, where: str) -> Owner:
    """The same of what the JSON has held."""
    try:
        owner = Owner(**{name: found[name] for name in _FIELDS})
    except (TypeError, LookupError) as error:
        raise nonsense(where) from error
    texts = (getattr(owner, name) for name in _FIELDS if name != "pid")
    if type(owner.pid) is not int or owner.pid not in _PIDS or not all(type(text) is str for text in texts):
        raise nonsense(where)
    return owner


def lines_of(found: Any, where: str) -> tuple[Line, ...]:
    """Pairs of an epoch and a sequence, as lists or from a text."""
    try:
        lines = tuple(Line(number(epoch, where), number(sequence, where)) for epoch, sequence in found)
    except (TypeError, ValueError) as error:
        raise nonsense(where) from error
    return lines


def number(found: Any, where: str) -> int:
    """A count of this package: not negative, and of no size that nothing ever reaches."""
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
