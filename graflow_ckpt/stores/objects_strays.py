"""Strays in a bucket: pieces that no checkpoint points at, and journals of sessions that have none.

What a session that runs may be at is left out, and what was written under a name of somebody's within a day:
whose save that is cannot be told. Not here: removing them (objects_fence.py, objects_orphans.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.objects_bucket import Bucket, Entry
from graflow_ckpt.stores.objects_head import Heads
from graflow_ckpt.stores.objects_names import NAMED, place_of
from graflow_ckpt.stores.objects_orphans import LIFE, contents_among, records_of_names, unheld
from graflow_ckpt.stores.objects_record import Record


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
