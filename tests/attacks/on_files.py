"""Attacks on what is only looked at: inert pickles, expressions."""

from __future__ import annotations

import io
from functools import cache
from random import Random
from typing import Any

from graflow_ckpt.checkpoint import inert
from graflow_ckpt.core.conditions import parse
from tests.attacks.attempts import SAME, attack
from tests.attacks.gadgets import GADGETS
from tests.attacks.scene import Scene
from tests.attacks.spoiling import cut, flipped


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
    parse(text).evaluate(_values())
    return SAME
