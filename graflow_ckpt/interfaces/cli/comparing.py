"""What `checkpoints diff` and `bisect` do and show, for people and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from graflow_ckpt.checkpoint.bisecting import Bisected, Verdict, bisect
from graflow_ckpt.checkpoint.difference import Change, Difference, difference, inner
from graflow_ckpt.checkpoint.holdings import Held, Holdings, holdings
from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.core.conditions import Condition
from graflow_ckpt.core.errors import NoSession
from graflow_ckpt.core.redaction import redacted
from graflow_ckpt.interfaces.cli import drawing, words
from graflow_ckpt.interfaces.cli.finding import by_session, checkpoint_path
from graflow_ckpt.interfaces.cli.manner import Document, Manner
from graflow_ckpt.stores import open_store, open_store_of

COLUMNS = ("name", "what", "before", "after", "change")
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def compared(store: str, before: str, after: str) -> Difference:
    """Each is the path of a checkpoint, or a session: its newest good one."""
    return difference(_held(store, before), _held(store, after))


def _held(store: str, what: str) -> Holdings:
    path = checkpoint_path(what) or by_session(store, what).found.path
    place = open_store_of(path)
    return holdings(place, Keyring.reading(shared=place.shared), path)


# --- for people --------------------------------------------------------------------------


def heads(found: Difference) -> Iterator[str]:
    for mark, side in (("a", found.before), ("b", found.after)):
        meta = side.found.metadata
        age = words.age(words.seconds_since(meta.created_at))
        yield f"{mark}  {side.found.path}"
        yield f"   session {meta.session_id} at step {meta.steps}, {meta.status}, {age} ago"


def rows(found: Difference) -> list[Sequence[str]]:
    """Everything that differs, a line each."""
    made: list[Sequence[str]] = []
    for change in found.facts:
        made.append(_row(change, _text(change.before), _text(change.after)))
    for change in found.tasks:
        made.append(_row(change, _text(change.before), _text(change.after), "task "))
    for change in found.code:
        made.append(_row(change, "", "", "code of "))
    for change in redacted_changes(found.metadata):
        made.append(_row(change, _text(change.before), _text(change.after), "metadata "))
    for change in found.values:
        made += _held_rows(change, "")
    for change in found.results:
        made += _held_rows(change, "result of ")
    return made


def _row(change: Change, before: str, after: str, prefix: str = "", by: str = "") -> Sequence[str]:
    return (prefix + change.name, f"{_MARKS[change.what]} {change.what}", before, after, by)


def _held_rows(change: Change, prefix: str) -> Iterator[Sequence[str]]:
    yield _held_row(change, prefix)
    if drawing.is_secret(change.name):
        return
    for one in inner(change):
        yield _held_row(one, "  ")


def _held_row(change: Change, prefix: str) -> Sequence[str]:
    old: Held | None = change.before
    new: Held | None = change.after
    before = drawing.shown(change.name, old) if old is not None else ""
    after = drawing.shown(change.name, new) if new is not None else ""
    by = drawing.change(old, new) if old is not None and new is not None else ""
    return _row(change, before, after, prefix, by)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def redacted_changes(changes: Sequence[Change]) -> Iterator[Change]:
    """Metadata without what looks like a secret."""
    for one in changes:
        before, after = (redacted({one.name: side})[one.name] for side in (one.before, one.after))
        yield Change(one.name, one.what, before, after)


# --- as JSON -----------------------------------------------------------------------------


def document(found: Difference) -> Document:
    return {
        "a": _side(found.before),
        "b": _side(found.after),
        "facts": _plain(found.facts),
        "tasks": _plain(found.tasks),
        "code": [{"name": one.name, "what": one.what} for one in found.code],
        "metadata": _plain(list(redacted_changes(found.metadata))),
        "values": [_values(one) for one in found.values],
        "results": [_values(one) for one in found.results],
        "same": list(found.same),
    }


def _side(side: Holdings) -> Document:
    meta = side.found.metadata
    return {
        "path": side.found.path,
        "checkpoint_id": meta.checkpoint_id,
        "session": meta.session_id,
        "steps": meta.steps,
        "status": meta.status,
        "created_at": meta.created_at,
    }


def _plain(changes: Sequence[Change]) -> list[Document]:
    return [{"name": one.name, "what": one.what, "before": one.before, "after": one.after} for one in changes]


def _values(change: Change) -> Document:
    sides = {"before": change.before, "after": change.after}
    told: Document = {"name": change.name, "what": change.what}
    for side, held in sides.items():
        told[side] = None if held is None else _value(change.name, held)
    told["inside"] = (
        []
        if drawing.is_secret(change.name)
        else [
            {
                "name": one.name,
                "what": one.what,
                "before": _shown(one, "before"),
                "after": _shown(one, "after"),
            }
            for one in inner(change)
        ]
    )
    return told


def _shown(change: Change, side: str) -> str | None:
    held = getattr(change, side)
    return None if held is None else drawing.shown(change.name, held)


def _value(name: str, held: Held) -> Document:
    """The value itself only where it is a number, or a text as it would be shown."""
    kept = {"kind": held.kind, "plain": held.plain, "size": held.size, "digest": held.digest}
    return kept | {"shown": drawing.shown(name, held)}


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
    manner.table(_COLUMNS, [_verdict_row(verdict) for verdict in found.looked_at], right=("step",))
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


def bisected_document(session: str, expression: str, found: Bisected, between: Difference | None) -> Document:
    return {
        "session": session,
        "bad": expression,
        "checkpoints": found.cuts,
        "first_bad": _verdict(found.first_bad),
        "last_good": _verdict(found.last_good),
        "looked_at": [asdict(verdict) for verdict in found.looked_at],
        "damaged": [{"path": path, "why": str(error)} for path, error in found.damaged],
        "between": document(between) if between is not None else None,
    }


def _verdict(verdict: Verdict | None) -> Any:  # JSON
    return None if verdict is None else asdict(verdict)


def _verdict_row(verdict: Verdict) -> Sequence[str]:
    return verdict.path, str(verdict.steps), "bad" if verdict.bad else "good"
