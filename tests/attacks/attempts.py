"""What the victim does after an attack, and whether it got what its owner had left, or a named refusal.

`SAME` is for bytes that have changed and mean what they meant (JSON has many spellings). Anything else
that is neither that nor a refusal is a `Breach`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

from graflow_ckpt import _restore
from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.errors import GraflowError
from tests.attacks.scene import RING, Parts, Scene, dump, meaning, stage_of

SAME: Final = "same"
T = TypeVar("T")
Attack = Callable[[Scene, Random], str]
ATTACKS: dict[str, Attack] = {}
"""By what is done. Each does it, lets the victim try, and gives SAME or raises what the victim got."""


class Breach(AssertionError):
    """The attacker got something through."""


def attack(what: str) -> Callable[[Attack], Attack]:
    def add(made: Attack) -> Attack:
        assert what not in ATTACKS
        ATTACKS[what] = made
        return made

    return add


def loads(scene: Scene, parts: Parts, number: int = 3) -> str:
    """The bytes are planted, and the victim opens that checkpoint."""
    path = scene.path(number)
    try:
        stage = stage_of(parts)
    except (ValueError, KeyError, TypeError, RecursionError):
        stage = "planted"
    try:
        scene.plant(path, parts, stage if stage.isalnum() else "planted")
        list(scene.store.list())
        return _judged(scene, archive.load(scene.store, RING, path))
    finally:
        scene.put_back(number)


def _judged(scene: Scene, loaded: tuple[archive.Found, Any]) -> str:
    found = meaning(loaded)
    if found != scene.truth.get(loaded[0].meta.get("checkpoint_id", "")):
        raise Breach(f"something was opened that nobody had sealed: {found!r:.2000}")
    return SAME


def goes_on(scene: Scene) -> str:
    """The victim resumes its session; what it gets has to be its own newest cut."""
    reasons: list[GraflowError] = []
    for _, found in history.newest(scene.store, RING, "victim"):
        if not isinstance(found, archive.Found):
            reasons.append(found)
            continue
        opened = _restore.context_of(archive.open_values(scene.store, found))
        if found.meta["session_id"] != "victim":
            raise Breach("the session goes on from a checkpoint of another one")
        _judged(scene, (found, opened))
        if found.meta["sequence"] < 3 and not reasons:
            raise Breach(f"back to cut {found.meta['sequence']}, and not a word")
        break
    else:
        if not reasons:
            raise Breach("the session has checkpoints, and would begin anew without a word")
    if reasons:
        raise reasons[0]
    return SAME


def replays(scene: Scene, epoch: int, after: int, raw: bytes) -> str:
    """The bytes are planted as a journal, and the victim goes on from its cut with it.

    What a crash could have left as well, a journal that ends early, cannot be told from one.
    """
    if scene.plant_journal is None:
        return SAME
    scene.plant_journal("victim", epoch, after, raw)
    found = archive.find(scene.store, RING, scene.path())
    state = restore(found.facts, archive.open_values(scene.store, found))
    history.replay(scene.store, RING, state, found, "victim")
    if dump(state) not in scene.states:
        raise Breach(f"records were applied that nobody had written: {dump(state)!r:.2000}")
    return SAME


# --- ways to spoil bytes, by a seed -----------------------------------------------------


HUGE = (2**31, 2**32 - 1, 2**53, 2**63, 2**64, 10**18, 10**400, -1, -(2**63), 0)
DEEP = 100_000


def any_of(rng: Random, *ways: Callable[[], T]) -> T:
    """What comes of one of these ways."""
    return rng.choice(ways)()


def flipped(rng: Random, data: bytes) -> bytes:
    """A few bytes are others."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        made[rng.randrange(len(made))] ^= rng.randrange(1, 256)
    return bytes(made)


def cut(rng: Random, data: bytes) -> bytes:
    """Some are missing, doubled, moved, or there are more of them."""
    a, b = sorted((rng.randrange(len(data)), rng.randrange(len(data) + 1)))
    return any_of(
        rng,
        lambda: data[:a],
        lambda: data[b:],
        lambda: data[:a] + data[b:],
        lambda: data[:b] + data[a:],
        lambda: data[a:] + data[:a],
        lambda: data + rng.randbytes(rng.randrange(1, 200)),
        lambda: data[:a] + bytes(b - a) + data[b:],
        lambda: b"",
    )


def odd(rng: Random) -> Any:
    """Something that JSON can hold and nobody expects there."""
    return rng.choice(
        (
            None, True, False, 0, -1, 1e308, "", "x", "../../etc/passwd", "\0", "\x1b[2J", "\ud800",
            "x" * 70_000, [], {}, [[]], {"": {}}, [None] * 1000, rng.choice(HUGE), rng.random(),
            {"a": [{"b": "c"}]},
        )
    )  # fmt: skip


def edited(rng: Random, document: Any) -> Any:
    """One place of a document is another: changed, taken away, or new."""
    made = json.loads(json.dumps(document))
    here = made
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return made if here is not made else {"": odd(rng)}
        key = rng.choice(keys)
        if isinstance(here[key], (dict, list)) and here[key] and rng.random() < 0.7:
            here = here[key]
            continue
        match rng.randrange(4):
            case 0:
                del here[key]
            case 1 if isinstance(here, dict):
                here[str(odd(rng))[:50]] = odd(rng)
            case _:
                here[key] = odd(rng)
        return made


def spelled(rng: Random, document: Any) -> bytes:
    """JSON that some parser would take, and others not."""
    text = json.dumps(document)
    return any_of(
        rng,
        lambda: text.encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + text.encode(),
        lambda: text.replace("{", '{"session_id": "other", ', 1).encode(),
        lambda: (text[:-1] + ', "session_id": "other", "epoch": 99}').encode(),
        lambda: (text[:-1] + ', "new": NaN}').encode(),
        lambda: (text[:-1] + ', "epoch": 1e999}').encode(),
        lambda: (text[:-1] + ', "epoch": ' + "9" * 5000 + "}").encode(),
        lambda: (text[:-1] + ', "new": "' + "\\ud800" + '"}').encode(),
        lambda: text.encode().replace(b"victim", b"vict\xffim"),
        lambda: ("[" + text + "]").encode(),
        lambda: (text + text).encode(),
        lambda: b"null",
        lambda: b"",
        lambda: json.dumps(text).encode(),
    )


def deep(rng: Random) -> bytes:
    """Brackets in brackets."""
    depth = rng.choice((500, 990, 5_000, DEEP))
    return rng.choice((b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
