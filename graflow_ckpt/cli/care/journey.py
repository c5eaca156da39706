"""A journey: which checkpoints are to be copied, with a bar for the user, and what became of them.

What goes wrong with one session is reported and does not keep the others from being copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from graflow_ckpt.checkpoint.care.copying import Copied, Move, Moved, State, survey, unreadable
from graflow_ckpt.checkpoint.care.inventory import Inventory
from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import checkpoint_path
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import BadSessionId, CheckpointError, GraflowError, NoSession, SessionError
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Readable

_COLUMNS = ("session", "copied", "there", "superseded", "bad", "records", "size", "note")
_RUNS = "is still being run there: copy it again when it has stopped"


@dataclass(slots=True)
class Journey:
    """The result of the copy, for all that was named."""

    origin: str
    target: str
    sessions: list[Moved] = field(default_factory=list)
    single: list[Copied] = field(default_factory=list)
    failed: dict[str, GraflowError] = field(default_factory=dict)  # sessions of which nothing was copied

    @property
    def cuts(self) -> list[Copied]:
        return [cut for moved in self.sessions for cut in moved.cuts] + self.single

    @property
    def status(self) -> int:
        lacking = any(moved.error for moved in self.sessions)
        return 1 if self.failed or lacking or any(cut.state == "bad" for cut in self.cuts) else 0

    def tell(self, manner: Manner) -> int:
        """Print what became of them; return the exit status."""
        rows = [_row(moved) for moved in self.sessions]
        manner.listing(self.document(), _COLUMNS, rows, *self._notes(), right=_COLUMNS[1:-1])
        return self.status

    def _notes(self) -> Iterator[str]:
        yield from (f"{cut.path} was not copied: {cut.error}" for cut in self.cuts if cut.state == "bad")
        for moved in self.sessions:
            if moved.error is not None:
                yield f"session {moved.session} is there without its journal: {moved.error}"
        yield from (f"session {session} was not copied: {error}" for session, error in self.failed.items())
        done = [cut for cut in self.cuts if cut.state == "copied"]
        size = words.size(sum(cut.size for cut in done))
        there = sum(cut.state == "there" for cut in self.cuts)
        yield f"{words.counted(len(done), 'checkpoint')} copied ({size}), {there} there already"

    def document(self) -> Document:
        failed = [{"session": session, **_error(error)} for session, error in self.failed.items()]
        cuts = [{"path": cut.path, "state": cut.state, "size": cut.size, "target": cut.target,
                 **_error(cut.error)} for cut in self.cuts]  # fmt: skip
        moved = [{"session": one.session, "records": one.records, "running": one.running, **_counts(one),
                  **_error(one.error)} for one in self.sessions]  # fmt: skip
        return {
            "from": self.origin, "to": self.target, "sessions": moved, "failed": failed, "checkpoints": cuts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Luggage:
    """The things to copy: sessions with what they have (None: not looked at), and single checkpoints."""

    sessions: dict[str, Inventory | None]
    paths: list[str]
    damaged: tuple[Copied, ...] = ()  # what belongs to none of them

    @classmethod
    def named(cls, origin: Readable, what: Sequence[str]) -> Luggage:
        """Choose sessions by their ids, checkpoints by their paths."""
        whole: dict[str, Inventory | None] = {}
        paths: dict[str, None] = {}
        for name in what:
            if _is_session(origin, name):
                whole[name] = None
            elif (path := checkpoint_path(name)) is not None:
                paths[path] = None
            else:
                known = list(survey(origin))
                near = f"It has: {', '.join(known[:5])}{' …' if len(known) > 5 else ''}." if known else ""
                message = f"{name!r} is neither a session nor a checkpoint in {origin.url}."
                raise NoSession(message, hint=near, session=name)
        return cls(whole, list(paths))

    @classmethod
    def all(cls, origin: Readable, workflow: str | None = None) -> Luggage:
        """Choose everything, or all sessions of a workflow."""
        known = survey(origin)
        lost = [
            copied for session in known if not known[session].cuts for copied in unreadable(known[session])
        ]
        whole: dict[str, Inventory | None] = {
            session: found
            for session, found in known.items()
            if found.cuts and workflow in (None, *(cut.workflow for cut in found.cuts))
        }
        return cls(whole, [], tuple(lost) if workflow is None else ())


def _is_session(origin: Readable, name: str) -> bool:
    try:
        return any(origin.list(check_session_id(name)))
    except BadSessionId:
        return False


def travel(manner: Manner, move: Move, luggage: Luggage, what: str) -> Journey:
    """Copy it."""
    journey = Journey(move.origin.url, move.target.url, single=list(luggage.damaged))
    there = survey(move.target) if len(luggage.sessions) > 1 else None
    total = _count(move, luggage) if manner.watched else None
    with manner.counter(what, total) as seen:
        move = replace(move, seen=seen)
        for session, known in luggage.sessions.items():
            known_there = there.get(session, Inventory(())) if there is not None else None
            try:
                journey.sessions.append(move.session(session, known, known_there))
            except (SessionError, CheckpointError) as error:
                journey.failed[session] = error
        for path in luggage.paths:
            try:
                journey.single.append(move.cut(path))
            except CheckpointError as error:
                journey.single.append(Copied(path, "bad", error=error))
    return journey


def _count(move: Move, luggage: Luggage) -> int:
    known = luggage.sessions.items()
    return len(luggage.paths) + sum(
        len(found.cuts) if found is not None else len(list(move.origin.list(session)))
        for session, found in known
    )


def _counts(moved: Moved) -> Document:
    return {state: sum(cut.state == state for cut in moved.cuts) for state in get_args(State)}


def _row(moved: Moved) -> tuple[object, ...]:
    size = sum(cut.size for cut in moved.cuts if cut.state == "copied")
    counts = _counts(moved)
    numbers = (counts["copied"], counts["there"], counts["superseded"], counts["bad"], moved.records)
    return (moved.session, *numbers, words.size(size), _RUNS if moved.running else "")


def _error(error: GraflowError | None) -> Document:
    return {} if error is None else {"error": type(error).__name__, "why": str(error)}
