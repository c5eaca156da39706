"""The canary: whatever is called or made here has been run by bytes that nobody vouched for."""

from __future__ import annotations

from typing import Any

HEARD: list[str] = []
"""Why it sang; empty is what it has to stay."""


def sing(*why: Any) -> list[Any]:
    HEARD.append(repr(why))
    return []


class Bird:
    """Sings when it is made, when its state is set, and when something is put into it."""

    def __new__(cls, *why: Any) -> Bird:
        sing("made", *why)
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        sing("state", state)

    def append(self, item: Any) -> None:
        sing("append", item)

    def __setitem__(self, key: Any, value: Any) -> None:
        sing("item", key)
