"""Names of checkpoints: what a store knows from the last piece of a path.

    session_{id}_step_{n}_{time}-{sequence}      a session's own
    anything else                                a name that a user has given

Either may be followed by the suffix of one of the three parts, and means the same. Not here: what
comes before the name; each kind of store has its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.links.addresses import masked

META = "meta.json"
PARTS = ("pkl", "state.json", META)

_OWN = re.compile(r"session_(?P<session>[A-Za-z0-9_-]{1,64})_step_\d+_\d+-\d+\Z")
_document = json.JSONDecoder().decode
_CONTENT = re.compile(r"[0-9a-f]{64}\Z")
_SUFFIXES = tuple(f".{part}" for part in PARTS)


def without_scheme(path: str) -> str:
    """Return the path of a file or a folder that may be written as file://PATH."""
    return path[7:] if path[:7].lower() == "file://" else path


def base_of(name: str) -> str:
    """Return the name without the suffix of a part."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


@lru_cache(64)  # a save asks for its own name several times
def session_of(base: str) -> str | None:
    """Return the session whose own checkpoint is called like that."""
    own = _OWN.match(base)
    return own["session"] if own else None


def path_of(folder: str, base: str) -> str:
    """Return the path as it is listed: a session's own with the suffix that the session gave it."""
    return f"{folder}/{base}.pkl" if session_of(base) else f"{folder}/{base}"


def check_own(path: str, its: str | None, mine: str) -> None:
    """Refuse a session `mine` that may not write there; `its`: the session whose own name it is."""
    if its not in (None, mine):
        path = masked(path)
        raise errors.CheckpointError(
            f"{path} is the name of a checkpoint of session {its!r}.",
            hint="Give it another name.",
            path=path,
            session=mine,
        )


def is_text(name: str) -> bool:
    """Return whether a database can hold it: a name from the file system may have bytes that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def session_in(meta: bytes | bytearray) -> object:
    """Return the session that a meta names. None if it names none, or is damaged."""
    return facts_in(meta).get("session_id")


def stage_in(meta: bytes) -> object:
    """Return the stage that a meta names. None if it names none, or is damaged."""
    return facts_in(meta).get("stage")


# Any: what JSON can hold.
def facts_in(meta: bytes | bytearray) -> dict[str, Any]:
    """Return what a meta claims, not verified; nothing, if it is damaged."""
    return document_in(meta) or {}


def document_in(meta: bytes | bytearray) -> dict[str, Any] | None:
    """Return the same; None if it is damaged."""
    try:
        found = _document(meta.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_content(name: object) -> bool:
    """Return whether it is what a content can be called."""
    return isinstance(name, str) and _CONTENT.match(name) is not None


def contents_in(meta: bytes) -> tuple[str, ...]:
    """Return the contents that a meta says its checkpoint holds, each name once, as they are read."""
    if b'"contents"' not in meta:
        return ()
    try:
        found = json.loads(meta)
        return tuple(dict.fromkeys(str(entry["name"]) for entry in found.get("contents", ())))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return ()  # damaged: they cannot be read by it


def gone(path: str, names: Collection[str]) -> errors.CheckpointError:
    """Return the error for a meta that names contents that the store does not have."""
    return errors.CheckpointError(
        f"The checkpoint {path} was not written: {len(names)} of its contents are not in this store.",
        hint="They were swept while it was written, or it was copied without them: save it again.",
        path=path,
        contents=tuple(sorted(names))[:3],
    )


def replaced(path: str) -> errors.CheckpointError:
    """Return the error for a meta put alone over another stage: with that meta nothing would fit."""
    return errors.CheckpointError(
        f"The metadata of {path} were not written: another checkpoint has taken its place.",
        hint="Look at it again.",
        path=path,
    )


def check_parts(parts: list[str]) -> None:
    """Refuse what is not some of the three, each once, and meta the last."""
    if not parts or parts[-1] != META or not set(parts) <= set(PARTS) or len(set(parts)) < len(parts):
        raise ValueError(f"parts are some of {PARTS}, {META} last; not {parts}")


def elsewhere(path: str, folder: str) -> errors.CheckpointError:
    """Return what to raise for a path that leads to no checkpoint of the store."""
    return errors.CheckpointError(
        f"{masked(path)} is not in {folder}, or names no checkpoint.",
        hint=f"Its checkpoints are called {folder}/NAME.",
        path=masked(path),
    )


def not_found(path: str) -> errors.CheckpointNotFound:
    return errors.CheckpointNotFound(
        f"Checkpoint {path} not found. It may have expired or been deleted.", path=path
    )


def not_its(path: str, part: str) -> errors.CheckpointCorrupt:
    """Return what to raise where a part is of another stage than the meta that was read."""
    return errors.CheckpointCorrupt(
        f"The checkpoint {path} has no {part} that belongs to its meta.",
        hint="It was written anew meanwhile, or by something else.",
        path=path,
        part=part,
    )


def holds_none(path: str, name: str, why: str = "") -> errors.CheckpointCorrupt:
    """Return what to raise where a checkpoint does not hold a content."""
    return errors.CheckpointCorrupt(
        f"The checkpoint {path} holds no content {name[:64]}.",
        hint=f"It was written anew meanwhile, or by something else{why}.",
        path=path,
        part=name[:64],
    )


def lacks(path: str, what: str, why: str) -> errors.CheckpointCorrupt:
    """Return what to raise where bytes are gone that a reader was on its way to."""
    hint = f"It was written anew or deleted meanwhile, or {why}."
    return errors.CheckpointCorrupt(f"The checkpoint {path} lacks {what}.", hint=hint, path=path)


def unconfirmed(path: str, error: errors.ServerGone) -> errors.SaveOutcomeUnknown:
    """Return what to raise where the reply to a commit was lost for good."""
    return errors.SaveOutcomeUnknown(
        f"The checkpoint {path} was sent, but not confirmed: {error.message}",
        hint="It is there or its predecessor is. Look when the server is back.",
        path=path,
    )


class Collected:
    """A sink that keeps what was written: copies, for the writer may use its buffer again."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Buffer, /) -> int:
        with memoryview(data) as given, given.cast("B") as view:
            self.data += view
            return len(view)


def unwritten(path: str, error: errors.ServerError) -> errors.CheckpointError:
    """Return what to raise where the server has refused a save."""
    return errors.CheckpointError(
        f"Cannot write the checkpoint {masked(path)}: {error.message}",
        hint=error.hint,
        **error.ids | {"path": masked(path)},
    )
