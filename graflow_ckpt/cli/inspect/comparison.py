"""The work and the output of `checkpoints diff` and `bisect`, as text and as JSON.

Values are one short line each, rows of numbers as small pictures:

    0.91 → 0.95 (+4.4 %)      ▇▆▄▃▂▁▁      list of 3      'some text…'
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from graflow_ckpt.checkpoint.care.difference import (
    Bisected,
    Change,
    Difference,
    HeldValue,
    Holdings,
    Verdict,
    bisect,
    difference,
    holdings,
    inner,
)
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import path_of
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.conditions import Condition
from graflow_ckpt.core.errors import NoSession
from graflow_ckpt.core.redaction import HIDDEN, redacted
from graflow_ckpt.stores import open_store, open_store_of
from graflow_ckpt.stores.around.keys import Keyring

COLUMNS = ("name", "what", "before", "after", "change")
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def compared(store: str, before: str, after: str) -> Difference:
    """Compare two checkpoints, each by its path, or by a session: its newest good one."""
    return difference(_held(store, before), _held(store, after))


def _held(store: str, what: str) -> Holdings:
    path = path_of(store, what)
    place = open_store_of(path)
    return holdings(place, Keyring.reading(shared=place.shared), path)


# --- as text -----------------------------------------------------------------------------


def heads(found: Difference) -> Iterator[str]:
    for mark, side in (("a", found.before), ("b", found.after)):
        meta = side.found.metadata
        age = words.age(words.seconds_since(meta.created_at))
        yield f"{mark}  {side.found.path}"
        yield f"   session {meta.session_id} at step {meta.steps}, {meta.status}, {age} ago"


def rows(found: Difference) -> list[Sequence[str]]:
    """Return everything that differs, a line each."""
    code = [replace(change, before=None, after=None) for change in found.code]
    plain = (("", found.facts), ("task ", found.tasks), ("code of ", code),
             ("metadata ", redacted_changes(found.metadata)))  # fmt: skip
    made = [_row(one, _text(one.before), _text(one.after), prefix) for prefix, them in plain for one in them]
    for prefix, changes in (("", found.values), ("result of ", found.results)):
        for change in changes:
            made += [_held_row(change, prefix), *(_held_row(one, "  ") for one in _inside(change))]
    return made


def _row(change: Change, before: str, after: str, prefix: str, by: str = "") -> Sequence[str]:
    return (prefix + change.name, f"{_MARKS[change.what]} {change.what}", before, after, by)


def _held_row(change: Change, prefix: str) -> Sequence[str]:
    old: HeldValue | None = change.before
    new: HeldValue | None = change.after
    by = change_of(old, new) if old is not None and new is not None else ""
    return _row(change, _shown(change.name, old) or "", _shown(change.name, new) or "", prefix, by)


def _inside(change: Change) -> Iterable[Change]:
    """Return what has changed inside of a value, unless it is a secret."""
    return () if is_secret(change.name) else inner(change)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def redacted_changes(changes: Sequence[Change]) -> Iterator[Change]:
    """Yield changes of metadata without what looks like a secret."""
    for one in changes:
        before, after = (redacted({one.name: side})[one.name] for side in (one.before, one.after))
        yield Change(one.name, one.what, before, after)


# --- as JSON -----------------------------------------------------------------------------


def document(found: Difference) -> Document:
    return {
        "a": _side(found.before),
        "b": _side(found.after),
        "facts": [asdict(one) for one in found.facts],
        "tasks": [asdict(one) for one in found.tasks],
        "code": [{"name": one.name, "what": one.what} for one in found.code],
        "metadata": [asdict(one) for one in redacted_changes(found.metadata)],
        "values": [_values(one) for one in found.values],
        "results": [_values(one) for one in found.results],
        "same": list(found.same),
    }


def _side(side: Holdings) -> Document:
    meta = side.found.metadata
    return {
        "path": side.found.path, "checkpoint_id": meta.checkpoint_id, "session": meta.session_id,
        "steps": meta.steps, "status": meta.status, "created_at": meta.created_at,
    }  # fmt: skip


def _values(change: Change) -> Document:
    inside = [
        {"name": one.name, "what": one.what, "before": _shown(one.name, one.before),
         "after": _shown(one.name, one.after)} for one in _inside(change)
    ]  # fmt: skip
    return {
        "name": change.name, "what": change.what, "before": _value(change.name, change.before),
        "after": _value(change.name, change.after), "inside": inside,
    }  # fmt: skip


def _shown(name: str, held: HeldValue | None) -> str | None:
    return None if held is None else shown(name, held)


def _value(name: str, held: HeldValue | None) -> Document | None:
    """Return the value itself only where it is a number, or a text as it would be shown."""
    if held is None:
        return None
    kept = {"kind": held.kind, "plain": held.plain, "size": held.size, "digest": held.digest}
    return kept | {"shown": shown(name, held)}


_COLUMNS = ("path", "step", "verdict")


def search(
    manner: Manner, where: str, session: str, bad: Condition, *, everything: bool
) -> tuple[Bisected, Difference | None]:
    """Find the first bad one, and how it differs from the last good one."""
    place = open_store(where)
    keyring = Keyring.for_store(place)

    def seen(verdict: Verdict) -> None:
        if manner.watched:
            sys.stderr.write(f"step {verdict.steps}: {'bad' if verdict.bad else 'good'}\n")

    found = bisect(place, keyring, session, bad, everything=everything, seen=seen)
    if not found.cuts and not found.damaged:
        raise NoSession(f"Session {session} has no checkpoint in {where}.", session=session)
    if found.first_bad is None or found.last_good is None:
        return found, None
    sides = (holdings(place, keyring, verdict.path) for verdict in (found.last_good, found.first_bad))
    return found, difference(*sides)


def tell(manner: Manner, session: str, found: Bisected, between: Difference | None) -> None:
    verdicts = [(v.path, str(v.steps), "bad" if v.bad else "good") for v in found.looked_at]
    manner.table(_COLUMNS, verdicts, right=("step",))
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
        "first_bad": found.first_bad and asdict(found.first_bad),
        "last_good": found.last_good and asdict(found.last_good),
        "looked_at": [asdict(verdict) for verdict in found.looked_at],
        "damaged": [{"path": path, "why": str(error)} for path, error in found.damaged],
        "between": document(between) if between is not None else None,
    }


_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_TEXT = 40


def shown(name: str, held: HeldValue) -> str:
    """Return what a value is, or what it says if that is short."""
    if is_secret(name):
        return HIDDEN
    value = held.value
    if held.plain and isinstance(value, (bool, int, float, complex, type(None))):
        return _number(value) if isinstance(value, (int, float)) and type(value) is not bool else str(value)
    if held.plain and isinstance(value, str):
        text = repr(redacted(value))
        return text if len(text) <= _TEXT else f"{text[:_TEXT]}… ({len(value)} characters)"
    array = inert.array_of(value)
    if array is not None:
        flat = [float(item) for item in array.flat()] if array.count <= inert.ELEMENTS else None
        return f"array of {'×'.join(map(str, array.shape))} {_picture_of(flat)}".rstrip()
    row = numbers(value)
    if row is not None and len(row) > 1:
        return f"{held.kind} of {len(row)} {_picture_of(row)}"
    size = f" ({words.size(held.size)})" if held.size else ""
    if isinstance(value, (list, tuple, dict, set, frozenset, bytes)):
        return f"{held.kind} of {len(value)}{size}"
    return f"{held.kind}{size}"


def is_secret(name: str) -> bool:
    """Return True if its name, alone or inside of another value, is that of a secret."""
    last = name.rpartition(".")[2]
    return bool(redacted({last: "?"})[last] == HIDDEN)


def change_of(before: HeldValue, after: HeldValue) -> str:
    """Return by how much a number has changed; of arrays of the same shape the mean of what was added."""
    old, new = _one(before), _one(after)
    if old is None or new is None:
        grown = after.size - before.size
        return "" if not grown else f"{'+' if grown > 0 else '-'}{words.size(abs(grown))}"
    if not old or not math.isfinite(old) or not math.isfinite(new):
        return f"{_number(new - old)}" if new < old else f"+{_number(new - old)}"
    return f"{100 * (new - old) / abs(old):+.3g} %"


def numbers(value: Any) -> list[float] | None:
    """Return a row of numbers; None if it is anything else."""
    if type(value) not in (list, tuple) or not value:
        return None
    fit = all(type(item) in (int, float) and abs(item) < 1e300 for item in value if item == item)
    return [float(item) for item in value] if fit else None


def picture(row: Sequence[float] | None) -> str:
    """Draw bars between the lowest and the highest; of a long row each is the mean of several."""
    if not row:
        return ""
    step = max(1.0, len(row) / _WIDTH)
    edges = [round(i * step) for i in range(min(len(row), _WIDTH) + 1)]
    pieces = [[n for n in row[a:b] if math.isfinite(n)] for a, b in pairwise(edges)]
    means = [sum(piece) / len(piece) if piece else None for piece in pieces]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BARS[round((mean - low) * scale)] for mean in means)


def _picture_of(row: list[float] | None) -> str:
    if not row:
        return ""
    ends = f"{_number(row[0])} … {_number(row[-1])}" if row[0] != row[-1] else f"{_number(row[0])}"
    return f"{picture(row)} {ends}"


def _one(held: HeldValue) -> float | None:
    value = held.value
    return float(value) if held.plain and type(value) in (int, float) and abs(value) < 1e300 else None


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) and abs(value) < 10**9 else f"{float(value):.6g}"
