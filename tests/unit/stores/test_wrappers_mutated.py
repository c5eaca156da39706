"""Whatever is changed behind a wrapper: what comes back is what was written, or an error with a name.

Seeded, so that a failure comes again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.core.errors import CheckpointError, JournalDamaged
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import encryption
from graflow_ckpt.stores.compressed import Compressed
from graflow_ckpt.stores.encrypted import Encrypted
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.tenant import Tenant
from graflow_ckpt.testing.trios import all_of, owning, put, read, writer

RING = Keyring({"k": bytes(range(32))})
COUNT = 400
ODD: list[Any] = [None, 1, -1, 2**70, 1.5, "", [], {}, "x" * 50, True, [[[1]]], {"a": 1}, "\u00e9\ud800"]
WRAPPED: dict[str, Callable[[CheckpointStore], CheckpointStore]] = {
    "encrypted": lambda inner: Encrypted(inner, RING),
    "compressed": Compressed,
    "all": lambda inner: Tenant(Compressed(Encrypted(inner, RING)), "acme"),
}


def changed(rng: random.Random, before: bytes) -> bytes:
    """One bit, one number, or a piece that is gone, added, moved or repeated."""
    data = bytearray(before)
    at, other, size = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 40)
    match rng.randrange(7):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + size]
        case 2:
            data[at:at] = rng.randbytes(size)
        case 3:
            del data[at:]
        case 4:
            data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f"])
        case 5:
            data[at : at + size] = data[other : other + size]
        case _:
            del data[:at]
    return bytes(data)


def changed_document(rng: random.Random, raw: bytes) -> bytes:
    """A meta in which something is something else."""
    document = found = json.loads(raw)
    while True:
        key = rng.choice(list(found))
        if not isinstance(found[key], dict) or rng.random() < 0.3:
            break
        found = found[key]
    found[key] = rng.choice(ODD)
    return json.dumps(document).encode()


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_trio_that_was_changed_is_the_same_or_refused(kind: str) -> None:
    rng, inner = random.Random(7), MemoryStore("memory://mutated")
    inner.forget()
    path = put(WRAPPED[kind](inner), "best", "one", size=150_000)
    good = read(WRAPPED[kind](inner), path)
    below = next(iter(inner.list()))[0]
    parts = {part: all_of(inner.open(below, part, "one")) for part in ("pkl", "state.json")}
    parts["meta.json"] = inner.meta(below)

    refused = 0
    for _ in range(COUNT):
        part = rng.choice(list(parts))
        change = changed_document if part == "meta.json" and rng.random() < 0.6 else changed
        written = {**parts, part: change(rng, parts[part])}
        inner.put(below, [(name, writer(data)) for name, data in written.items()], lease=None, stage="one")
        store = WRAPPED[kind](inner)
        try:
            found = (
                store.meta(path),
                all_of(store.open(path, "pkl", "one")),
                all_of(store.open(path, "state.json", "one")),
            )
        except CheckpointError:
            refused += 1
        else:
            same = found == (good.meta, good.values, good.state)
            assert same or kind == "compressed"  # there the seal and the digests find it
        assert len(list(store.list())) == len(store.newest(5)) == 1

    assert refused > COUNT / 2


def test_a_journal_that_was_changed_is_its_beginning_or_damaged_or_refused() -> None:
    rng, inner = random.Random(3), MemoryStore("memory://mutated")
    inner.forget()
    store = Encrypted(inner, RING)
    with owning(store) as lease:
        writer, segment = journal.Writer(RING, "s", lease.epoch, 0), store.journal(lease, 0)
        records = [journal.pack(number, 1.0, []) for number in range(1, 7)]
        for frame in (writer.head, *map(writer.frame, records)):
            segment.append(frame)
        segment.close()
    _, _, raw = next(inner.segments("s"))

    damaged = 0
    for _ in range(COUNT):
        found = list[bytes]()
        try:
            frames = encryption.read_segment(RING, ("s", lease.epoch, 0), changed(rng, raw))
            found += journal.read(RING, "s", lease.epoch, 0, frames)
        except JournalDamaged:
            damaged += 1
        except CheckpointError:
            continue
        assert found == records[: len(found)]
    assert damaged > COUNT / 10
