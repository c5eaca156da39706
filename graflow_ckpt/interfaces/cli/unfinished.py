"""Unfinished: a run without a session id mentions what of its workflow has been left lying."""

from __future__ import annotations

from collections.abc import Callable

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import Manner
from graflow_ckpt.interfaces.cli.overview import UNFINISHED, overview
from graflow_ckpt.interfaces.cli.tally import Tally


def mention(manner: Manner, session: str | None) -> Callable[[Tally], None]:
    """What a reporter calls when a new session starts."""

    def said(tally: Tally) -> None:
        if session is None:
            _say(manner, tally)

    return said


def _say(manner: Manner, tally: Tally) -> None:
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
