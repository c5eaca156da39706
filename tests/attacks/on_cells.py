"""Attacks on single values: cells of sessions on a server, and the bytes of plain values."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack

from graflow_ckpt.checkpoint.seals.cells import LIVE, SealedCells
from graflow_ckpt.checkpoint.values.codec import decode, encode
from graflow_ckpt.checkpoint.values.kinds import NotPlain
from graflow_ckpt.core.facts import Live
from graflow_ckpt.stores.around.keys import Keyring
from tests.attacks.attempts import SAME, Breach, attack
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Scene, Thing
from tests.attacks.spoiling import cut, flipped

_CELLS = SealedCells("victim", RING)
_TRUE = _CELLS.pack("value", Live(Thing(1)))


def _unpacks(data: bytes) -> str:
    cell = _CELLS.unpack("value", data)
    if isinstance(cell, Live):
        if cell.value != Thing(1):
            raise Breach(f"a pickle was opened that nobody had sealed: {cell.value!r:.500}")
        return SAME
    return _decodes(cell)


def _decodes(data: bytes) -> str:
    """Anybody may write plain values; then they are what plain values can be, and nothing else."""
    _check_plain(decode(data))
    return SAME


def _check_plain(value: Any) -> None:
    try:
        encode(value)
    except NotPlain as error:
        if "too deep" not in str(error):  # lists in lists are only so many lists
            raise Breach(f"a {type(value)} came out of plain bytes") from error


@attack("bytes of a cell are changed")
def cell_flipped(scene: Scene, rng: Random) -> str:
    return _unpacks(rng.choice((flipped, cut))(rng, _TRUE))


@attack("a cell of another session")
def cell_of_another(scene: Scene, rng: Random) -> str:
    session = rng.choice(("other", "victi", "victim2", "v" * 200))
    return _unpacks(SealedCells(session, RING).pack("value", Live(Thing(2))))


@attack("a cell of another place in the session")
def cell_of_another_place(scene: Scene, rng: Random) -> str:
    place = rng.choice(
        ("=other", "=valu", "=value2", "value", "result", "data value", "rng", "task value", "proof")
    )
    return _unpacks(_CELLS.pack("value", Live(Thing(2)), place))


@attack("a cell with a gadget in it")
def gadget_in_cell(scene: Scene, rng: Random) -> str:
    data = GADGETS[rng.choice(list(GADGETS))]
    own = Keyring({rng.choice(("k1", "stranger", "x" * 64)): b"9" * 32})
    head = LIVE + bytes([rng.randrange(256)]) + b"k1"
    made = (data, LIVE + data, head + bytes(16) + data, SealedCells("victim", own).seal(data, "=value"))
    return _unpacks(rng.choice(made))


_PLAIN = [
    encode(value)
    for value in (
        None, 7, 2**70, -1.5, "text", b"bytes", [1, [2, [3]]], {"a": {1: (2, 3)}}, {1, 2}, frozenset({"x"}),
        1j, (1, (2, (3, "x")), {"k": {1, 2}}),
    )
]  # fmt: skip


@attack("bytes of a plain value are changed")
def plain_flipped(scene: Scene, rng: Random) -> str:
    return _decodes(rng.choice((flipped, cut))(rng, rng.choice(_PLAIN)))


@attack("a plain value that declares more than there is")
def plain_bomb(scene: Scene, rng: Random) -> str:
    size = rng.choice((2**16, 2**31, 2**32 - 1)).to_bytes(4, "big")
    code = bytes([rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 127, 255))])
    depth = rng.choice((100, 1000, 100_000))
    return _decodes(
        rng.choice(
            (
                lambda: b"\xdd" + size,
                lambda: b"\xdd" + size + b"\xdd" + size * 3,
                lambda: b"\xdf" + size,
                lambda: b"\xdb" + size,
                lambda: b"\xc6" + size + b"x",
                lambda: b"\xc9" + size + code,
                lambda: b"\x91" * depth + b"\xc0",
                lambda: b"\x81\xa1a" * depth + b"\xc0",
                lambda: msgpack.packb(msgpack.ExtType(code[0] & 127, rng.randbytes(rng.randrange(40)))),
                lambda: nested(rng, depth),
            )
        )()
    )


def nested(rng: Random, depth: int) -> bytes:
    """A tuple (or a set) in a tuple in a tuple: each is decoded by a call within a call."""
    data, code = b"\xc0", rng.choice((2, 3, 4))
    for _ in range(min(depth, 3000)):
        data = b"\xc9" + (len(data) + 1).to_bytes(4, "big") + bytes([code]) + b"\x91" + data
    return data
