"""What is compressed takes less room, comes back to the byte, and never grows beyond what it said."""

from __future__ import annotations

import json
import random
import resource
import struct
from collections.abc import Callable

import pytest
import zstandard

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.core.protocols import Sink
from graflow_ckpt.stores.around.compressed import BLOCK, Compressed
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.trios import all_of, meta_of, parts_of, put, put_meta, read, writer

HEAD = 12
BLOCK_HEAD = struct.Struct("<IIB")
Change = Callable[[bytes], bytes]


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore("memory://compressed-unit")
    store.forget()
    return store


@pytest.fixture
def store(inner: MemoryStore) -> Compressed:
    return Compressed(inner)


def put_values(store: Compressed, values: bytes) -> str:
    path = f"{store.folder}/best"

    def at_once(sink: Sink) -> None:
        sink.write(values)

    parts = [("pkl", at_once), ("state.json", writer(b"{}")), ("meta.json", writer(meta_of("one")))]
    store.put(path, parts, lease=None, stage="one")
    return path


def kept(inner: MemoryStore) -> bytes:
    return all_of(inner.open(f"{inner.folder}/best", "pkl", "one"))


def replaced(inner: MemoryStore, *, pkl: bytes | None = None, meta: bytes | None = None) -> None:
    path = f"{inner.folder}/best"
    parts = [("pkl", writer(kept(inner) if pkl is None else pkl)), ("state.json", writer(b"{}"))]
    parts.append(("meta.json", writer(inner.meta(path) if meta is None else meta)))
    inner.put(path, parts, lease=None, stage="one")


def values_of(store: Compressed) -> bytes:
    return all_of(Compressed(store.inner).open(f"{store.folder}/best", "pkl", "one"))


def test_what_repeats_itself_takes_less_room(inner: MemoryStore, store: Compressed) -> None:
    values = b"the same again and again;" * 100_000

    put_values(store, values)

    assert len(kept(inner)) < len(values) / 100
    assert values_of(store) == values


@pytest.mark.parametrize("kind", ["random", "packed already"])
def test_what_gains_nothing_stays_as_it_is(inner: MemoryStore, store: Compressed, kind: str) -> None:
    values = random.Random(1).randbytes(3_000_000)
    if kind == "packed already":
        words = random.Random(2).choices([b"alpha ", b"beta ", b"gamma "], k=2_000_000)
        values = zstandard.compress(b"".join(words))

    put_values(store, values)

    blocks = -(-len(values) // BLOCK)
    assert len(kept(inner)) == HEAD + blocks * BLOCK_HEAD.size + len(values)
    assert values_of(store) == values


def test_what_is_small_stays_as_it_is(inner: MemoryStore, store: Compressed) -> None:
    put_values(store, b"a" * 100)

    assert kept(inner)[-100:] == values_of(store) == b"a" * 100


def test_each_block_is_judged_by_itself(inner: MemoryStore, store: Compressed) -> None:
    noise = random.Random(3).randbytes(BLOCK)

    put_values(store, noise + bytes(BLOCK) + noise)

    assert 2 * BLOCK < len(kept(inner)) < 2 * BLOCK + 1000
    assert values_of(store) == noise + bytes(BLOCK) + noise


def test_what_was_there_before_is_read_as_it_is(inner: MemoryStore, store: Compressed) -> None:
    put(inner, "best", "one", size=5000)
    path = f"{store.folder}/best"

    assert read(store, path).stage == "one"
    assert [raw for _, raw in store.list("s")] == [inner.meta(f"{inner.folder}/best")]
    put_meta(store, "best", meta_of("one", sequence=2, size=5000), "one")  # sealed anew: its parts stay
    assert read(store, path).meta == meta_of("one", sequence=2, size=5000)
    assert read(Compressed(inner), path).stage == "one"


def test_a_meta_that_is_put_alone_keeps_what_is_known_of_the_parts(store: Compressed) -> None:
    path = put(store, "best", "one", size=200_000)

    put_meta(store, "best", meta_of("one", sequence=2, size=200_000), "one")

    assert read(Compressed(store.inner), path).meta == meta_of("one", sequence=2, size=200_000)


# --- bombs and damage --------------------------------------------------------------------------


def block(data: bytes, *, size: int | None = None, how: int = 1) -> bytes:
    return BLOCK_HEAD.pack(len(data) if size is None else size, len(data), how) + data


def bomb(size: int) -> bytes:
    """A frame that grows to `size`, and says nothing of it."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    piece = bytes(1 << 20)
    return b"".join([*(compressor.compress(piece) for _ in range(size >> 20)), compressor.flush()])


def liar(size: int) -> bytes:
    """A frame that says that it grows to `size`, and holds almost nothing."""
    found = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(b"x" * 70_000))
    found[5:9] = b""  # the field of 4 bytes gives way to one of 8
    found[4] = (found[4] & 0x3F) | 0xC0
    return bytes(found[:5]) + struct.pack("<Q", size) + bytes(found[5:])


@pytest.mark.parametrize(
    "data",
    [
        block(bomb(256 << 20), size=BLOCK),
        block(bomb(256 << 20), size=256 << 20),
        block(bomb(256 << 20), size=200_000),
        block(liar(1 << 40), size=BLOCK),
        block(b"x", size=2**32 - 1, how=0),
        block(b"x" * 400, size=300, how=0),
        BLOCK_HEAD.pack(200_000, 2**32 - 1, 1),
        BLOCK_HEAD.pack(0, 0, 0) * 3,
        block(zstandard.compress(b"x" * 200), size=200_000),
        block(b"not packed at all, and yet it says so", size=200_000),
        block(zstandard.compress(b"x" * 200_000), size=200_000, how=2),
        b"",
        b"\x01\x02",
    ],
    ids=[
        "bomb", "a block beyond all bounds", "bomb in a small block", "a frame that lies", "endless block",
        "grows in a plain block",
        "endless kept", "empty blocks", "less than said", "not packed", "unknown way", "nothing", "torn",
    ],
)  # fmt: skip
def test_a_part_that_does_not_hold_what_it_says_is_corrupt(
    inner: MemoryStore, store: Compressed, data: bytes
) -> None:
    put_values(store, b"v" * 200_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    replaced(inner, pkl=kept(inner)[:HEAD] + data)

    with pytest.raises(CheckpointCorrupt, match="cannot be unpacked"):
        values_of(store)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # in KiB


def test_a_size_that_was_changed_does_not_count(inner: MemoryStore, store: Compressed) -> None:
    put_values(store, b"v" * 200_000)
    document = json.loads(inner.meta(f"{inner.folder}/best"))
    for size in (10, 2**60, -1, "x", None):
        document["compressed"]["sizes"]["pkl"] = size
        replaced(inner, meta=json.dumps(document).encode())

        with pytest.raises(CheckpointCorrupt):
            values_of(store)


@pytest.mark.parametrize(
    ("field", "value"),
    [("size", 2**50), ("size", 3), ("size", "x"), ("how", 7), ("meta", "no base64!"), ("tag", "zz"),
     ("sizes", 3)],
)  # fmt: skip
def test_a_changed_envelope_is_corrupt(
    inner: MemoryStore, store: Compressed, field: str, value: object
) -> None:
    path = put_values(store, b"v" * 1000)
    document = json.loads(inner.meta(f"{inner.folder}/best"))
    document["compressed"][field] = value
    replaced(inner, meta=json.dumps(document).encode())

    with pytest.raises(CheckpointCorrupt):
        Compressed(inner).meta(path)
    assert [raw for _, raw in store.list()] == [b""]


def test_a_field_outside_that_is_not_inside_is_corrupt(inner: MemoryStore, store: Compressed) -> None:
    path = put_values(store, b"v" * 1000)
    document = json.loads(inner.meta(f"{inner.folder}/best"))
    replaced(inner, meta=json.dumps({**document, "session_id": "t"}).encode())

    with pytest.raises(CheckpointCorrupt, match="outside"):
        Compressed(inner).meta(path)


def test_a_part_of_another_trio_is_corrupt(inner: MemoryStore, store: Compressed) -> None:
    put_values(store, b"v" * 1000)
    other = kept(inner)
    put_values(store, b"w" * 1000)

    replaced(inner, pkl=other)

    with pytest.raises(CheckpointCorrupt, match="with its meta"):
        values_of(store)


def test_what_a_writer_wrote_before_it_failed_is_not_kept(store: Compressed) -> None:
    path = put(store, "best", "one")

    def fail(sink: Sink) -> None:
        sink.write(bytes(3 * BLOCK))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.put(path, [("pkl", fail), *parts_of("two")[1:]], lease=None, stage="two")

    assert read(store, path).stage == "one"
