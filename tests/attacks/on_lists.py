"""Attacks on those who look without opening: lists, statistics, pruning, and what `trust` shows.

A bad meta must not keep anybody from seeing the good ones, nor make the wrong ones go.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.inventory import inventory
from graflow_ckpt.checkpoint.model import CheckpointMetadata, parse
from graflow_ckpt.checkpoint.pruning import Guard, plan
from graflow_ckpt.checkpoint.retention import DeleteOnSuccess, KeepLast, OfAll
from graflow_ckpt.core.errors import GraflowError
from tests.attacks.attempts import SAME, Breach, attack
from tests.attacks.scene import RING, Scene
from tests.attacks.spoiling import cut, deep, edited, flipped, odd, spelled


def _bad(rng: Random, document: dict[str, Any]) -> bytes:
    return rng.choice(
        (
            lambda: flipped(rng, json.dumps(document).encode()),
            lambda: cut(rng, json.dumps(document).encode()),
            lambda: json.dumps(edited(rng, document)).encode(),
            lambda: spelled(rng, document),
            lambda: deep(rng),
            lambda: json.dumps(document | {"sequence": 9, "status": "completed"}).encode(),
            lambda: json.dumps({name: odd(rng) for name in document}).encode(),
        )
    )()


@attack("a list in which one is bad")
def listed(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 2)
    scene.plant(scene.path(2), parts | {"meta.json": _bad(rng, json.loads(parts["meta.json"]))}, "bad")
    try:
        errors = []
        for path, raw in scene.store.list():
            try:
                CheckpointMetadata.from_document(path, parse(path, raw, ".meta.json"))
            except GraflowError as error:
                errors.append(error)
        found = inventory(scene.store)
        going = set[str]()
        for retention in (KeepLast(1), OfAll(DeleteOnSuccess())):
            doomed = plan(Guard(scene.store, found, lambda: RING), retention, 2e9)
            going |= {cut.path for cut in doomed.cuts}
        good = {history.newest_path(scene.store, RING, session) for session in ("victim", "other")}
        if good != {scene.path(), scene.path(session="other")}:
            raise Breach(f"the newest good ones are {good}")
        if good & going:
            raise Breach("the newest good one is to be deleted")
        if errors:
            raise errors[0]
        return SAME
    finally:
        scene.put_back(2)


@attack("a checkpoint that somebody is asked to trust")
def shown(scene: Scene, rng: Random) -> str:
    parts = scene.of("victim", 2)
    meta = json.loads(parts["meta.json"])
    meta["stage"] = rng.choice((meta["stage"], "", "\0", "../" * 30 + "etc/passwd", "x" * 5000, odd(rng)))
    if rng.random() < 0.5:
        parts["pkl"] = flipped(rng, parts["pkl"])
    scene.plant(scene.path(2), parts | {"meta.json": json.dumps(edited(rng, meta)).encode()}, "bad")
    try:
        archive.described(scene.store, scene.path(2))
        return SAME
    finally:
        scene.put_back(2)
