"""Sizes of checkpoints that have contents in common: each content counts once.

`shared` of a Cut says what it holds, as its unverified meta tells. Not here: what a store adds of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Sized(Protocol):
    """A Cut, as far as it has a size."""

    @property
    def size(self) -> int: ...

    @property
    def shared(self) -> Mapping[str, int]: ...


class Taken:
    """What checkpoints take together, one added after the other."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, cut: Sized) -> int:
        """How many bytes more it is with this one."""
        new = [name for name in cut.shared if name not in self._seen]
        self._seen.update(new)
        return cut.size + sum(cut.shared[name] for name in new)


def bytes_of(cuts: Iterable[Sized]) -> int:
    taken = Taken()
    return sum(taken.add(cut) for cut in cuts)


def shared_in(contents: object, scope: str = "") -> dict[str, int]:
    """Names and sizes of what a meta says it holds; it may be damaged. In each scope they are others."""
    entries = contents if isinstance(contents, list) else []
    found = [(entry.get("name"), entry.get("size")) for entry in entries if isinstance(entry, dict)]
    sizes = {name: size for name, size in found if isinstance(name, str) and type(size) is int and size > 0}
    return {f"{scope}/{name}": size for name, size in sizes.items()} if scope else sizes
