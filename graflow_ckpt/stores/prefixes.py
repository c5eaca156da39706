"""Prefixes of addresses: what is wrapped around a store, and in which order.

    encrypted+sqlite:///runs.db                 the store, and one wrapper around it
    compressed+encrypted+s3://bucket/runs       what is written is compressed first, then encrypted
    tenant.acme+postgresql://host/database      a wrapper with an argument, in which %2B is a plus

Paths in such a store begin with the same words, so that a path leads to the store that it is in. A word
counts only in front of an address: a file called `encrypted+x.pkl` is a file, and a folder of such a name is
refused as a store, for a user that asks for it expects something else.
Not here: what the wrappers do; each is a class that has `of(inner, argument)` (wrapper.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

WRAPPERS: dict[str, tuple[str, str]] = {
    "cached": ("graflow_ckpt.stores.around.cached", "Cached"),
    "compressed": ("graflow_ckpt.stores.around.encoded", "Compressed"),
    "encrypted": ("graflow_ckpt.stores.around.encoded", "Encrypted"),
    "fallback": ("graflow_ckpt.stores.around.fallback", "Fallback"),
    "retry": ("graflow_ckpt.stores.around.retrying", "Retrying"),
    "tenant": ("graflow_ckpt.stores.around.tenant", "Tenant"),
}
"""The words, and where the class of each is."""

_LAYER = re.compile(r"(?P<word>[A-Za-z]+)(?:\.(?P<argument>[^+/:?#@]*))?\+")


class Layer(NamedTuple):
    """One wrapper, as an address asks for it."""

    word: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.word}.{quote(self.argument, safe='')}+" if self.argument else f"{self.word}+"


def divided(text: str) -> tuple[tuple[Layer, ...], str]:
    """Return the wrappers, the outermost first, and what they are around. None, if no address follows."""
    layers: list[Layer] = []
    rest = text
    while (found := _LAYER.match(rest)) is not None and found["word"].lower() in WRAPPERS:
        layers.append(Layer(found["word"].lower(), unquote(found["argument"] or "")))
        rest = rest[found.end() :]
    return (tuple(layers), rest) if layers and is_address(rest) else ((), text)


def unwrapped(text: str) -> str:
    """Return the address or path without what is wrapped around its store."""
    return divided(text)[1]


def prefix_of(text: str) -> str:
    """Return what is wrapped around it, as it is written; "" if nothing is."""
    return "".join(map(str, divided(text)[0]))


def begins_like_one(text: str) -> bool:
    """Return whether it has the word of a wrapper and no address behind it."""
    found = _LAYER.match(text)
    return found is not None and found["word"].lower() in WRAPPERS and not divided(text)[0]


def is_address(text: str) -> bool:
    return "://" in text or text.partition("?")[0].lower() == "memory:"
