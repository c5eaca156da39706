"""Attacks on the three files of a checkpoint, on the journal of a session, and on single values."""

from __future__ import annotations

import json
import pickle
import struct
import zlib
from functools import partial
from random import Random
from typing import Any

import msgpack
from blake3 import blake3

from graflow_ckpt.checkpoint.seals import LIVE, Chain, SealedCells, canonical, seal
from graflow_ckpt.checkpoint.values.codec import NotPlain, decode, encode
from graflow_ckpt.checkpoint.values.digest import CHUNK
from graflow_ckpt.core.facts import Live
from graflow_ckpt.stores.around.keys import Keyring
from tests.attacks.attempts import (
    HUGE,
    SAME,
    Breach,
    any_of,
    attack,
    cut,
    deep,
    edited,
    flipped,
    goes_on,
    loads,
    odd,
    replays,
    spelled,
)
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Parts, Scene, Thing, segment

_STRANGERS = Keyring({"stranger": b"9" * 32})
_FORGED = Keyring({"k1": b"9" * 32})  # the name of a key of the victim's, and another secret


def _meta(parts: Parts) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(parts["meta.json"])
    return document


def _with(parts: Parts, meta: Any) -> Parts:
    return parts | {"meta.json": json.dumps(meta).encode()}


def _fitted(parts: Parts, part: str, data: bytes) -> Parts:
    """The part, and a meta that has its size and digests; the seal is the old one."""
    meta = _meta(parts)
    chunks = [blake3(data[at : at + CHUNK]).hexdigest() for at in range(0, len(data), CHUNK)]
    meta["parts"][part] = {"size": len(data), "chunks": chunks}
    return _with(parts | {part: data}, meta)


def _part_flipped(part: str, scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    return loads(scene, parts | {part: flipped(rng, parts[part])})


attack("bytes of the values are changed")(partial(_part_flipped, "pkl"))
attack("bytes of the control facts are changed")(partial(_part_flipped, "state.json"))
attack("bytes of the meta are changed")(partial(_part_flipped, "meta.json"))


@attack("a part is cut off, moved or made longer")
def part_cut(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    part = rng.choice(list(parts))
    return loads(scene, parts | {part: cut(rng, parts[part])})


@attack("a field of the meta says something else")
def meta_edited(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    return loads(scene, _with(parts, edited(rng, _meta(parts))))


@attack("the meta is spelled in another way")
def meta_spelled(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    part = rng.choice(("meta.json", "state.json"))
    return loads(scene, parts | {part: spelled(rng, json.loads(parts[part]))})


@attack("a part of another checkpoint of the session")
def part_of_another(scene: Scene, rng: Random) -> str:
    parts, other = scene.of("victim", 3), scene.of("victim", rng.choice((1, 2)))
    part = rng.choice(list(parts))
    stage = _meta(parts)["stage"]
    other["meta.json"] = other["meta.json"].replace(_meta(other)["stage"].encode(), stage.encode())
    return loads(scene, parts | {part: other[part]})


@attack("a part of another session")
def part_of_another_session(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    part = rng.choice(("pkl", "state.json"))
    data = scene.of("other", rng.choice((1, 2, 3)))[part]
    return loads(scene, rng.choice((parts | {part: data}, _fitted(parts, part, data))))


@attack("a gadget in the place of the values")
def gadget(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    data = GADGETS[rng.choice(list(GADGETS))]
    if rng.random() < 0.3:
        data = data.ljust(len(parts["pkl"]), b".")
    if rng.random() < 0.3:
        data += parts["pkl"]
    return loads(scene, rng.choice((parts | {"pkl": data}, _fitted(parts, "pkl", data))))


@attack("a gadget in values that were changed a little")
def gadget_within(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    data, at = GADGETS[rng.choice(list(GADGETS))][:-1], rng.randrange(len(parts["pkl"]))
    return loads(scene, _fitted(parts, "pkl", parts["pkl"][:at] + data + parts["pkl"][at:]))


@attack("the seal is forged")
def forged(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    parts = _fitted(parts, "pkl", GADGETS[rng.choice(list(GADGETS))])
    meta = _meta(parts)
    match rng.randrange(6):
        case 0:
            meta = seal(meta, _FORGED)
        case 1:
            meta["seal"] = blake3(canonical(meta), key=bytes(32)).hexdigest()
        case 2:
            meta["seal"] = blake3(canonical(meta)).hexdigest()
        case 3:  # of a journal's, by a leaked chain
            meta["seal"] = Chain(b"9" * 32, b"victim/1/2").next(canonical(meta)).hex() * 2
        case 4:
            meta["seal"] = odd(rng)
        case _:
            meta["seal"] = rng.choice(
                ("", "00" * 32, meta["seal"].upper(), meta["seal"][:-1], meta["seal"] + "0")
            )
    return loads(scene, _with(parts, meta))


@attack("the seal is taken away")
def stripped(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    if rng.random() < 0.5:
        parts = _fitted(parts, "pkl", GADGETS[rng.choice(list(GADGETS))])
    meta = _meta(parts)
    for name in rng.choice((("seal",), ("key_id",), ("seal", "key_id"))):
        del meta[name]
    return loads(scene, _with(parts, meta))


@attack("a stranger's key has sealed it")
def of_a_stranger(scene: Scene, rng: Random) -> str:
    parts = _fitted(scene.of("victim", 3), "pkl", GADGETS[rng.choice(list(GADGETS))])
    ring = _STRANGERS
    if rng.random() < 0.5:
        ring = Keyring(
            {rng.choice(("", "\x1b[2J", "x" * 70_000, "../k1", "K1", "k1 ", "k1\0", "\ud800")): b"9" * 32}
        )
    meta = seal(_meta(parts) | {"host": odd(rng)}, ring)
    return loads(scene, _with(parts, meta))


@attack("sizes that nobody has memory for")
def bomb_of_sizes(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    meta = _meta(parts)
    part = rng.choice(("pkl", "state.json"))
    meta["parts"][part]["size"] = rng.choice(HUGE)
    if rng.random() < 0.5:
        meta["parts"][part]["chunks"] *= rng.choice((2, 1000))
    meta = rng.choice((meta, seal(meta, _FORGED), seal(meta, _STRANGERS)))
    return loads(scene, _with(parts, meta))


@attack("brackets in brackets")
def bomb_of_brackets(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    inside = deep(rng)
    whole = parts["meta.json"][:-1] + b', "deep": ' + inside + b"}"
    part = rng.choice(("meta.json", "state.json"))
    return loads(scene, parts | {part: rng.choice((inside, whole))})


@attack("a schema that nobody has")
def of_another_schema(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    part = rng.choice(("meta.json", "state.json"))
    document = json.loads(parts[part])
    document["schema_version"] = rng.choice(
        ("2.0", "0.9", "1", 1, 1.0, None, [], {}, ["1.0"], "1.0 ", "\x1b[2J")
    )
    return loads(scene, parts | {part: json.dumps(document).encode()})


@attack("a part is missing")
def part_missing(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 3)
    missing = rng.choice((("pkl",), ("state.json",), ("pkl", "state.json")))
    path = scene.path()
    scene.store.delete(path)
    return loads(scene, {part: data for part, data in parts.items() if part not in missing})


@attack("the newest checkpoints of a session are another session's")
def of_another_session(scene: Scene, rng: Random) -> str:
    numbers = [n for n in (1, 2, 3) if n == 3 or rng.random() < 0.7]
    try:
        for number in numbers:
            parts = scene.of("other", rng.choice((1, 2, 3)))
            scene.plant(scene.path(number), parts, _meta(parts)["stage"])
        return goes_on(scene)
    finally:
        for number in numbers:
            scene.put_back(number)


@attack("bytes that checkpoints share are changed")
def contents_changed(scene: Scene, rng: Random) -> str:
    if scene.plant_contents is None:
        return SAME  # each checkpoint has its own here
    spoil = rng.choice(
        (flipped, cut, lambda rng, data: GADGETS[rng.choice(list(GADGETS))].ljust(len(data), b"."))
    )
    undo = scene.plant_contents(lambda data: spoil(rng, data))
    try:
        return loads(scene, scene.of("victim", 3))
    finally:
        undo()


assert RING.ids == ("k1",)


# --- attacks on the journal of a session ------------------------------------------------


_HEAD = struct.Struct("<2sII16s")


def frames(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        size = _HEAD.size + _HEAD.unpack_from(raw, at)[1]
        found.append(raw[at : at + size])
        at += size
    return found


def frame(payload: bytes, mac: bytes) -> bytes:
    """Whole as far as one without the key can tell."""
    return _HEAD.pack(b"GJ", len(payload), zlib.crc32(payload), mac) + payload


attack("bytes of the journal are changed")(
    lambda scene, rng: replays(scene, 1, 2, flipped(rng, scene.segment))
)


attack("the journal is cut, moved or made longer")(
    lambda scene, rng: replays(scene, 1, 2, cut(rng, scene.segment))
)


@attack("records are left out, doubled or in another order")
def records_moved(scene: Scene, rng: Random) -> str:
    head, *rest = frames(scene.segment)
    rest = rng.choice((rng.sample(rest, len(rest)), rng.sample(rest, 3), [*rest, rng.choice(rest)], rest[1:]))
    return replays(scene, 1, 2, b"".join(rng.choice(([head, *rest], rest))))


@attack("records of another line of epochs, or of another place")
def records_replayed(scene: Scene, rng: Random) -> str:
    ops = [(n, [("put", "step", b"\x63", -1)]) for n in range(3, 6)]
    session, epoch, after = rng.choice(
        (("victim", 2, 2), ("victim", 1, 0), ("other", 1, 2), ("victim/1", 2, 2))
    )
    foreign = segment(session, epoch, after, ops)
    mine = frames(scene.segment)
    raw = rng.choice((foreign, scene.segment + foreign, b"".join(mine[:3]) + b"".join(frames(foreign)[1:])))
    return replays(scene, 1, 2, raw)


@attack("the journal under another name")
def journal_renamed(scene: Scene, rng: Random) -> str:
    epoch, after = rng.choice(((1, 3), (1, 0), (1, 4), (2, 2), (7, 2), (2**40, 2)))
    return replays(scene, epoch, after, scene.segment)


@attack("a gadget in a record")
def gadget_in_record(scene: Scene, rng: Random) -> str:
    live = msgpack.ExtType(1, GADGETS[rng.choice(list(GADGETS))])
    payload = msgpack.packb([3, 0.0, ("put", "live", live, -1)])
    if rng.random() < 0.2:
        payload = pickle.dumps(payload)
    whole = frames(scene.segment)
    at = rng.randrange(1, len(whole))
    mac = rng.choice((bytes(16), rng.randbytes(16), whole[at][10:26]))
    return replays(scene, 1, 2, b"".join([*whole[:at], frame(payload, mac), *rng.choice(([], whole[at:]))]))


@attack("a journal that takes for ever to look through")
def flood(scene: Scene, rng: Random) -> str:
    size = rng.choice((60_000, 400_000))
    beginning = _HEAD.pack(b"GJ", size * rng.choice((10, 12)), 0, bytes(16))
    end = rng.choice((b"", bytes(size * 26), scene.segment))
    return replays(scene, 1, 2, scene.segment + b"GJ" + beginning * size + end)


@attack("the journal names a key that is not here")
def journal_key(scene: Scene, rng: Random) -> str:
    name = rng.choice((b"", b"stranger", b"\x1b[2J", b"\xff" * 70_000, b"k1\0"))
    _, *rest = frames(scene.segment)
    return replays(scene, 1, 2, b"".join([frame(name, rng.randbytes(16)), *rest]))


# --- attacks on single values -----------------------------------------------------------


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


attack("bytes of a cell are changed")(lambda scene, rng: _unpacks(rng.choice((flipped, cut))(rng, _TRUE)))


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


attack("bytes of a plain value are changed")(
    lambda scene, rng: _decodes(rng.choice((flipped, cut))(rng, rng.choice(_PLAIN)))
)


@attack("a plain value that declares more than there is")
def plain_bomb(scene: Scene, rng: Random) -> str:
    size = rng.choice((2**16, 2**31, 2**32 - 1)).to_bytes(4, "big")
    code = bytes([rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 127, 255))])
    depth = rng.choice((100, 1000, 100_000))
    return _decodes(
        any_of(
            rng,
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
    )


def nested(rng: Random, depth: int) -> bytes:
    """A tuple (or a set) in a tuple in a tuple: each is decoded by a call within a call."""
    data, code = b"\xc0", rng.choice((2, 3, 4))
    for _ in range(min(depth, 3000)):
        data = b"\xc9" + (len(data) + 1).to_bytes(4, "big") + bytes([code]) + b"\x91" + data
    return data
