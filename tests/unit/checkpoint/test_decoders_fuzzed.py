"""Every decoder of stored bytes gives a value or a CheckpointError, whatever the bytes are."""

from __future__ import annotations

import datetime
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import journal, model
from graflow_ckpt.checkpoint.program import parcel
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.checkpoint.values.codec import NotPlain, _passes, decode, encode
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, TooLarge
from graflow_ckpt.stores.around.keys import Keyring
from tests.golden.make import VALUES

ENCODED = [encode(value) for value in VALUES.values()]
RING = Keyring({"golden": bytes(32)})


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes of which some were replaced, taken away or doubled."""
    at = st.integers(0, len(whole))
    return st.builds(lambda a, b, new: whole[:a] + new + whole[b:], at, at, st.binary(max_size=6))


def ext(code: int, payload: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, payload)))


PAYLOADS = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode()))


@given(st.integers(0, 20), PAYLOADS)
@example(13, b"\x05f4,(3"[:6])
@example(13, b"\x04(1,)")
@example(7, bytes(9) + b"z.")
@example(7, bytes(9) + b"zEurope")
def test_extension_types(code: int, payload: bytes) -> None:
    with suppress(CheckpointError):
        decode(ext(code, payload))


@pytest.mark.parametrize("data", [ext(13, b"\x03,,,"), ext(13, b"\x04f4,("), ext(7, bytes(9) + b"zEurope")])
def test_a_dtype_or_a_zone_that_is_none_is_damage(data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        decode(data)


def metas(document: dict[str, Any]) -> None:
    with suppress(CheckpointError):
        model.CheckpointMetadata.from_document("p", model.parse("p", json.dumps(document).encode(), "meta"))
    assert isinstance(model.lacking(document), tuple)


def segments(raw: bytes) -> None:
    with suppress(CheckpointError):
        list(journal.read(RING, "s", 1, 0, raw))
    assert isinstance(journal.keys_of(raw), set)
    assert journal.is_later(raw) in (True, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
FIELDS = st.sampled_from(["schema_version", "needs", "session_id", "epoch", "parts"])
RECORD = journal.pack(3, 1.0, [("put", "a", b"\x01", -1)])
DECODERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], object]]] = {
    "plain values": (st.one_of(st.binary(max_size=80), st.sampled_from(ENCODED).flatmap(damaged)), decode),
    "records of a journal": (st.one_of(st.binary(max_size=60), damaged(RECORD)), journal.unpack),
    "segments of a journal": (st.binary(max_size=200), segments),
    "metas": (st.dictionaries(FIELDS, JSON), metas),
    "metas that are no JSON": (st.binary(max_size=60), lambda raw: model.parse("p", raw, "meta")),
    "programs": (
        st.one_of(st.binary(max_size=60), st.binary(max_size=30).map(lambda rest: b"2\n{}" + rest)),
        parcel.unpack,
    ),
    "sealed cells": (
        st.binary(max_size=60).map(lambda rest: b"\xc1" + rest),
        lambda data: SealedCells("s", RING).unpack("name", data),
    ),
}


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.data())
def test_whatever_the_bytes_are_they_are_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    stored, read = DECODERS[kind]

    with suppress(CheckpointError):
        read(data.draw(stored))


@given(st.one_of(st.binary(max_size=60), damaged(b"one:" + b"0" * 64)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_key_files(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(raw)

    with suppress(CheckpointError):
        Keyring.load({"GRAFLOW_CKPT_KEY_FILE": str(file)})


# --- what a decoder may spend -----------------------------------------------------------


SIZE = 8 << 20


def of(count: int) -> bytes:
    return b"\xdd" + struct.pack(">I", count)


BOMBS = {
    "empty lists": of(SIZE) + b"\x90" * SIZE,
    "empty dicts": of(SIZE) + b"\x80" * SIZE,
    "short dicts": of(SIZE // 3) + b"\x81\0\0" * (SIZE // 3),
    "dicts in dicts": of(SIZE // 200) + (b"\x81\0" * 98 + b"\x80\0\0\0") * (SIZE // 200),
    "empty sets": of(SIZE // 3) + b"\xd4\x03\x90" * (SIZE // 3),
    "claims in claims": of(SIZE) * 900 + bytes(SIZE),
    "a claim of all": b"\xdd" + b"\xff" * 4 + bytes(SIZE),
    "tuples in tuples": b"".join(b"\xc9" + struct.pack(">I", SIZE) + b"\x02" for _ in range(90))
    + bytes(SIZE),
}

ATTACK = """
import resource, sys
from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.checkpoint.values.codec import decode
data = sys.stdin.buffer.read()
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (100 << 20), -1))
try:
    decode(SealedCells("s", None).unpack("x", data))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_small_bytes_that_would_fill_the_memory_are_refused(name: str) -> None:
    with pytest.raises(TooLarge, match=r"x of session s would take more than 4.. MiB in memory"):
        SealedCells("s", RING).unpack("x", BOMBS[name])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["short dicts", "claims in claims"])
def test_a_refusal_takes_no_memory(name: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", ATTACK], input=BOMBS[name], capture_output=True, check=False, timeout=120
    )

    assert found.stdout.decode().strip() == "TooLarge", found.stderr.decode()


LEGAL: dict[str, Callable[[], Any]] = {  # made when they are asked for: some take a second, and all the room
    "ten million integers of one byte": lambda: [7] * 10**7,
    "integers": lambda: [random.randrange(2**31) for _ in range(2 * 10**6)],
    "floats": lambda: [random.random() for _ in range(10**6)],
    "rows": lambda: [{"id": i, "name": f"row {i}", "share": i / 3, "good": True} for i in range(10**5)],
    "pairs": lambda: [(i, i + 1) for i in range(3 * 10**5)],
    "dates": lambda: [datetime.date(2000, 1, 1 + i % 28) for i in range(3 * 10**5)],
    "prices": lambda: [Decimal(i) / 100 for i in range(3 * 10**5)],
    "bytes": lambda: random.randbytes(4 << 20),
    "texts": lambda: ["x" * 50] * 10**5,
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_programs_keep_is_read_and_written(name: str) -> None:
    data = encode(LEGAL[name]())

    assert len(data) > 1 << 20
    assert SealedCells("s", RING).pack("x", data) == data
    assert SealedCells("s", RING).unpack("x", data) == data


def empty_lists(count: int) -> bytes:
    """A list of them, as `encode` would write it in seconds."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


def test_what_would_be_refused_when_read_is_refused_when_written() -> None:
    data = empty_lists(7 * 10**6)
    assert encode([[] for _ in range(70_000)]) == empty_lists(70_000)

    with pytest.raises(TooLarge, match=r"x would take more than 416 MiB in memory: its 7\.0 MB hold"):
        SealedCells("s", RING).pack("x", data)


PLAIN = st.recursive(
    st.sampled_from(list(VALUES.values())) | st.text() | st.integers(-(2**63), 2**64 - 1) | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_every_header_is_found_where_it_is(value: Any) -> None:
    """Behind any value the count is in step: an element too costly after it is seen."""
    try:
        whole = b"\x92" + encode(value) + of(2**31)
    except NotPlain:  # one object in two places
        return

    assert _passes(whole, 1 << 30)
    assert not _passes(whole[:-5], 1 << 30)
    decode(whole[1:-5])
