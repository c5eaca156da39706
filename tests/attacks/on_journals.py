"""Attacks on the journal of a session."""

from __future__ import annotations

import pickle
import struct
import zlib
from random import Random

import msgpack

from tests.attacks.attempts import attack, replays
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import Scene, segment
from tests.attacks.spoiling import cut, flipped

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


@attack("bytes of the journal are changed")
def journal_flipped(scene: Scene, rng: Random) -> str:
    return replays(scene, 1, 2, flipped(rng, scene.segment))


@attack("the journal is cut, moved or made longer")
def journal_cut(scene: Scene, rng: Random) -> str:
    return replays(scene, 1, 2, cut(rng, scene.segment))


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
