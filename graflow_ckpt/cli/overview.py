"""The overview of a store: one row per session, from metadata and control facts alone.

No pickle is opened, values and task data are placeholders: nothing can be run with it. What a row says of
steps and tasks is verified; where nothing verifies, the status says so. Also what a run without a
session id mentions of its workflow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint import history
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.seals import Keyring
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.cli import words
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import CheckpointError, GraflowError, SchemaUnsupported
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores import open_store

if TYPE_CHECKING:
    from graflow_ckpt.cli.progress import Tally

_PLACEHOLDER = ("plain", b"\xc0")


def standing(
    store: CheckpointStore, found: Found, *, journal: bool, until_damage: bool = False
) -> tuple[SessionState, int]:
    """Return the state at a cut, with `journal` as the records after it change it; and how many."""
    state = restore(found.facts, _no_values(found.facts))
    if not journal:
        return state, 0
    session = found.meta["session_id"]
    at_damage = (lambda error: None) if until_damage else None  # the run itself reports it
    keys = Keyring.for_store(store)
    return state, history.replay(store, keys, state, found, session, closed=True, at_damage=at_damage)


def _no_values(facts: Document) -> dict[str, Any]:
    """Return a payload in which nothing has a value."""
    references = [spec["task_data"]["ref"] for spec in facts["pending_tasks"] if spec["task_data"]]
    return {
        "plain": {},
        "live": {},
        "appended": {},
        "data": [_PLACEHOLDER] * (max(references, default=-1) + 1),
        "tasks": dict.fromkeys(facts["made"], _PLACEHOLDER),
        "rng": None,
    }


UNFINISHED = ("running", "interrupted", "stopped", "failed", "stalled", "waiting")


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session."""

    session: str
    workflow: str
    status: str
    steps: int
    done: int | None
    pending: int | None
    checkpoints: int
    newest: str
    created_at: str
    owner: str  # of the process that runs it now, or nothing
    note: str = ""

    def document(self) -> Document:
        return {**asdict(self), "owner": self.owner or None, "age": words.seconds_since(self.created_at)}


def overview(store: str) -> list[SessionRow]:
    """Return the sessions of a store, the newest first."""
    place = open_store(store)
    counts: dict[str, int] = {}
    for path, raw in place.list():
        session = _session_of(path, raw)
        if session:
            counts[session] = counts.get(session, 0) + 1
    keyring = Keyring.for_store(place) if counts else None
    rows = [_row(place, keyring, session, count) for session, count in counts.items()] if keyring else []
    return sorted(rows, key=lambda row: row.created_at, reverse=True)


def _row(place: CheckpointStore, keyring: Keyring, session: str, count: int) -> SessionRow:
    holder = place.owner(session)
    owner = f"{holder.pid}@{holder.host}" if holder is not None else ""
    reasons: list[str] = []
    for found in _newest(place, keyring, session):
        if isinstance(found, SchemaUnsupported):
            return SessionRow(session, "", "unknown", 0, None, None, count, "", "", owner, found.message)
        if isinstance(found, CheckpointError):
            reasons.append(found.message)
            continue
        notes = [f"{words.counted(len(reasons), 'newer checkpoint')} bad"] if reasons else []
        state = _state(place, found, notes)
        status = status_now(state.status, alive=bool(owner))
        return SessionRow(
            session, found.metadata.workflow, status, state.steps, len(state.completed), len(state.specs),
            count, found.path, found.metadata.created_at, owner, "; ".join(notes),
        )  # fmt: skip
    return SessionRow(session, "", "bad", 0, None, None, count, "", "", owner, "; ".join(reasons[:1]))


def _newest(place: CheckpointStore, keyring: Keyring, session: str) -> Iterator[Found | CheckpointError]:
    """Yield the newest cuts; one that a later version has written is the last that is known."""
    try:
        yield from (found for _, found in history.newest(place, keyring, session))
    except SchemaUnsupported as error:
        yield error


def _state(place: CheckpointStore, found: Found, notes: list[str]) -> SessionState:
    """Return the state with the journal, where there is one and it can be read."""
    try:
        state, replayed = standing(place, found, journal=True)
    except CheckpointError as error:
        notes.append(error.message)
        return standing(place, found, journal=False)[0]
    if replayed:
        notes.append(f"and {words.counted(replayed, 'journal record')}")
    return state


def status_now(saved: str, *, alive: bool) -> str:
    """Return what a session that was saved in that status is now."""
    if saved in ("running", "closing", "failing"):
        return "running" if alive else "interrupted"
    return saved


def _session_of(path: str, raw: bytes) -> str:
    """Return the session as an unverified meta claims it."""
    try:
        found = json.loads(raw)["session_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def mention(manner: Manner, tally: Tally) -> None:
    """Say which session of the workflow could continue, where a new one starts."""
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
