"""A journey: which checkpoints are meant to travel, with a bar for who watches, and what became of them.

What goes wrong with one session is told and does not keep the others from travelling.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import get_args

from graflow_ckpt.checkpoint.copying import Copied, Move, Moved, State, sessions
from graflow_ckpt.core.errors import CheckpointError, GraflowError, NoSession, SessionError
from graflow_ckpt.core.protocols import Readable
from graflow_ckpt.interfaces.cli import words
from graflow_ckpt.interfaces.cli.manner import Document, Manner

_COLUMNS = ("session", "copied", "there", "superseded", "bad", "records", "size", "note")
_NUMBERS = ("copied", "there", "superseded", "bad", "records", "size")
_RUNS = "is still being run there: copy it again when it has stopped"


@dataclass(slots=True)
class Journey:
    """What became of all that was named."""

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
        """The exit status."""
        if manner.json:
            manner.document(self.document())
            return self.status
        if self.sessions:
            manner.table(_COLUMNS, [_row(moved) for moved in self.sessions], right=_NUMBERS)
        for cut in self.cuts:
            if cut.state == "bad":
                manner.note(f"{cut.path} was not copied: {cut.error}")
        for moved in self.sessions:
            if moved.error is not None:
                manner.note(f"session {moved.session} is there without its journal: {moved.error}")
        for session, error in self.failed.items():
            manner.note(f"session {session} was not copied: {error}")
        done = [cut for cut in self.cuts if cut.state == "copied"]
        size = words.size(sum(cut.size for cut in done))
        there = sum(cut.state == "there" for cut in self.cuts)
        manner.note(f"{words.counted(len(done), 'checkpoint')} copied ({size}), {there} there already")
        return self.status

    def document(self) -> Document:
        failed = [{"session": session, **_error(error)} for session, error in self.failed.items()]
        cuts = [
            {
                "path": cut.path,
                "state": cut.state,
                "size": cut.size,
                "target": cut.target,
                **_error(cut.error),
            }
            for cut in self.cuts
        ]
        moved = [
            {
                "session": one.session,
                "records": one.records,
                "running": one.running,
                **_counts(one),
                **_error(one.error),
            }
            for one in self.sessions
        ]
        return {
            "from": self.origin, "to": self.target, "sessions": moved, "failed": failed, "checkpoints": cuts,
        }  # fmt: skip


def travel(move: Move, whole: Sequence[str], paths: Sequence[str], *, watched: bool, what: str) -> Journey:
    """Copy sessions as a whole, and single checkpoints."""
    journey = Journey(move.origin.url, move.target.url)
    with _bar(move, whole, paths, watched=watched, what=what) as seen:
        move = replace(move, seen=seen)
        for session in whole:
            try:
                journey.sessions.append(move.session(session))
            except (SessionError, CheckpointError) as error:
                journey.failed[session] = error
        for path in paths:
            try:
                journey.single.append(move.cut(path))
            except CheckpointError as error:
                journey.single.append(Copied(path, "bad", error=error))
    return journey


def meant(
    origin: Readable,
    where: str,
    what: Sequence[str],
    *,
    workflow: str | None = None,
    path_of: Callable[[str], str | None],
) -> tuple[list[str], list[str]]:
    """Sessions and paths; nothing named: all sessions, of a workflow if that is named."""
    known = sessions(origin, workflow=workflow)
    if not what:
        return known, []
    whole: list[str] = []
    paths: list[str] = []
    for name in what:
        if name in known:
            whole.append(name)
        elif (path := path_of(name)) is not None:
            paths.append(path)
        else:
            near = f"It has: {', '.join(known[:5])}{' …' if len(known) > 5 else ''}." if known else ""
            raise NoSession(
                f"{name!r} is neither a session nor a checkpoint in {where}.", hint=near, session=name
            )
    return list(dict.fromkeys(whole)), list(dict.fromkeys(paths))


@contextmanager
def _bar(
    move: Move, whole: Sequence[str], paths: Sequence[str], *, watched: bool, what: str
) -> Iterator[Callable[[Copied], None]]:
    if not watched or not sys.stderr.isatty():
        yield lambda copied: None
        return
    from rich.console import Console
    from rich.progress import Progress

    total = len(paths) + sum(len(list(move.origin.list(session))) for session in whole)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda copied: progress.advance(bar)


def _counts(moved: Moved) -> Document:
    return {state: sum(cut.state == state for cut in moved.cuts) for state in get_args(State)}


def _row(moved: Moved) -> tuple[object, ...]:
    size = sum(cut.size for cut in moved.cuts if cut.state == "copied")
    counts = _counts(moved)
    numbers = (counts["copied"], counts["there"], counts["superseded"], counts["bad"], moved.records)
    return (moved.session, *numbers, words.size(size), _RUNS if moved.running else "")


def _error(error: GraflowError | None) -> Document:
    return {} if error is None else {"error": type(error).__name__, "why": str(error)}
