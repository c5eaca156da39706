"""What `checkpoints show` and `trust` show of one checkpoint: everything but values."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.model import Document, parse
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.redaction import redacted, redacted_argv
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.finding import by_session, checkpoint_path, no_checkpoint
from graflow_ckpt.stores import open_store_of

_LISTED = 12  # tasks, before it becomes a number


def describe(what: str, store: str | None = None) -> Document:
    """Metadata and control facts; whether they verify is in `verdict` and `why`. `what`: a path, or a session
    of the store, if one is given: its newest good checkpoint."""
    path = checkpoint_path(what)
    if path is None and store is not None and os.sep not in what and not what.endswith(".pkl"):
        path = by_session(store, what).found.path
    if path is None:
        raise no_checkpoint(what)
    place = open_store_of(path)
    raw = place.meta(path)
    meta = parse(path, raw, ".meta.json")
    document: Document = {"path": path, "verdict": "good", "why": "", "meta": _shown_meta(meta), "state": {}}
    try:
        found, _ = archive.check(place, Keyring.for_store(place), path)
    except CheckpointError as error:
        document |= {"verdict": "bad", "why": str(error)}
        return document
    return document | {"state": found.facts}


def _shown_meta(meta: Document) -> Document:
    shown = {
        name: value for name, value in meta.items() if name not in ("parts", "seal", "argv", "user_metadata")
    }
    parts = meta.get("parts")
    argv = meta.get("argv")
    return shown | {
        "sizes": {name: _size(part) for name, part in parts.items()} if isinstance(parts, dict) else {},
        "argv": redacted_argv([str(word) for word in argv]) if isinstance(argv, list) else [],
        "user_metadata": redacted(meta.get("user_metadata", {})),
    }


def _size(part: object) -> int | None:
    size = part.get("size") if isinstance(part, dict) else None
    return size if isinstance(size, int) else None


def lines(document: Document) -> Iterator[str]:
    """The same for people."""
    meta, state = document["meta"], document["state"]
    yield document["path"]
    yield _field("verdict", document["verdict"] + (f": {document['why']}" if document["why"] else ""))
    yield _field("session", f"{meta.get('session_id')} of workflow {meta.get('workflow')}")
    yield _field(
        "status", f"{meta.get('status')} at step {meta.get('steps')}, saved because of: {meta.get('cause')}"
    )
    made = str(meta.get("created_at", ""))
    yield _field("made", f"{made} ({words.age(words.seconds_since(made))} ago)")
    yield _field(
        "place", f"sequence {meta.get('sequence')}, epoch {meta.get('epoch')}, parent {meta.get('parent')}"
    )
    yield from origin(meta)
    sizes = ", ".join(f"{name} {words.size(size)}" for name, size in meta["sizes"].items())
    yield _field("sizes", sizes or "?")
    if meta["user_metadata"]:
        yield _field("metadata", json.dumps(meta["user_metadata"], ensure_ascii=False))
    if meta.get("inputs"):
        yield _field("inputs", ", ".join(meta["inputs"]))
    if state:
        yield from _facts(state)


def origin(meta: Document) -> Iterator[str]:
    """Who says to have written it."""
    yield _field("host", str(meta.get("host") or "?"))
    yield _field("program", str(meta.get("file") or "?"))
    yield _field("command", shlex.join(meta["argv"]) or "?")
    yield _field("key", str(meta.get("key_id") or "none: it has no seal"))
    yield _field("written by", f"graflow_ckpt {meta.get('library')}, Python {meta.get('python')}")


def _facts(state: Document) -> Iterator[str]:
    yield _field("completed", _listed(state["completed_tasks"]))
    yield _field("pending", _listed([_spec(spec) for spec in state["pending_tasks"]]))
    if state["cycle_counts"]:
        yield _field("cycles", ", ".join(f"{task} {count}" for task, count in state["cycle_counts"].items()))
    if state["skipped"]:
        yield _field("skipped", _listed(list(state["skipped"])))
    waiting = [f"{name} ({gate[2]} of {gate[0]})" for name, gate in state["gates"].items()]
    if waiting:
        yield _field("joins", _listed(waiting))
    for task, error in state["errors"].items():
        yield _field("error", f"{task}: {error}")


def _spec(spec: Document) -> str:
    name: str = spec["task_id"]
    notes = [spec["status"]] if spec["status"] != "pending" else []
    if spec["cycle"]:
        notes.append(f"cycle {spec['cycle']}")
    if spec["task_data"]:
        data = spec["task_data"]
        size = f", {words.size(data['size'])}" if "size" in data else ""
        notes.append(f"data: {data['type']}{size}")
    return f"{name} ({'; '.join(notes)})" if notes else name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) + more) or "none"


def _field(name: str, value: str) -> str:
    return f"  {name:<11} {value}"
