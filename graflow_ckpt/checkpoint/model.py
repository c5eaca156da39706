"""CheckpointMetadata: what is known of a checkpoint without opening its values.

`.meta.json` holds these fields, sizes and digests of the other two files, and the seal. Older
schemas are brought up to date by `UPGRADES`, one step at a time; what is newer than this
version is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import BadSessionId, CheckpointCorrupt, NotStorable, SchemaUnsupported
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.core.redaction import redacted, redacted_argv

SCHEMA = "1.0"
Document = dict[str, Any]  # JSON as parsed
NOT_JSON = (ValueError, RecursionError)
"""What parsing raises; the second one for brackets nested by the thousand."""

COUNTS = range(2**63)
"""What epochs and sequences can be: nothing has ever been counted further."""

Lines = tuple[Line, ...]

NEEDS: frozenset[str] = frozenset({"rewinds", "rounds", "zstd", "aead"})
"""What of a meta's `needs` this version knows: features without which a checkpoint would be misread."""

UPGRADES: dict[str, tuple[str, Callable[[Document, Document], tuple[Document, Document]]]] = {}
"""schema -> (next schema, (meta, state) -> (meta, state)); values are never touched."""


def supported() -> list[str]:
    return sorted({SCHEMA, *UPGRADES})


def now_iso() -> str:
    return datetime.now(UTC).isoformat()


_OWN_NAME = re.compile(
    r"session_(?P<session>[A-Za-z0-9_-]{1,64})_step_\d+_(?P<made>\d{1,11})-\d+(?:\.pkl)?\Z"
)


def named(path: str) -> re.Match[str] | None:
    """Match the session and the time that a path names by itself; None for one that a user has named."""
    return _OWN_NAME.match(path.rpartition("/")[2])


@dataclass(slots=True)
class CheckpointMetadata:
    """One checkpoint, as listed."""

    checkpoint_id: str
    session_id: str
    created_at: str  # ISO 8601, UTC
    steps: int
    start_node: str
    backend: dict[str, str]
    user_metadata: dict[str, Any]
    path: str = ""
    schema_version: str = SCHEMA
    workflow: str = ""
    sequence: int = 0  # of the session's cuts; never goes back
    epoch: int = 0
    parent: str | None = None
    status: str = "running"
    cause: str = "request"
    synced: bool = True
    python: str = ""
    library: str = ""
    argv: list[str] = field(default_factory=list)
    file: str | None = None
    transition: int = 0
    graph: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)  # of the command line
    cwd: str | None = None  # the working folder of the program
    program: str | None = None  # the file that defines the workflow
    settings: Document | None = None  # with which the session is run
    run: int | None = None  # from the second run of a session on
    home: str = ""  # the store in which the session lives; the path may be elsewhere
    origin: str | None = None  # the checkpoint that the session was forked from
    trace_context: dict[str, str] | None = None  # W3C headers of the run that has saved it
    original_trace_id: str | None = None  # of the session's first run
    rewinds: list[list[int]] | None = None  # [epoch, sequence]: later cuts of earlier epochs are superseded
    needs: list[str] = field(default_factory=list)  # what a reader has to know
    size: int = 0  # bytes of its values and control facts

    @classmethod
    def create(
        cls,
        checkpoint_id: str,
        session_id: str,
        steps: int,
        start_node: str,
        backend: dict[str, str],
        user_metadata: dict[str, Any] | None = None,
    ) -> CheckpointMetadata:
        """Return metadata of now."""
        return cls(
            checkpoint_id, session_id, now_iso(), steps, start_node, dict(backend), dict(user_metadata or {})
        )

    def document(self) -> Document:
        """Return the metadata as they are in `.meta.json`, without parts and seal."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in _DERIVED}
        for name in _YOUNGER:
            if found[name] is None:
                del found[name]
        return found

    def redacted(self) -> CheckpointMetadata:
        """Return the metadata without secrets."""
        return replace(self, user_metadata=redacted(self.user_metadata), argv=redacted_argv(self.argv))

    @classmethod
    def from_document(cls, path: str, document: Document) -> CheckpointMetadata:
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        known["path"], known["size"] = path, size_of(document.get("parts"))
        wrong = [name for name, kinds in _SORTED_BY.items() if not isinstance(known.get(name), kinds)]
        try:
            if wrong:
                raise TypeError(", ".join(wrong))
            check_session_id(known["session_id"])
            return cls(**known)
        except (TypeError, BadSessionId) as error:
            raise CheckpointCorrupt(
                f"Checkpoint {path} is corrupted or uses an incompatible schema version.",
                hint=f"Its metadata lacks fields, or they are of another type: {error}.",
                path=path,
            ) from error


_DERIVED = frozenset({"path", "size"})
_YOUNGER = ("cwd", "program", "settings", "run", "origin", "trace_context", "original_trace_id", "rewinds")
"""Fields that the schema is older than: they are there only if they say something."""

_SORTED_BY = {"epoch": int, "sequence": int, "steps": int, "created_at": str, "session_id": str}
"""What lists of checkpoints are made of before anything is verified."""


def size_of(parts: object) -> int:
    """Return the size of what a meta says of its parts; it may be damaged."""
    found = parts.values() if isinstance(parts, dict) else ()
    sizes = (part.get("size") for part in found if isinstance(part, dict))
    return sum(size for size in sizes if type(size) is int and size > 0)


def check_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy that no caller changes any more. Metadata is JSON for users and tools; nothing is
    turned into text to make it fit."""
    if metadata is not None:
        arguments.kind("metadata", metadata, Mapping, "a dict such as {'round': 3}")
    copy: dict[str, Any] = {}
    for key, value in (metadata or {}).items():
        try:
            own = json.loads(json.dumps({key: value}, allow_nan=False))
            same = own == {key: value}
            copy |= own
        except (TypeError, *NOT_JSON):
            same = False
        if not same:
            raise NotStorable(
                f"metadata[{key!r}] is a {type(value).__name__}, which JSON cannot hold as it is.",
                hint="Metadata takes strings, numbers, booleans, None, lists and dicts with string keys; "
                "put other values into the channel.",
                path=f"metadata[{key!r}]",
            )
    return copy


def lines_in(meta: Document) -> Lines:
    """Return what a sealed meta says that its session has gone back behind."""
    return tuple(Line(int(epoch), int(sequence)) for epoch, sequence in meta.get("rewinds") or ())


def document_of(raw: bytes) -> Document | None:
    """Return JSON that may be damaged; None if it is no object."""
    try:
        found = json.loads(raw)
    except NOT_JSON:
        return None
    return found if isinstance(found, dict) else None


def parse(path: str, raw: bytes, what: str) -> Document:
    """Return the JSON of a companion file, or raise a clear error."""
    try:
        document = json.loads(raw)
    except NOT_JSON as error:
        raise CheckpointCorrupt(
            f"Checkpoint {path} is corrupted or uses an incompatible schema version.",
            hint=f"{what} is not valid JSON ({error}). Older ones: graflow-ckpt checkpoints list.",
            path=path,
        ) from error
    if not isinstance(document, dict):
        raise CheckpointCorrupt(f"Checkpoint {path} is corrupted: {what} is no JSON object.", path=path)
    return document


def at_round(rounds: Sequence[Document]) -> str:
    """Return where the loops of a body are, for people."""
    texts = []
    for one in rounds:
        of = "" if one["of"] is None else f" of {one['of']}"
        if one.get("left") or one["next"] == one["of"]:
            continue
        name = one["name"].rpartition("/")[2]
        texts.append(f"round {one['next']}{of}{' in ' + name if name else ''}")
    return ", ".join(texts)


def check_schema(path: str, version: object) -> None:
    """Refuse what this version of the package cannot read."""
    if version is None:  # no version has written that: an older checkpoint may be good
        raise CheckpointCorrupt(f"Checkpoint {path} is corrupted: it names no schema version.", path=path)
    if version not in supported():
        raise SchemaUnsupported(
            f"Unsupported checkpoint schema version: {version}. Supported: {supported()}.",
            hint=f"Checkpoint schema version {version} is incompatible with current version {SCHEMA}. "
            f"Migration required: upgrade graflow_ckpt to read {path}.",
            path=path,
            version=version,
        )


def lacking(meta: Document) -> tuple[str, ...]:
    """Return what a reader has to know and this version does not; good for unverified metas, too."""
    version, needs = meta.get("schema_version"), meta.get("needs", [])
    schema = () if version in supported() else (f"schema {version}",)
    if not isinstance(needs, list):
        return (*schema, "needs")
    return (*schema, *(str(need) for need in needs if not isinstance(need, str) or need not in NEEDS))


def check_needs(path: str, meta: Document) -> None:
    """Refuse what this version of the package would misread."""
    check_schema(path, meta.get("schema_version"))
    if lacks := lacking(meta):
        raise SchemaUnsupported(
            f"Checkpoint {path} needs {', '.join(lacks)}, which this graflow-ckpt does not know.",
            hint=f"Upgrade graflow-ckpt here: version {meta.get('library')} wrote it. Nothing was changed.",
            path=path,
            needs=lacks,
        )


def upgrade(meta: Document, state: Document) -> tuple[Document, Document]:
    """Bring an older checkpoint's documents up to the current schema."""
    while meta["schema_version"] != SCHEMA:
        version, step = UPGRADES[meta["schema_version"]]
        meta, state = step(dict(meta), dict(state))
        meta["schema_version"] = state["schema_version"] = version
    return meta, state
