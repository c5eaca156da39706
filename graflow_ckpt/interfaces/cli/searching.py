"""What `checkpoints bisect` does and says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from graflow_ckpt.checkpoint.bisecting import Bisected, Verdict, bisect
from graflow_ckpt.checkpoint.difference import Difference, difference
from graflow_ckpt.checkpoint.holdings import holdings
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.core.conditions import Condition
from graflow_ckpt.core.errors import NoSession
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.comparing import COLUMNS, rows
from graflow_ckpt.interfaces.cli.comparing import document as difference_document
from graflow_ckpt.interfaces.cli.manner import Document, Manner
from graflow_ckpt.stores import open_store

_COLUMNS = ("path", "step", "verdict")


def search(
    where: str, session: str, bad: Condition, *, everything: bool, watched: bool
) -> tuple[Bisected, Difference | None]:
    """The first bad one, and how it differs from the last good one."""
    place = open_store(where)
    keyring = Keyring.for_store(place)

    def seen(verdict: Verdict) -> None:
        if watched and sys.stderr.isatty():
            sys.stderr.write(f"step {verdict.steps}: {'bad' if verdict.bad else 'good'}\n")

    found = bisect(place, keyring, session, bad, everything=everything, seen=seen)
    if not found.cuts and not found.damaged:
        raise NoSession(f"Session {session} has no checkpoint in {where}.", session=session)
    if found.first_bad is None or found.last_good is None:
        return found, None
    sides = (holdings(place, keyring, verdict.path) for verdict in (found.last_good, found.first_bad))
    return found, difference(*sides)


def tell(manner: Manner, session: str, found: Bisected, between: Difference | None) -> None:
    manner.table(_COLUMNS, [_row(verdict) for verdict in found.looked_at], right=("step",))
    for path, error in found.damaged:
        manner.note(f"{path} was not looked at: {error.message}")
    looked = f"{len(found.looked_at)} of {words.counted(found.cuts, 'checkpoint')} looked at"
    if found.first_bad is None:
        manner.note(f"none of session {session} is bad ({looked})")
        return
    manner.say(f"first bad  {found.first_bad.path}")
    if found.last_good is None or between is None:
        manner.note(f"all are bad ({looked})")
        return
    manner.say(f"last good  {found.last_good.path}")
    manner.table(COLUMNS, rows(between))
    steps = found.first_bad.steps - found.last_good.steps
    manner.note(f"{words.counted(steps, 'step')} between them ({looked})")


def document(session: str, expression: str, found: Bisected, between: Difference | None) -> Document:
    return {
        "session": session,
        "bad": expression,
        "checkpoints": found.cuts,
        "first_bad": _verdict(found.first_bad),
        "last_good": _verdict(found.last_good),
        "looked_at": [asdict(verdict) for verdict in found.looked_at],
        "damaged": [{"path": path, "why": str(error)} for path, error in found.damaged],
        "between": difference_document(between) if between is not None else None,
    }


def _verdict(verdict: Verdict | None) -> Any:  # JSON
    return None if verdict is None else asdict(verdict)


def _row(verdict: Verdict) -> Sequence[str]:
    return verdict.path, str(verdict.steps), "bad" if verdict.bad else "good"
