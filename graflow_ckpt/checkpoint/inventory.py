"""The inventory of a store: what its checkpoints say of themselves, unverified. No pickle is opened.

Good for counting, for listing and for saying which ones are too many; before something is deleted
for that, pruning.py verifies what is to be kept instead. What cannot be read is counted, and left
to those who repair.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from graflow_ckpt.checkpoint.model import NOT_JSON, lacking, size_of
from graflow_ckpt.checkpoint.retention import Cut
from graflow_ckpt.checkpoint.rewinds import lines_in
from graflow_ckpt.checkpoint.sizes import bytes_of, shared_in
from graflow_ckpt.core.errors import BadSessionId
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Contents, Readable

UNREADABLE = "unreadable"
"""The status of a checkpoint whose meta is damaged."""

COUNTS = range(2**63)
"""What epochs and sequences can be: nothing has ever been counted further."""

_OWN_NAME = re.compile(r"session_([A-Za-z0-9_-]{1,64})_step_\d+_\d+-\d+(?:\.pkl)?\Z")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a store has. Of the `unreadable` only the path is known, and the session if that names it."""

    cuts: tuple[Cut, ...]
    unreadable: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        return bytes_of(self.cuts)


def inventory(store: Readable, session: str | None = None) -> Inventory:
    """Of the whole store, or of one session."""
    cuts: list[Cut] = []
    unreadable: list[Cut] = []
    for path, raw in store.list(session):
        cut = cut_of(path, raw, store.contents)
        if cut is None:
            named = _OWN_NAME.match(os.path.basename(path))
            unreadable.append(
                Cut(
                    path, named[1] if named else "", status=UNREADABLE, cause="", size=len(raw),
                    lacks=_lacking(raw),
                )
            )  # fmt: skip
        elif session in (None, cut.session):  # else a copy of another one's, under this one's name
            cuts.append(cut)
    return Inventory(tuple(cuts), tuple(unreadable))


def cut_of(path: str, raw: bytes, place: Contents | None = None) -> Cut | None:
    """What a meta says; None if it cannot be read. `place`: where that checkpoint has its contents."""
    try:
        meta = json.loads(raw)
        if not isinstance(meta, dict):
            return None
        held = meta.get("contents")
        scope = place.scope(path) if held and place is not None else ""
        return Cut(
            path=path,
            session=check_session_id(meta["session_id"]),
            workflow=_text(meta.get("workflow")),
            id=_text(meta.get("checkpoint_id")),
            epoch=_whole(meta["epoch"]),
            sequence=_whole(meta["sequence"]),
            created=seconds(meta.get("created_at")),
            status=_text(meta.get("status")),
            cause=_text(meta.get("cause")),
            size=len(raw) + size_of(meta.get("parts")),
            shared=shared_in(held, scope),
            metrics=_numbers(meta.get("user_metadata")),
            parent=_text(meta.get("parent")) or None,
            origin=_text(meta.get("origin")) or None,
            lacks=lacking(meta),
            rewinds=lines_in(meta),
            run=_whole(meta.get("run", 1)),
        )
    except (*NOT_JSON, KeyError, TypeError, AttributeError, OverflowError, BadSessionId):
        return None


def _lacking(raw: bytes) -> tuple[str, ...]:
    """Of a meta that says nothing else: it may be of a later version."""
    try:
        meta = json.loads(raw)
    except NOT_JSON:
        return ()
    return lacking(meta) if isinstance(meta, dict) and "schema_version" in meta else ()


def seconds(created_at: object) -> float:
    """A time as metadata have it, as Unix time; what is no time counts as new."""
    try:
        made = datetime.fromisoformat(str(created_at))
        return (made if made.tzinfo is not None else made.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return float("inf")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int:
    if type(value) is not int or value not in COUNTS:
        raise TypeError(value)
    return value


def _numbers(user: object) -> Mapping[str, float]:
    """Booleans are no numbers here, and what is no number cannot be compared with one."""
    if not isinstance(user, dict):
        return {}
    return {
        name: value
        for name, value in user.items()
        if type(value) in (int, float) and value == value  # NaN is not
    }
