"""What a new owner does before it begins: close to a former one whatever it may still be at.

    announced names     their objects are changed: a late conditional put has seen something else
    open segments       their next number is taken by an empty frame; also of those that have been begun
                        (alive/…) and are not in the head, for it was put back to an older state
    data, contents      what no record points at is removed

Promise: after `close_behind` no write of a former owner succeeds, whenever it was begun; ending in the
middle does no harm, because the head forgets what was to be closed only when it has been.
Not here: the session's own checkpoints; the claim itself has closed those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_head import OPEN, Head, Span
from graflow_ckpt.stores.objects_journal import close_segment
from graflow_ckpt.stores.objects_lease import ObjectLease
from graflow_ckpt.stores.objects_named import Names
from graflow_ckpt.stores.objects_names import NAMED, alive_key, data_key, target_of
from graflow_ckpt.stores.objects_orphans import LIFE, contents_among, unheld

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
