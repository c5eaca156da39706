"""Attacks on what is only looked at: inert pickles, expressions, lists, statistics, and what `trust` shows.

A bad meta must not keep anybody from seeing the good ones, nor make the wrong ones go.
"""

from __future__ import annotations

import io
import json
from functools import cache
from random import Random
from typing import Any

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.care.inventory import inventory
from graflow_ckpt.checkpoint.care.pruning import Guard, plan
from graflow_ckpt.checkpoint.model import CheckpointMetadata, parse
from graflow_ckpt.checkpoint.retention import DeleteOnSuccess, KeepLast, OfAll
from graflow_ckpt.checkpoint.values import inert
from graflow_ckpt.core import conditions
from graflow_ckpt.core.errors import GraflowError
from tests.attacks.attempts import SAME, Breach, attack
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import RING, Scene
from tests.attacks.spoiling import cut, deep, edited, flipped, odd, spelled


class _Bytes(io.BytesIO):
    """A part as a store gives it."""

    @property
    def size(self) -> int:
        return self.getbuffer().nbytes


@attack("a pickle that is looked at without being opened")
def looked_at(scene: Scene, rng: Random) -> str:
    data = rng.choice((GADGETS[rng.choice(list(GADGETS))], scene.of("victim", 3)["pkl"]))
    if rng.random() < 0.7:
        data = rng.choice((flipped, cut))(rng, data)
    value: Any = inert.load(_Bytes(data))  # type: ignore[arg-type]  # its readinto takes more than is needed
    inert.weigh(value)
    inert.plainer(value)
    return SAME


_WORDS = (
    "a", "b.c", "b['c']", "n", "len", "max(", "min(", "sum(", "(", ")", "[", "]", ",", ".", "+", "-", "*",
    "**", "//", "%", "<", "==", "and", "or", "not", "in", "is", "if", "else", "for", "lambda:", ":=", "'x'",
    "9" * 50, "1e99", "__class__", "__import__('os')", "a.__init__", "f'{a}'", "{", "}", ":", "*a", "**b",
    "await", "0", "1", "2", "()",
)  # fmt: skip


class _Loud:
    """An object of a class that nobody vouches for."""

    def __eq__(self, other: object) -> bool:
        from tests.attacks import canary

        canary.sing("compared")
        return True

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        from tests.attacks import canary

        canary.sing("asked")
        return True

    __len__ = __lt__ = __contains__ = __add__ = __getattr__ = lambda self, *_: self.__bool__()


@cache
def _values() -> dict[str, Any]:
    return {"a": _Loud(), "b": {"c": [1, 2, 3]}, "n": 7}


@attack("an expression that wants more than it may")
def expression(scene: Scene, rng: Random) -> str:
    text = rng.choice(
        (
            lambda: " ".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, 12))),
            lambda: "(" * rng.choice((50, 5000)) + "a",
            lambda: "not " * 400 + "n",
            lambda: "-" * 1900 + "n",
            lambda: "9**" * rng.choice((3, 300)) + "9",
            lambda: "'x'" + "+'x'" * 300,
            lambda: "b.c" + "[0:]" * 400,
            lambda: rng.choice(
                ("a == 1", "a or 1", "not a", "a in b", "a + a", "len(a)", "a.b", "[a] == [1]", "a < a")
            ),
            lambda: "\0",
            lambda: rng.choice(
                ("().__class__", "a.__dict__", "(lambda: 1)()", "[x for x in b]", "n.real", "'{}'.format")
            ),
        )
    )()
    conditions.parse(text).evaluate(_values())
    return SAME


# --- those who look without opening -----------------------------------------------------


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
