"""Checkpoints as they are shown: one in everything but values; all by their metadata; verdicts; a census."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from random import SystemRandom

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.care.inventory import Census, Count, Inventory, census, inventory
from graflow_ckpt.checkpoint.model import CheckpointMetadata, Document, at_round, parse
from graflow_ckpt.checkpoint.retention import Cut, bytes_of
from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import checkpoint_path, is_path, neither, path_of
from graflow_ckpt.cli.terminal import Manner
from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.redaction import redacted, redacted_argv
from graflow_ckpt.stores import open_store, open_store_of, store_of
from graflow_ckpt.stores.around.encodings import PRIVATE, Metas
from graflow_ckpt.stores.around.keys import Keyring

_LISTED = 12  # tasks, before it becomes a number


def describe(what: str, store: str | None = None) -> Document:
    """Describe metadata and control facts; whether they verify is in `verdict` and `why`. `what`: a path, or
    a session of the store, if one is given: its newest good checkpoint."""
    path = path_of(store, what)
    place = open_store_of(path)
    raw = place.meta(path)
    meta = parse(path, raw, ".meta.json")
    meta = Metas(place).shown(path, meta) or meta
    document: Document = {"path": path, "verdict": "good", "why": "", "meta": _shown_meta(meta), "state": {}}
    try:
        found, _ = archive.check(place, Keyring.for_store(place), path)
    except CheckpointError as error:
        document |= {"verdict": "bad", "why": str(error)}
        return document
    return document | {"state": found.facts}


def _shown_meta(meta: Document) -> Document:
    shown = {
        name: value
        for name, value in meta.items()
        if name not in ("parts", "seal", "argv", "user_metadata", PRIVATE)
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
    """Yield the same as lines of text."""
    meta, state = document["meta"], document["state"]
    made = str(meta.get("created_at", ""))
    sizes = (f"{name} {words.size(size)}" for name, size in meta["sizes"].items())
    status = f"{meta.get('status')} at step {meta.get('steps')}, saved because of: {meta.get('cause')}"
    place = f"sequence {meta.get('sequence')}, epoch {meta.get('epoch')}, parent {meta.get('parent')}"
    user = meta["user_metadata"]
    yield document["path"]
    yield from words.fields(
        ("verdict", document["verdict"] + (f": {document['why']}" if document["why"] else "")),
        ("session", f"{meta.get('session_id')} of workflow {meta.get('workflow')}"),
        ("status", status),
        ("made", f"{made} ({words.age(words.seconds_since(made))} ago)"),
        ("place", place),
        ("host", str(meta.get("host") or "?")),
        ("program", str(meta.get("file") or "?")),
        ("command", shlex.join(meta["argv"]) or "?"),
        ("key", str(meta.get("key_id") or "none: it has no seal")),
        ("written by", f"graflow_ckpt {meta.get('library')}, Python {meta.get('python')}"),
        ("sizes", ", ".join(sizes) or "?"),
        ("metadata", json.dumps(user, ensure_ascii=False) if user else ""),
        ("inputs", ", ".join(meta.get("inputs") or ())),
        *(_facts(state) if state else ()),
    )


def _facts(state: Document) -> Iterator[tuple[str, str]]:
    waiting = [f"{name} ({gate[2]} of {gate[0]})" for name, gate in state["gates"].items()]
    yield "completed", words.listed(state["completed_tasks"], _LISTED) or "none"
    yield "pending", words.listed([_spec(spec) for spec in state["pending_tasks"]], _LISTED) or "none"
    yield "cycles", ", ".join(f"{task} {count}" for task, count in state["cycle_counts"].items())
    yield "skipped", words.listed(list(state["skipped"]), _LISTED)
    yield "joins", words.listed(waiting, _LISTED)
    yield from (("error", f"{task}: {error}") for task, error in state["errors"].items())


def _spec(spec: Document) -> str:
    name: str = spec["task_id"]
    notes = [spec["status"]] if spec["status"] != "pending" else []
    if spec["cycle"]:
        notes.append(f"cycle {spec['cycle']}")
    if at := at_round(spec.get("rounds", ())):
        notes.append(f"at {at}")
    if spec["task_data"]:
        data = spec["task_data"]
        size = f", {words.size(data['size'])}" if "size" in data else ""
        notes.append(f"data: {data['type']}{size}")
    return f"{name} ({'; '.join(notes)})" if notes else name


_UNREADABLE = "unreadable"
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint; `size` is that of its parts together."""

    metadata: CheckpointMetadata
    size: int | None

    def document(self) -> Document:
        found = asdict(self.metadata)
        found["user_metadata"] = redacted(found["user_metadata"])
        found["argv"] = redacted_argv([str(word) for word in found["argv"]])
        return {**found, "size": self.size}

    def cells(self) -> tuple[object, ...]:
        m = self.metadata
        age = words.age(words.seconds_since(m.created_at))
        return m.path, m.session_id, m.workflow, m.steps, m.status, m.cause, age, words.size(self.size)


def listing(store: str, limit: int | None = None, **wanted: str | None) -> list[Listed]:
    """List the newest first; what cannot be read is in it, so that it is not overlooked.

    `wanted`: session, workflow, status; what cannot be read has no workflow, and the status "unreadable".
    """
    if wanted.get("status") == _UNREADABLE:  # none says so of itself
        rows = listing(store, session=wanted.get("session"), workflow=wanted.get("workflow"))
        return [row for row in rows if row.metadata.status == _UNREADABLE][:limit]
    place = open_store(store)
    metas = Metas(place)
    return [_row_of(metas, *found) for found in place.newest(_ALL if limit is None else limit, **wanted)]


def _row_of(metas: Metas, path: str, raw: bytes) -> Listed:
    metas.ready(raw)
    try:
        document = metas.revealed(path, parse(path, raw, ".meta.json"))[0]
        metadata = CheckpointMetadata.from_document(path, document)
    except CheckpointError:
        return Listed(
            CheckpointMetadata("", "", "", 0, "", {}, {}, path=path, status=_UNREADABLE, cause=""), None
        )
    return Listed(metadata, size_of(document))


def size_of(meta: Document) -> int | None:
    """Return the size of all parts together, as a meta says."""
    try:
        return sum(int(part["size"]) for part in meta["parts"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """The verdict of one checkpoint."""

    path: str
    verdict: str  # good or bad
    error: str = ""  # the name of the error
    why: str = ""
    size: int | None = None  # of its values


def paths_of(store: str, what: Sequence[str]) -> list[str]:
    """Return the checkpoints that are meant; nothing: all of the store."""
    if not what:
        return sorted(path for path, _ in open_store(store).list())
    paths: list[str] = []
    for name in what:
        path = checkpoint_path(name)
        found = [path] if path else sorted(path for path, _ in _of_session(store, name))
        if not found:
            raise neither(store, name)
        paths += found
    return list(dict.fromkeys(paths))


def _of_session(store: str, name: str) -> Iterator[tuple[str, bytes]]:
    return iter(()) if is_path(name) else open_store(store).list(name)


def any_of(paths: Sequence[str], count: int | None) -> Sequence[str]:
    """Return so many of them by chance, in their order; None: all."""
    if count is None or count >= len(paths):
        return paths
    return sorted(SystemRandom().sample(paths, count), key=paths.index)


def verdicts(manner: Manner, paths: Sequence[str]) -> Iterator[CheckpointVerdict]:
    """Yield the verdicts; each checkpoint is read once, from end to end."""
    opened = cache(open_store)
    with manner.counter("verifying", len(paths)) as seen:
        for path in paths:
            try:
                store = opened(store_of(path))
                _, size = archive.check(store, Keyring.for_store(store), path)
            except CheckpointError as error:
                yield CheckpointVerdict(path, "bad", type(error).__name__, str(error))
            else:
                yield CheckpointVerdict(path, "good", size=size)
            seen(path)


# --- a census ------------------------------------------------------------------------------

CENSUS = ("workflow", "sessions", "checkpoints", "size", "oldest", "newest", "largest")


def census_of(store: str, workflow: str | None) -> Census:
    """Return the census of what is in the store now."""
    found = inventory(open_store(store))
    if workflow is not None:
        found = Inventory(tuple(cut for cut in found.cuts if cut.workflow == workflow))
    return census(found, time.time())


def census_document(found: Census) -> Document:
    return {
        **_count(found.total),
        "workflows": {name: _count(count) for name, count in found.workflows.items()},
        "ages": found.ages,
        "statuses": found.statuses,
        "paused": found.paused,
        "requested": found.requested,
        "automatic": found.automatic,
        "unreadable": [cut.path for cut in found.unreadable],
    }


def census_rows(found: Census) -> list[tuple[object, ...]]:
    """Return one row for each workflow; the last one for all, if there are several."""
    made = [_row(name or "-", count) for name, count in found.workflows.items()]
    return made if len(made) < 2 else [*made, _row("all", found.total)]


def census_lines(found: Census) -> Iterator[str]:
    total = found.total
    known = [(name, cut, _age(cut)) for name, cut in (("oldest", total.oldest), ("newest", total.newest))]
    known.append(("largest", total.largest, words.size(bytes_of([total.largest] if total.largest else []))))
    yield from words.fields(
        ("ages", ", ".join(f"{name}: {count}" for name, count in found.ages.items())),
        ("statuses", ", ".join(f"{name} {count}" for name, count in found.statuses.items())),
        ("made", f"{found.requested} asked for by tasks, {found.automatic} automatic"),
        *((name, f"{cut.path} ({what})") for name, cut, what in known if cut is not None),
        *(("unreadable", cut.path) for cut in found.unreadable),
    )


def _row(name: str, count: Count) -> tuple[object, ...]:
    largest = bytes_of([count.largest]) if count.largest is not None else 0
    return (
        name, count.sessions, count.checkpoints, words.size(count.size), _age(count.oldest),
        _age(count.newest), words.size(largest),
    )  # fmt: skip


def _count(count: Count) -> Document:
    return {
        "checkpoints": count.checkpoints, "sessions": count.sessions, "bytes": count.size,
        "oldest": _cut(count.oldest), "newest": _cut(count.newest), "largest": _cut(count.largest),
    }  # fmt: skip


def _cut(cut: Cut | None) -> Document | None:
    if cut is None:
        return None
    age = words.seconds_ago(cut.created)
    made = None if age is None else datetime.fromtimestamp(cut.created, UTC).isoformat()
    document: Document = {"path": cut.path, "session": cut.session, "created_at": made, "age": age}
    return document | {"bytes": bytes_of([cut])}


def _age(cut: Cut | None) -> str:
    return words.age(None if cut is None else words.seconds_ago(cut.created))
