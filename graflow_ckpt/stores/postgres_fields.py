"""What a meta says of a checkpoint that rows in Postgres are listed by.

Promise: it can stand in a column, whatever the meta holds. Nobody believes it: what counts is sealed.
"""

from __future__ import annotations

import json

from graflow_ckpt.stores.postgres_names import session_of

_FIELD = 200  # characters of a field that is listed by


def field_in(raw: bytes, name: str) -> object:
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return meta.get(name) if isinstance(meta, dict) else None


def listed_by(value: object) -> str | None:
    """A field as it stands in its column; None if it can stand in none."""
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value[:_FIELD]


def fields_of(base: str, raw: bytes) -> list[str | None]:
    """Session, workflow and status; a session's own path is its own whatever the meta says."""
    try:
        meta = json.loads(raw.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError):
        meta = {}
    if not isinstance(meta, dict):
        meta = {}
    session = session_of(base) or listed_by(meta.get("session_id"))
    return [session, listed_by(meta.get("workflow")), listed_by(meta.get("status"))]
