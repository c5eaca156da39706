"""A clearance: what is to be deleted, is shown, asked about, looked at once more, and deleted.

A user may take an hour to answer. So what was shown is planned again: only what was
shown and may still go, goes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial

import click

from graflow_ckpt.checkpoint.care.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.care.pruning import (
    Guard,
    Pruned,
    PruningPlan,
    Reason,
    carry_out,
    named,
    plan,
    sweep_contents,
)
from graflow_ckpt.checkpoint.retention import WAITS, Cut, Retention, bytes_of
from graflow_ckpt.cli import words
from graflow_ckpt.cli.locate import checkpoint_path, neither, stem
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.errors import CheckpointError, NoSession, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store, open_store_of
from graflow_ckpt.stores.around.keys import Keyring

_WHY: dict[Reason, str] = {
    "newest": "the newest good one of a session",
    "paused": "paused",
    "forked": "another session was forked from it",
    "busy": "its session is being run",
    "later": "a later version of graflow-ckpt has written to its session",
    "doubt": "none of its session verifies",
}
_COLUMNS = ("path", "session", "workflow", "status", "age", "size")


class MustStay(CheckpointError):
    """A named checkpoint has to be kept. `.held` says why."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """In one store."""

    place: CheckpointStore
    again: Callable[[], PruningPlan]  # the same question, asked now
    ends: bool = True  # sessions that would continue with what goes

    def carried_out(self, manner: Manner, *, dry_run: bool, yes: bool) -> int:
        """Show what would go, or have it go; the exit status."""
        with manner.bar("looking"):  # what stays instead is read to its last byte
            what = self.again()
        if dry_run:
            rows = [(cut.path, cut.session, cut.workflow, cut.status,
                     words.age(words.seconds_ago(cut.created)), words.size(cut.size))
                    for cut in what.cuts]  # fmt: skip
            notes = [f"{_counted(what.cuts)} would be deleted", *_kept(what.spared)]
            document = _document(Pruned(what.cuts, (), what.spared), dry_run=True)
            manner.listing(document, _COLUMNS, rows, *notes, right=("age", "size"))
            return 0
        if what.cuts and not yes:
            what = self._confirmed(manner, what)
        with manner.counter("deleting", len(what.cuts)) as seen:
            done = carry_out(self.place, what, seen=seen)
            sweep_contents(self.place)
        stays = (f"{cut.path} stays: {why}" for cut, why in done.failed)
        said = f"{_counted(done.cuts)} deleted"
        manner.result(_document(done, dry_run=False), said, *_kept(done.spared), *stays)
        return 1 if done.failed else 0

    def _confirmed(self, manner: Manner, what: PruningPlan) -> PruningPlan:
        """Ask; return what was shown and may still go."""
        for note in _kept(what.spared):
            manner.note(note)
        if self.ends and (needed := _needed(self.place, what)):
            manner.note(f"cannot go on then: {', '.join(sorted(needed))}")
        manner.ask(f"Delete {_counted(what.cuts)}?")
        shown = {cut.path for cut in what.cuts}
        what = self.again()
        emptied = what.emptied - {cut.session for cut in what.cuts if cut.path not in shown}
        going = tuple(cut for cut in what.cuts if cut.path in shown)
        return replace(what, cuts=going, emptied=emptied)


def by_retention(
    store: str, retention: Retention, session: str | None, workflow: str | None, metrics: Sequence[str]
) -> Clearance:
    """Plan by a retention; `metrics`: the numbers that it rates by, which some checkpoint has to have."""
    place = open_store(store)

    def among(cut: Cut) -> bool:
        return session in (None, cut.session) and workflow in (None, cut.workflow)

    def again() -> PruningPlan:
        known = inventory(place)
        _check_metrics(metrics, [cut for cut in known.cuts if among(cut)])
        return plan(_guard(place, known), retention, time.time(), among=among)

    return Clearance(place, again, ends=False)


def by_name(store: str, what: Sequence[str], *, force: bool) -> Clearance:
    """Plan to delete checkpoints by path, sessions by id; all of one store."""
    place = _store_of(store, what)

    def again() -> PruningPlan:
        known = inventory(place)
        going = _named(place, known, what)
        found = named(_guard(place, known, going), going, force=force)
        _refuse(found)
        return found

    return Clearance(place, again)


def by_workflow(store: str, workflow: str, *, finished: bool, force: bool) -> Clearance:
    place = open_store(store)

    def again() -> PruningPlan:
        known = inventory(place)
        sessions = {cut.session for cut in known.cuts if cut.workflow == workflow}
        if known.cuts and not sessions:
            names = ", ".join(sorted({cut.workflow for cut in known.cuts}))
            raise NoSession(
                f"{place.url} has no checkpoint of workflow {workflow!r}.",
                hint=f"Workflows that have some: {names}.",
                workflow=workflow,
            )
        if finished:
            guard = _guard(place, known)
            sessions = {session for session in sessions if guard.finished(session)}
        going = [cut for cut in (*known.cuts, *known.unreadable) if cut.session in sessions]
        return named(_guard(place, known, going), going, force=force)

    return Clearance(place, again)


# --- what is meant -----------------------------------------------------------------------


def _guard(place: CheckpointStore, known: Inventory, going: Sequence[Cut] = ()) -> Guard:
    """Return the guard: forks that wait for an answer are kept, and so is what they began with."""
    paths = frozenset(cut.path for cut in going if cut.status not in WAITS)
    return Guard(place, known, cache(partial(Keyring.for_store, place)), going=paths)


def _refuse(found: PruningPlan) -> None:
    if not found.spared:
        return
    busy = [cut for cut, reason in found.spared if reason == "busy"]
    held = {cut.path: _WHY[reason] for cut, reason in found.spared}
    first, why = next(iter(held.items()))
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    if busy:
        raise SessionBusy(
            f"Nothing was deleted: session {busy[0].session} is being run.",
            hint="Stop it first; or leave it to its retention (keep=).",
            session=busy[0].session,
        )
    raise MustStay(
        f"Nothing was deleted. It has to stay: {first} ({why}){more}.",
        hint="To delete it all the same: --force.",
        held=held,
    )


def _check_metrics(metrics: Sequence[str], cuts: Sequence[Cut]) -> None:
    known = sorted({name for cut in cuts for name in cut.metrics})
    for metric in metrics:
        if cuts and metric not in known:
            near = get_close_matches(metric, known, 1)
            there = f"did you mean {near[0]}?" if near else f"there is: {', '.join(known) or 'none'}."
            raise click.UsageError(f"--best: no checkpoint has a number {metric!r} in its metadata; {there}")


def _store_of(store: str, what: Sequence[str]) -> CheckpointStore:
    paths = [path for name in what if (path := checkpoint_path(name))]
    places = {place.url: place for place in map(open_store_of, paths)}
    if len(paths) < len(what):
        place = open_store(store)
        places[place.url] = place
    if len(places) > 1:
        raise click.UsageError(f"What is named lies in several stores: {', '.join(sorted(places))}.")
    return next(iter(places.values()))


def _named(place: CheckpointStore, known: Inventory, what: Sequence[str]) -> list[Cut]:
    """Return the checkpoints that are meant; raise an error if one of the names means nothing."""
    everything = (*known.cuts, *known.unreadable)
    found: dict[str, Cut] = {}
    for name in what:
        meant = _same_place(place, name)
        cuts = [cut for cut in everything if cut.session == name or _same_place(place, cut.path) == meant]
        if not cuts:
            raise neither(place.folder, name)
        found |= {cut.path: cut for cut in cuts}
    return list(found.values())


def _same_place(place: CheckpointStore, path: str) -> str:
    """Return a path in one form, however it is written."""
    path = stem(path)
    if place.shared or "://" in path:
        return (place.takes(path) or path).removesuffix(".pkl")
    return os.path.realpath(path)


def _needed(place: CheckpointStore, what: PruningPlan) -> set[str]:
    """Return the sessions that could continue, and will not be able to."""
    guard = Guard(place, Inventory(what.cuts), cache(partial(Keyring.for_store, place)))
    return {session for session in what.emptied if session and not guard.finished(session)}


# --- what is said ------------------------------------------------------------------------


def _counted(cuts: Sequence[Cut]) -> str:
    return f"{words.counted(len(cuts), 'checkpoint')} ({words.size(bytes_of(cuts))})"


def _kept(spared: Sequence[tuple[Cut, Reason]]) -> list[str]:
    counts = Counter(reason for _, reason in spared).most_common()
    return [f"{words.counted(count, 'checkpoint')} kept: {_WHY[reason]}" for reason, count in counts]


def _document(done: Pruned, *, dry_run: bool) -> Document:
    return {
        "dry_run": dry_run,
        "checkpoints": len(done.cuts),
        "bytes": done.size,
        "paths": [cut.path for cut in done.cuts],
        "spared": [{"path": cut.path, "session": cut.session, "why": why} for cut, why in done.spared],
        "failed": [{"path": cut.path, "error": why} for cut, why in done.failed],
    }
