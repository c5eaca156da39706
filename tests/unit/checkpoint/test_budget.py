"""What plain bytes from a shared server may take in memory, before anything is made of them."""

from __future__ import annotations

import datetime
import random
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint import sealed
from graflow_ckpt.checkpoint.codec import decode, encode
from graflow_ckpt.checkpoint.kinds import NotPlain
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.core.errors import TooLarge
from graflow_ckpt.stores.keys import Keyring
from tests.golden.make import VALUES

RING = Keyring({"golden": bytes(32)})
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
from graflow_ckpt.checkpoint.sealed import SealedCells
from graflow_ckpt.checkpoint.codec import decode
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


LEGAL: dict[str, Any] = {
    "ten million integers of one byte": [7] * 10**7,
    "integers": [random.randrange(2**31) for _ in range(2 * 10**6)],
    "floats": [random.random() for _ in range(10**6)],
    "rows": [{"id": i, "name": f"row {i}", "share": i / 3, "good": True} for i in range(10**5)],
    "pairs": [(i, i + 1) for i in range(3 * 10**5)],
    "dates": [datetime.date(2000, 1, 1 + i % 28) for i in range(3 * 10**5)],
    "prices": [Decimal(i) / 100 for i in range(3 * 10**5)],
    "bytes": random.randbytes(4 << 20),
    "texts": ["x" * 50] * 10**5,
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_programs_keep_is_read_and_written(name: str) -> None:
    data = encode(LEGAL[name])

    assert len(data) > 1 << 20
    assert SealedCells("s", RING).pack("x", data) == data
    assert SealedCells("s", RING).unpack("x", data) == data


def test_what_would_be_refused_when_read_is_refused_when_written() -> None:
    data = encode([[] for _ in range(7 * 10**6)])

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

    assert sealed._passes(whole, 1 << 30)
    assert not sealed._passes(whole[:-5], 1 << 30)
    decode(whole[1:-5])
