"""Ways to spoil bytes, by a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

HUGE = (2**31, 2**32 - 1, 2**53, 2**63, 2**64, 10**18, 10**400, -1, -(2**63), 0)
DEEP = 100_000


def flipped(rng: Random, data: bytes) -> bytes:
    """A few bytes are others."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        made[rng.randrange(len(made))] ^= rng.randrange(1, 256)
    return bytes(made)


def cut(rng: Random, data: bytes) -> bytes:
    """Some are missing, doubled, moved, or there are more of them."""
    a, b = sorted((rng.randrange(len(data)), rng.randrange(len(data) + 1)))
    return rng.choice(
        (
            lambda: data[:a],
            lambda: data[b:],
            lambda: data[:a] + data[b:],
            lambda: data[:b] + data[a:],
            lambda: data[a:] + data[:a],
            lambda: data + rng.randbytes(rng.randrange(1, 200)),
            lambda: data[:a] + bytes(b - a) + data[b:],
            lambda: b"",
        )
    )()


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
    return rng.choice(
        (
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
    )()


def deep(rng: Random) -> bytes:
    """Brackets in brackets."""
    depth = rng.choice((500, 990, 5_000, DEEP))
    return rng.choice((b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
