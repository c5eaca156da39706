"""Ownership of a session in a keyed store: claims, leases, and what dead owners have left.

Promise: of several that acquire a session at once exactly one gets it, for a claim is a change of its head;
and what a former owner still writes is refused, because the head is another one by then. No clock decides
which owner may write. The place's clock and the watcher's patience decide only whether a silent owner of
another machine may be taken over: a thread touches `lease/{s}/{claim}` every third of the lease's time, and
soon again where that failed. One that is over has some time more: the place may have been away. An
owner on this machine is judged by its process; in its own process it is dead as soon as it was released,
whether or not that could be written.

An owner that does not find its own last change in the head is fenced: the place has lost what it had
confirmed.

Where batches are not atomic (a bucket), two more things are closed before a new owner begins: the names that
the former one was writing to are touched, and the next number of its segments is taken by an empty record.
Not here: what a head says (head.py), and what is written under a lease (keyed.py).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, ServerGone
from graflow_ckpt.core.protocols import Buffer, Owner
from graflow_ckpt.links.processes import is_gone, is_near, myself
from graflow_ckpt.stores.driver import Driver, Entry, Put, Tag
from graflow_ckpt.stores.head import (
    Head,
    Held,
    Page,
    Pin,
    decode,
    decode_page,
    epoch_in,
    head_key,
    is_mark,
    lease_key,
    nonce,
    page_key,
)
from graflow_ckpt.stores.owners import GRACE, HeldLease, OwnerWatch, abandoned, busy

LEASE = 30.0
LIFE = 86_400.0  # seconds for which what a save without a lease has begun to write is left alone
PATIENCE = 10.0  # seconds within which a server that was lost must be back, whatever it is asked for
_PAUSE = 0.1
_WAITED = 4  # of our own lease times: a longer term is a mistake, or of another program
_PAGES = 64  # that are kept in memory
_PAUSES = (0.0, 0.002, 0.005, 0.02)  # seconds at most after so many refusals
_UNREACHED = 10**17  # no session has so many owners: another program has made that key
_SEGMENT = re.compile(r"(\d{10,20})-(\d{12,20})-[0-9a-z]+\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}\Z", re.ASCII)


class ServerWait:
    """Says whether it is worth asking again a server that is gone, and waits a little if so."""

    def __init__(self, seconds: float | None = None) -> None:
        self._until = time.monotonic() + (PATIENCE if seconds is None else seconds)

    def over(self) -> bool:
        if time.monotonic() > self._until:
            return True
        time.sleep(_PAUSE)
        return False


class Stale(Exception):
    """Something that a head names is not there. `error` is raised, unless the head is another one by now."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Step(NamedTuple):
    """A head as it is to become, and what is written with it."""

    head: Head
    puts: Sequence[Put] = ()
    drops: Sequence[str] = ()
    needs: Sequence[str] = ()


Change = Callable[[Head], Step | None]
"""What is to become of a head; None if it is so already. May refuse by raising."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A head as it was read or written. `tag`: None if there was none; `at`: since when."""

    head: Head
    tag: Tag | None = None
    at: float | None = None
    synced: bool = True
    changed: bool = False  # by the caller, as far as that is known


class Heads:
    """The heads of one place."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._pages: OrderedDict[str, Page] = OrderedDict()  # those that were read last
        self._decoded: tuple[str, Buffer, Head] | None = None  # likewise: a reader of one reads it again

    def read(self, scope: str) -> Seen:
        while True:
            (found,) = self.driver.get(head_key(scope))
            if found is None:
                return Seen(Head())
            known = self._decoded
            if known is not None and known[:2] == (scope, found.data):
                return Seen(known[2], found.tag, found.at)
            try:
                head = decode(scope, found.data, partial(self._pages_of, scope))
                self._decoded = scope, found.data, head
                return Seen(head, found.tag, found.at)
            except CheckpointCorrupt:
                (now,) = self.driver.get(head_key(scope))
                if now is not None and now.tag == found.tag:
                    raise  # else a page has gone meanwhile

    def _pages_of(self, scope: str, marks: Collection[str]) -> dict[str, Page]:
        pages = {mark: page for mark in marks if (page := self._pages.get(page_key(scope, mark))) is not None}
        missing = [mark for mark in marks if mark not in pages]
        found = self.driver.get(*[page_key(scope, mark) for mark in missing]) if missing else ()
        for mark, stored in zip(missing, found, strict=True):
            page = decode_page(scope, mark, stored.data if stored is not None else b"")
            pages[mark] = self._kept(page_key(scope, mark), page)
        return {mark: pages[mark] for mark in marks}

    def _kept(self, key: str, page: Page) -> Page:
        self._pages[key] = page
        while len(self._pages) > _PAGES:
            self._pages.popitem(last=False)
        return page

    def change(
        self, scope: str, change: Change, seen: Seen | None = None, beside: KeyedLease | None = None
    ) -> Seen:
        """Carry out a change, once. `seen`: what the head was when last looked at. `beside`: a lease that
        must still be valid, if the head is another session's.

        ServerGone: it may have been carried out or not.
        """
        patience, lost, refused = ServerWait(), False, 0  # lost: the reply to an attempt
        former: dict[str, Tag | None] = {}
        looked: Tag | None = None  # at what was stale
        while True:
            try:
                seen = seen or self.read(scope)
                if beside is not None and not self.driver.atomic:
                    beside.announce(scope)  # now: a later owner makes this tag a former one
                try:
                    step = change(seen.head)
                except Stale as stale:
                    if looked == seen.tag:
                        raise stale.error from None
                    looked, seen = seen.tag, None
                    continue
                if step is None:
                    return replace(seen, changed=True) if lost else seen
                written = self.attempt(scope, seen, step, beside)
                if written is not None:
                    return written
                relied = {head_key(scope): seen.tag} | (beside.guard if beside is not None else {})
                if relied == former:
                    raise lost_before(scope)
                lost, refused, former = False, refused + 1, relied
                if beside is not None:
                    beside.check()
                time.sleep(random.random() * _PAUSES[min(refused, len(_PAUSES)) - 1])  # others change it, too
            except ServerGone:
                lost = True
                if patience.over():
                    raise
            seen = None

    def attempt(self, scope: str, seen: Seen, step: Step, beside: KeyedLease | None = None) -> Seen | None:
        """Replace what was seen; return None if that has changed, or something else does not hold."""
        driver, key = self.driver, head_key(scope)
        head, puts, drops = step.head, [*step.puts], [*step.drops]
        encoded = head.encode()
        if head.is_full(encoded):
            head, page, over = head.turned(head.epoch)
            encoded = head.encode()
            drops += [page_key(scope, mark) for mark in over]
            if page is not None:
                puts.append(Put(page_key(scope, page[0]), page[1]))
                self._kept(page_key(scope, page[0]), head.pages[page[0]])
        guards = {key: seen.tag}
        own = Put(key, encoded, fresh=False)
        if driver.atomic:
            guards |= beside.guard if beside is not None else {}
            done = driver.batch([own, *puts], drops, guards=guards, needs=step.needs)
        else:
            if puts:  # under marks of this save alone: to write them once more does no harm
                driver.batch([put._replace(fresh=False) for put in puts])
            done = driver.batch([own], guards=guards)
            if done is not None and drops:
                driver.batch([], drops)
        if done is None:
            return None
        return Seen(head, done.tag, synced=done.synced, changed=True)


def lost_before(scope: str) -> CheckpointError:
    """Return what to raise where a head is as it was seen, and a change of it is still refused."""
    return CheckpointError(
        f"{head_key(scope)} cannot be changed: something that was sent before is not in the store any more.",
        hint="The place has lost what it had confirmed, or something else deletes its keys: save again.",
        session=scope,
    )


class KeyedLease(HeldLease):
    """One in a keyed store."""

    def __init__(self, heads: Heads, where: str, session: str, seen: Seen, taken_from: Owner | None) -> None:
        self.mutex = threading.RLock()
        self.begun: set[str] = set()  # segments that have records
        self.finding: list[dict[str, Held]] = []  # what saves that are under way have found
        self._heads = heads
        self._seen: Seen | None = seen
        self._lasts = {seen.head.last}
        self._past: set[str] = set()  # announced heads that are written
        head = seen.head
        super().__init__(where, session, head.epoch, head.claim, taken_from, head.seconds)

    @property
    def live(self) -> bool:
        """Return whether it has not been released, as far as this process knows."""
        return not (self._released or self._over.is_set()) and self._process == os.getpid()

    @property
    def head(self) -> Head:
        """The head as it was when last looked at."""
        with self.mutex:
            return (self._seen or self._look()).head

    @property
    def guard(self) -> dict[str, Tag | None]:
        """The guard that holds as long as the session is ours, and no other process has changed its head."""
        with self.mutex:
            return {head_key(self.session): (self._seen or self._look()).tag}

    def check(self) -> None:
        self.not_released()
        with self.mutex:
            self._look()

    def change(self, change: Change) -> Seen:
        """Change the head as its owner; `Fenced` if it is another's by now."""
        self.not_released()

        def ours(head: Head) -> Step | None:
            self._still_ours(head)
            step = change(head)
            if step is None:
                return None
            last = nonce()
            self._lasts.add(last)
            return step._replace(head=self._without_past(step.head)._replace(last=last))

        with self.mutex:
            known, self._seen = self._seen, None  # after a failure nothing is known
            seen = self._seen = self._heads.change(self.session, ours, known)
            self._lasts = {seen.head.last}
            if seen is known:  # there was nothing to write, so it could not be refused
                self._look()
            return seen

    def announce(self, scope: str) -> None:
        """Note, where batches are not atomic, to which other heads it writes: the next owner has to know.

        The tags of those heads are read before: a head that another owner has closed since refuses the write.
        """
        self._past.discard(scope)
        self.change(
            lambda head: (
                None if scope in head.announced else Step(head._replace(announced=(*head.announced, scope)))
            )
        )

    def over(self, scope: str) -> None:
        """Note that this write is decided: the next change says so."""
        self._past.add(scope)

    def _look(self) -> Seen:
        seen = self._heads.read(self.session)
        self._still_ours(seen.head)
        self._seen = seen
        return seen

    def _still_ours(self, head: Head) -> None:
        if not self._is_ours(head):
            raise self.lost_to(None if head.epoch < self.epoch else head.epoch, head.owner)
        if head.last not in self._lasts:  # the place is in an older state: what it has confirmed is lost
            raise self.lost_to(None, None)

    def _is_ours(self, head: Head) -> bool:
        return (head.epoch, head.claim) == (self.epoch, self.claim)

    def _without_past(self, head: Head) -> Head:
        left = tuple([one for one in head.announced if one not in self._past])
        return head if left == head.announced else head._replace(announced=left)

    def _let_go(self) -> None:
        def end(head: Head) -> Step | None:
            if head.owner is None or not self._is_ours(head):
                return None  # also if the reply was lost
            gone = [lease_key(self.session, self.claim)]
            return Step(self._without_past(head)._replace(owner=None), drops=gone)

        with self.mutex:
            known, self._seen = self._seen, None
            self._heads.change(self.session, end, known)

    def _renew(self) -> bool:
        key, driver = lease_key(self.session, self.claim), self._heads.driver
        (shown,) = driver.get(key)
        head = self._heads.read(self.session).head
        if head.owner is None or not self._is_ours(head):
            return False
        guards = {key: shown and shown.tag}  # gone: it was taken over just now, and leaves no key behind
        driver.batch([Put(key, uuid.uuid4().bytes, fresh=False)], guards=guards, soft=True)
        return True


class Leases:
    """The leases of the sessions in one place."""

    def __init__(self, heads: Heads, where: str, seconds: float) -> None:
        self._heads, self._driver, self._where, self._seconds = heads, heads.driver, where, seconds

    def claim(self, session: str, *, take_over: bool) -> KeyedLease:
        """Become the owner."""
        sent: list[Head] = []  # it may be there, though no reply has said so
        try:
            return self._claimed(session, take_over, sent)
        except BaseException:  # a Ctrl-C, too
            if sent:
                KeyedLease(self._heads, self._where, session, Seen(sent[-1]), None).abandon()
            raise

    def _claimed(self, session: str, take_over: bool, sent: list[Head]) -> KeyedLease:
        claim, me = uuid.uuid4().hex, myself()
        patience, watch = ServerWait(), OwnerWatch(session)
        former: Owner | None = None
        meant: str | None = None  # the claim that may be taken over without a question
        while True:
            try:
                seen = self._heads.read(session)
                head = seen.head
                if head.claim == claim:  # the reply to it was lost
                    return KeyedLease(self._heads, self._where, session, seen, former)
                former = head.owner
                meant = head.claim if meant is None else meant
                asks = not take_over or head.claim != meant  # else another process was faster
                if former is not None and asks and not self._is_dead(session, seen, watch):
                    continue
                epoch = 1 + (self._highest_epoch(session) if seen.tag is None else head.epoch)
                pins = lasting(self._driver, head)
                claimed = head._replace(
                    epoch=epoch, claim=claim, owner=me, seconds=self._seconds, pins=pins, last=claim
                )
                drops = [lease_key(session, head.claim)] if head.claim else []
                step = Step(claimed, [Put(lease_key(session, claim), b"")], drops)
                sent.append(claimed)
                written = self._heads.attempt(session, seen, step)
            except ServerGone:
                if patience.over():
                    raise
                continue
            if written is not None:
                return KeyedLease(self._heads, self._where, session, written, former)
            sent.clear()

    def owner(self, session: str) -> Owner | None:
        """Return the living owner, without taking anything."""
        seen = self._heads.read(session)
        owner = seen.head.owner
        if owner is None or seen.head.claim in abandoned or is_gone(owner):
            return None
        return owner if is_near(owner) or not self._is_silent(session, seen) else None

    def _is_dead(self, session: str, seen: Seen, watch: OwnerWatch) -> bool:
        """Return whether the owner may be taken over; False: look again. Raise SessionBusy if it lives."""
        owner = seen.head.owner
        assert owner is not None
        if seen.head.claim in abandoned or is_gone(owner):
            return True
        (shown,) = self._driver.get(lease_key(session, seen.head.claim))
        mark, term = (seen.head.claim, shown and shown.tag), seen.head.seconds
        if watch.since is None:
            watch.over = not is_near(owner) and self._is_silent(session, seen)
        if watch.over:  # the place may have been away for so long: its owner is about to renew it
            return watch.silent(owner, mark, min(term, GRACE))
        most = _WAITED * (self._seconds or LEASE)
        silent = watch.silent(owner, mark, min(term, most))
        if silent and term > most:
            raise busy(session, owner)
        return silent

    def _is_silent(self, session: str, seen: Seen) -> bool:
        """Return whether nothing was heard of the owner for too long, by the place's clock."""
        (shown,) = self._driver.get(lease_key(session, seen.head.claim))
        heard = max((at for at in (shown and shown.at, seen.at) if at is not None), default=None)
        # A whole second more: that is how exact the clock of a bucket is.
        return heard is not None and self._driver.now() - heard > seen.head.seconds + 1

    def _highest_epoch(self, session: str) -> int:
        """Return the highest epoch in the keys of what else the session has, in case its head was lost."""
        found = (self._driver.keys(f"{kind}/{session}/") for kind in ("data", "journal"))
        names = (entry.key.split("/")[2] for entries in found for entry in entries)
        epochs = (int(name.partition("-")[0]) for name in names if is_mark(name) or segment_in(name))
        return max((epoch for epoch in epochs if epoch < _UNREACHED), default=0)


def lasting(driver: Driver, head: Head) -> dict[str, Pin]:
    """Return the pins of saves without a lease that may still be under way."""
    limit = driver.now() - LIFE if head.pins else 0.0
    return {mark: pin for mark, pin in head.pins.items() if not epoch_in(mark) and pin.at > limit}


def segment_in(name: str) -> tuple[int, int] | None:
    """Return a segment's epoch, and what it follows; None for what is no name of a segment."""
    found = _SEGMENT.match(name)
    return (int(found[1]), int(found[2])) if found is not None else None


def close_behind(heads: Heads, lease: KeyedLease) -> None:
    """Refuse every later write of former owners, whenever it was begun, where batches are not atomic.
    Ending in the middle does no harm: the head forgets what was to be closed only when it has been."""
    driver, head = heads.driver, lease.head
    for scope in head.announced:
        heads.change(scope, Step)  # as it is, under another tag: writers that saw it before are refused
    last = {entry.key.split("/")[2]: entry for entry in driver.keys(f"journal/{lease.session}/")}
    for name in sorted({*head.segments, *last}):
        its = segment_in(name)
        if its is not None and (its[0] < lease.epoch or not name.endswith(lease.claim)):
            _close_segment(driver, f"journal/{lease.session}/{name}", last.get(name))
    if head.announced:
        lease.change(lambda now: Step(now._replace(announced=())))


def _close_segment(driver: Driver, key: str, last: Entry | None) -> None:
    """Take the number after the last record that was listed, so that no other process does."""
    if last is not None and not last.size:
        return  # it was closed before
    name = last.key.rpartition("/")[2] if last is not None else ""
    number = int(name) + 1 if _NUMBER.match(name) else 0
    while driver.batch([Put(f"{key}/{number:010}", b"")]) is None:
        number += 1  # the former owner was faster


def left_behind(driver: Driver, session: str, head: Head) -> Iterator[Entry]:
    """Yield what no head names, of epochs before that of the head. List first, read the head then."""
    listed = list(driver.keys(f"data/{session}/"))
    if not listed:
        return
    marks = {mark for record in head.all() for mark in (record.mark, record.meta[0])}
    marks.update(head.pages)
    streams = {held.stream for held in (*head.held(), *head.freed)}
    limit: float | None = None
    for entry in listed:
        _, _, mark, *rest = entry.key.split("/")
        if not rest or not is_mark(mark):
            continue  # not of this package
        epoch, content = epoch_in(mark), f"{mark}/{rest[0]}"
        if mark in marks or content in streams or epoch >= max(1, head.epoch) or mark in head.pins:
            continue
        if not epoch:
            limit = driver.now() - LIFE if limit is None else limit
            if entry.at > limit:
                continue
        yield entry
