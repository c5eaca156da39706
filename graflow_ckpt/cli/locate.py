"""Sessions of a store: one row for each, and what a user means by X: a path, a session, or a workflow.

A row is of metadata and control facts alone. No pickle is opened, values and task data are placeholders:
nothing can be run with it. What it says of steps and tasks is verified; where nothing verifies, the status
says so.

Of X all three are tried; more than one hit is an error that lists them, because to guess would mean to
run something that the user has not asked for. What is found here is verified, and not opened.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

import click

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.archive import Found, expired
from graflow_ckpt.checkpoint.seals import Keyring
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.cli import words
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    GraflowError,
    NoSession,
    SchemaUnsupported,
)
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.core.redaction import HIDDEN
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores import home_of, lies_in, open_store, open_store_of
from graflow_ckpt.stores.places import knows, others

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


# --- which one is meant ------------------------------------------------------------------

_SUFFIXES = (".meta.json", ".state.json", ".pkl")


class Ambiguous(GraflowError):
    """X may mean several things. `.hits` lists them."""


@dataclass(frozen=True, slots=True)
class Place:
    """One session, and the cut of it that counts."""

    store: str
    session: str
    found: Found
    named: bool  # the cut was named by its path: it counts and no other

    @property
    def kept_in(self) -> CheckpointStore:
        return open_store(self.store)


def find_place(store: str, what: str | None, *, latest: bool = False) -> Place:
    """Find by path, session or workflow; without any, the one unfinished session."""
    if what is None:
        return _the_only(store, latest)
    path = checkpoint_path(what)
    rows = overview(store)
    sessions = [row for row in rows if row.session == what]
    workflows = [row for row in rows if row.workflow == what and row.session != what]
    workflows = [row for row in workflows if row.status in UNFINISHED] or workflows
    if latest:
        workflows = workflows[:1]
    hits = [f"checkpoint {path}"] if path else []
    hits += [f"session {row.session}" for row in sessions]
    hits += [f"session {r.session} of workflow {r.workflow} ({r.status}, step {r.steps})" for r in workflows]
    if len(hits) > 1:
        raise Ambiguous(
            f"{what!r} may mean: {'; '.join(hits)}.",
            hint="Name the session, or the path with its folder and suffix (./NAME.pkl); "
            "--latest takes the newest session of a workflow.",
            hits=hits,
        )
    if path:
        return by_path(path)
    if not hits:
        raise _nothing(store, what, rows)
    return by_session(store, (sessions or workflows)[0].session)


def place_of(manner: Manner, store: str, names: Sequence[str]) -> str:
    """Return the place that has what is named: `store`, the default, or one of all places used.

    A name that is found in two places is an error that lists them; on a terminal the user chooses. Without a
    name it is `store`, or, where that has nothing, the only place that has something.
    """
    elsewhere = others(store)
    if not elsewhere:
        return store
    wanted = [name for name in names if not (is_path(name) or os.path.lexists(f"{name}.meta.json"))]
    if names and not wanted:
        return store
    if wanted:
        found = [place for place in (store, *elsewhere) if any(knows(place, name) for name in wanted)]
    else:
        found = [store] if _has_some(store) else [place for place in elsewhere if _has_some(place)]
    if len(found) > 1:
        found = [_chosen(manner, found, " and ".join(wanted))]
    if found and found[0] != store:
        manner.note(f"in {found[0]}:")
    return found[0] if found else store


def is_path(name: str) -> bool:
    """Return True if a name is that of a file: no session or workflow is called so."""
    return os.sep in name or name.endswith(_SUFFIXES)


def _has_some(place: str) -> bool:
    try:
        return any(True for _ in open_store(place).newest(1))
    except (GraflowError, OSError):
        return False


def _chosen(manner: Manner, places: Sequence[str], name: str) -> str:
    what = f"{name} is in several places" if name else "There are checkpoints in several places"
    if manner.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{what}: {', '.join(places)}. Choose one: --store PLACE.")
    manner.note(f"{what}:")
    for number, place in enumerate(places, 1):
        manner.note(f"  {number}  {place}")
    number = click.prompt("Which one", type=click.IntRange(1, len(places)), err=True)
    return places[number - 1]


def no_checkpoint(path: str) -> CheckpointNotFound:
    """Return the error for a checkpoint that was named and is not there."""
    return expired(open_store_of(path), path) or CheckpointNotFound(
        f"There is no checkpoint {path}.", hint="See: graflow-ckpt checkpoints list.", path=path
    )


def neither(store: str, name: str) -> CheckpointNotFound | NoSession:
    """Return the error for a checkpoint or a session that was named and is not in the store."""
    if is_path(name):
        return CheckpointNotFound(f"There is no checkpoint {name}.", path=name)
    near = get_close_matches(name, [row.session for row in overview(store)], 3)
    return NoSession(
        f"{name!r} is neither a checkpoint nor a session in {store}.",
        hint=f"Did you mean: {', '.join(near)}?" if near else "--store names another folder.",
        session=name,
    )


def _nothing(store: str, what: str, rows: list[SessionRow]) -> GraflowError:
    if is_path(what):
        return no_checkpoint(what)
    known = ", ".join(row.session for row in rows[:5])
    return NoSession(
        f"{what!r} is neither a checkpoint nor a session nor a workflow in {store}.",
        hint=f"It has: {known}{' …' if len(rows) > 5 else ''}." if rows else "--store names another folder.",
        session=what,
    )


def _the_only(store: str, latest: bool) -> Place:
    rows = [row for row in overview(store) if row.status in UNFINISHED]
    if not rows:
        raise NoSession(f"No session in {store} can go on.", hint="See: graflow-ckpt sessions.", store=store)
    if len(rows) > 1 and not latest:
        names = ", ".join(f"{row.session} ({row.workflow}, {row.status})" for row in rows[:8])
        raise click.UsageError(f"Which one? {names}. Name it, or take the newest: --latest.")
    return by_session(store, rows[0].session)


def stem(path: str) -> str:
    """Return the path that the files of a checkpoint have in common."""
    return next((path.removesuffix(suffix) for suffix in _SUFFIXES if path.endswith(suffix)), path)


def checkpoint_path(what: str) -> str | None:
    """Return the `.pkl` path of a checkpoint, if one is there under this name or one of its files'."""
    base = stem(what)
    if "://" in what:
        return what if _is_there(what) else None
    there = os.path.lexists(f"{base}.meta.json") or (base != what and os.path.lexists(what))
    return f"{base}.pkl" if there else None


def path_of(store: str | None, what: str) -> str:
    """Return the path of the checkpoint that is meant: itself, or the newest good one of a session."""
    if (path := checkpoint_path(what)) is not None:
        return path
    if store is None or is_path(what):
        raise no_checkpoint(what)
    return by_session(store, what).found.path


def by_path(path: str) -> Place:
    """Return the cut of that path, in the session's own store."""
    place = open_store_of(path)
    keyring = Keyring.for_store(place)
    try:
        # all of it: if it is bad, no other one may take its place
        found, _ = archive.check(place, keyring, path)
    except CheckpointError as error:
        error.hint += history.beside_damaged(place, keyring, path)
        raise
    home = home_of(str(found.meta.get("home", "")))
    store = _shown(home) if home else place.folder
    return Place(store, found.meta["session_id"], found, named=True)


def _is_there(path: str) -> bool:
    try:
        return bool(open_store_of(path).meta(path))
    except CheckpointError:
        return False


def _shown(folder: str) -> str:
    """Return a folder below here as relative: `checkpoints` is what users have typed."""
    if "://" in folder:
        return folder
    relative = os.path.relpath(folder)
    return folder if relative.startswith("..") else relative


def by_session(store: str, session: str) -> Place:
    """Return the newest good cut of a session."""
    place = open_store(store)
    found = history.newest_good(place, Keyring.for_store(place), session)
    if found is not None:
        return Place(store, session, found, named=False)
    raise NoSession(
        f"Session {session} has no checkpoint in {store}.",
        hint="graflow-ckpt sessions lists those that have; --store names another place.",
        session=session,
    )


def gone_on(place: Place) -> list[str]:
    """Return what the session did after a named cut: later cuts of its line, records of its journal."""
    store, at = place.kept_in, place.found
    later = [
        found.path
        for found in history.good(store, Keyring.for_store(store), place.session)
        if int(found.meta["sequence"]) > int(at.meta["sequence"]) and _state_of(found) != _state_of(at)
    ]
    if later:
        return later
    records = standing(store, place.found, journal=True)[1]
    return [f"{records} journal records"] if records else []


def _state_of(found: Found) -> tuple[int, int]:
    return found.meta["epoch"], found.facts["transition"]


def is_kept(place: Place) -> bool:
    """Return True if the cut is where its session looks for cuts; a copy elsewhere is not."""
    return lies_in(place.kept_in, place.found.path)


@dataclass(frozen=True, slots=True)
class ProgramOrigin:
    """The program that wrote a checkpoint, or why it cannot be run again."""

    target: str = ""
    arguments: tuple[str, ...] = ()
    called: str | None = None
    gone: str = ""


def in_its_folder(manner: Manner, place: Place) -> Place:
    """Change to the working folder that the session was started in, where its program finds its files."""
    folder = place.found.meta.get("cwd")
    if not isinstance(folder, str) or os.path.realpath(folder) == os.path.realpath("."):
        return place
    whole = place.store if "://" in place.store else os.path.abspath(place.store)
    path = place.found.path
    found = by_path(os.path.abspath(path) if "://" not in path else path) if place.named else None
    try:
        os.chdir(folder)
    except OSError:
        manner.note(f"its folder {folder} is gone; the working folder is {os.getcwd()}")
        return place
    manner.note(f"in folder {folder}")
    return replace(found, store=whole) if found else by_session(whole, place.session)


def argv_of(place: Place) -> tuple[str, ...]:
    """Return the arguments of the program, with the secrets that only the values hold. No code is run."""
    argv = tuple(place.found.meta.get("argv") or ())
    if not any(HIDDEN in word for word in argv):
        return argv
    payload = archive.open_values(place.kept_in, place.found, inert.load)
    return tuple(archive.unredacted(place.found, payload).meta["argv"])


def origin_of(place: Place) -> ProgramOrigin:
    """Return the program, from verified metadata only: what is named here will be run."""
    file, argv = place.found.meta.get("file"), argv_of(place)
    if file is not None:
        if not os.path.isfile(file):
            return ProgramOrigin(gone=f"its program {file} is gone")
        same = bool(argv) and os.path.abspath(argv[0]) == file
        return ProgramOrigin(file, argv[1:], argv[0] if same else None)
    if argv and ":" in argv[0]:
        return ProgramOrigin(argv[0].removesuffix(":"), argv[1:])
    return ProgramOrigin(gone="it was written by no program file")
