"""What the dead have left in a bucket: who still holds it, who clears it away, and what a new owner closes
first.

Contents that nobody holds, and how they are told from a save under way:

    of an epoch before the head's      its save can commit nothing any more
    of the head's epoch                its owner may be at it: who may take the session over does, and clears
    of epoch 0 (without a lease)       a save under way is pinned in the head; its pin ends after LIFE
    under another name, epoch 0        the name does not hold it, and it is older than LIFE

Promise: what is listed first and is not held by a head that was read then is held by none that comes later.
LIFE goes by the bucket's clock, and only a save that took longer is refused for it (`gone`).

Strays: pieces that no checkpoint points at, and journals of sessions that have none. What a session that runs
may be at is left out, and what was written under a name of somebody's within a day: whose save that is cannot
be told.

A new owner closes to a former one, before it begins, whatever that may still be at:

    announced names     their objects are changed: a late conditional put has seen something else
    open segments       their next number is taken by an empty frame; also of those that have been begun
                        (alive/…) and are not in the head, for it was put back to an older state
    data, contents      what no record points at is removed

Promise: after `close_behind` no write of a former owner succeeds, whenever it was begun; ending in the
middle does no harm, because the head forgets what was to be closed only when it has been.
Not here: the session's own checkpoints, which the claim itself has closed; what saves and checkpoints let
go of themselves (objects_put.py, objects_trio.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from graflow_ckpt.core.errors import GraflowError, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Owner
from graflow_ckpt.stores.names import is_content
from graflow_ckpt.stores.objects_bucket import Bucket, Entry
from graflow_ckpt.stores.objects_head import OPEN, Head, Heads, Held, Names, Record, Span, named
from graflow_ckpt.stores.objects_lease import ObjectLease, close_segment
from graflow_ckpt.stores.objects_names import NAMED, alive_key, data_key, place_of, target_of
from graflow_ckpt.stores.objects_put import let_go

LIFE = timedelta(days=1)  # what somebody without a lease has begun to write is left alone for that long


class Loose(NamedTuple):
    """A piece of a content that no head names."""

    tag: str
    epoch: int
    content: str
    entry: Entry


def contents_among(entries: Iterable[Entry]) -> dict[str, list[Loose]]:
    """All that are contents, by the tag of their session."""
    found: dict[str, list[Loose]] = {}
    for entry in entries:
        parts = entry.key.split("/")
        epoch = parts[2].partition("-")[0] if len(parts) == 5 and is_content(parts[3]) else ""
        if epoch.isdecimal():
            found.setdefault(parts[1], []).append(Loose(parts[1], int(epoch), "/".join(parts[2:4]), entry))
    return found


def unheld(head: Head, listed: Iterable[Loose]) -> Iterator[Loose]:
    """Those that a head does not name. `listed`: before it was read."""
    held = {each.data for each in head.held()}
    for each in listed:
        mark = each.content.partition("/")[0]
        if each.content not in held and mark not in held and not (each.epoch == 0 and mark in head.pins):
            yield each


def let_pins_go(bucket: Bucket, heads: Heads, session: str) -> Head:
    """Of those who have no lease and have been at it for too long; what the head is then."""
    seen = heads.read(session)
    if any(mark.startswith("0-") for mark in seen.head.pins):
        before, limit = set[Held](), bucket.now() - LIFE

        def change(head: Head) -> Head | None:
            before.update(head.held())
            pins = [mark for mark, pin in head.pins.items() if pin.at is not None and pin.at < limit]
            return head.without_pins(*pins) if pins else None

        seen = heads.update(session, change, seen)
        let_go(bucket, session, before - seen.head.held())
    return seen.head


def sweep(
    bucket: Bucket, heads: Heads, owner: Callable[[str], Owner | None], acquire: Callable[[str], Lease]
) -> int:
    """Of all sessions; how many contents went."""
    loose: list[Loose] = []
    for tag, listed in contents_among(bucket.list("data")).items():
        if tag == NAMED:
            loose += _under_names(bucket, listed)
            continue
        head = let_pins_go(bucket, heads, tag)
        found = list(unheld(head, listed))
        if any(each.epoch >= max(1, head.epoch) for each in found) and owner(tag) is None:
            with suppress(SessionBusy):  # who has it now clears it
                acquire(tag).release()
                head = heads.read(tag).head
                found = list(unheld(head, listed))  # it may have been committed meanwhile
        loose += [each for each in found if each.epoch < head.epoch or each.epoch == 0]
    bucket.delete([each.entry.key for each in loose])
    return len({(each.tag, each.content) for each in loose})


def _under_names(bucket: Bucket, listed: Iterable[Loose]) -> list[Loose]:
    limit = bucket.now() - LIFE
    old = [each for each in listed if each.epoch == 0 and each.entry.at < limit]
    if not old:
        return []
    kept = {record.alone for record in records_of_names(bucket)}
    return [each for each in old if each.content.partition("/")[0] not in kept]


def records_of_names(bucket: Bucket) -> Iterator[Record]:
    for entry in bucket.list("names"):
        found = bucket.get(entry.key)
        record = named(entry.key, found.data)[1] if found is not None else None
        if record is not None:
            yield record


def staged_and_lost(store: CheckpointStore) -> Iterator[tuple[str, str, int, str]]:
    """(kind, name, size, session)"""
    bucket = Bucket(place_of(store.url))
    heads = Heads(bucket)
    by_tag: dict[str, list[Entry]] = {}
    for entry in bucket.list("data"):
        by_tag.setdefault(entry.key.split("/")[1], []).append(entry)
    named = list(records_of_names(bucket))
    for tag, listed in by_tag.items():
        if tag == NAMED:
            limit = bucket.now() - LIFE
            left = _left([each for each in listed if each.at < limit], named)
        elif store.owner(tag) is not None:
            continue
        else:
            head = heads.read(tag).head
            contents = contents_among(listed).get(tag, [])
            pieces = {loose.entry for loose in contents}
            left = [loose.entry for loose in unheld(head, contents)]
            left += _left([each for each in listed if each not in pieces], head.commits.values())
        yield from _together("staged", left, tag if tag != NAMED else "")
    having = {record.session for record in named}
    frames: dict[str, list[Entry]] = {}
    for entry in bucket.list("journal"):
        if entry.size:  # an empty one closes a segment
            frames.setdefault(entry.key.split("/")[1], []).append(entry)
    for session, found in frames.items():
        if session not in having and not heads.read(session).head.commits and store.owner(session) is None:
            yield from _together("journal", found, session)


def _left(listed: Iterable[Entry], records: Iterable[Record]) -> list[Entry]:
    kept = {mark for record in records for mark in (*record.data, record.alone)}
    return [entry for entry in listed if entry.key.split("/")[2] not in kept]


def _together(kind: str, entries: list[Entry], session: str) -> Iterator[tuple[str, str, int, str]]:
    """The pieces of one thing as one."""
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[entry.key.rpartition("/")[0]] += entry.size
    for name, size in sorted(sizes.items()):
        yield kind, name, size, session


# --- behind a former owner -----------------------------------------------------------------


_logger = logging.getLogger(__name__)


def close_behind(bucket: Bucket, names: Names, lease: ObjectLease, head: Head) -> None:
    """`head`: as the claim has left it."""
    stale = dict(head.announced)
    failed: list[str] = []
    for mark, write in stale.items():
        record = names.touch(target_of(write.name))
        kept = {*record.data, record.alone} if record else set()
        failed += [data_key(NAMED, each) for each in (mark, *write.former) if each not in kept]
    ends = {
        segment: Span(close_segment(bucket, lease.session, head.named(segment)), span.claim)
        for segment, span in head.segments.items()
        if span.end == OPEN and segment[0] < lease.epoch
    }
    shown = [entry.key for entry in bucket.list(f"alive/{lease.session}")]
    begun = {name for key in shown if "-" in (name := key.rpartition("/")[2])}
    for name in begun - {head.named(segment) for segment in head.segments}:
        close_segment(bucket, lease.session, name)
    lease.forget(*stale)
    if stale or ends:
        lease.change(
            lambda now: replace(now, segments={s: ends.get(s, span) for s, span in now.segments.items()})
        )
    try:
        _sweep(bucket, lease, head, shown, failed)
    except GraflowError as error:
        _logger.warning(
            "leftovers of session %s stay: %s", lease.session, error, extra={"session": lease.session}
        )


def _sweep(bucket: Bucket, lease: ObjectLease, head: Head, shown: list[str], failed: list[str]) -> None:
    keys = [entry.key for prefix in failed for entry in bucket.list(prefix)]
    keys += _unreferenced(bucket, lease, head)
    mine = alive_key(lease.session, lease.epoch)
    keys += [key for key in shown if key != mine]
    bucket.delete(keys)


def _unreferenced(bucket: Bucket, lease: ObjectLease, head: Head) -> Iterator[str]:
    kept = {mark for record in head.commits.values() for mark in record.data}
    now = None
    listed = list(bucket.list(f"data/{lease.session}"))
    contents = contents_among(listed).get(lease.session, [])
    if contents:
        lease.check()  # what those without a lease are at is in the head as it is now
    for loose in unheld(lease.head, contents):
        if loose.epoch < lease.epoch:
            yield loose.entry.key
    its_contents = {loose.entry.key for loose in contents}
    for entry in listed:
        if entry.key in its_contents:
            continue
        mark = entry.key.split("/")[2]
        epoch = int(mark.partition("-")[0])
        if mark in kept or epoch >= lease.epoch:
            continue
        if epoch == 0:
            now = now or bucket.now()
            if now - entry.at < LIFE:
                continue
        yield entry.key
