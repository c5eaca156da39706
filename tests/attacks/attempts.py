"""What the victim does after an attack, and whether it got what its owner had left, or a named refusal.

`SAME` is for bytes that have changed and mean what they meant (JSON has many spellings). Anything else
that is neither that nor a refusal is a `Breach`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.snapshot import restore
from graflow_ckpt.core.errors import GraflowError
from tests.attacks.scene import RING, Parts, Scene, dump, meaning, stage_of

SAME: Final = "same"
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
        payload = archive.open_values(scene.store, found)
        if found.meta["session_id"] != "victim":
            raise Breach("the session goes on from a checkpoint of another one")
        _judged(scene, (found, payload))
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
    state = restore(found.facts, archive.open_values(scene.store, found).payload)
    history.replay(scene.store, RING, state, found, "victim")
    if dump(state) not in scene.states:
        raise Breach(f"records were applied that nobody had written: {dump(state)!r:.2000}")
    return SAME
