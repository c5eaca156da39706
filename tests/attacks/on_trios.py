"""Attacks on the three files of a checkpoint."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

from blake3 import blake3

from graflow_ckpt.checkpoint.seals.seal import Chain, canonical, seal
from graflow_ckpt.checkpoint.values.digest import CHUNK
from graflow_ckpt.stores.around.keys import Keyring
from tests.attacks.attempts import SAME, attack, goes_on, loads
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Parts, Scene
from tests.attacks.spoiling import HUGE, cut, deep, edited, flipped, odd, spelled

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
