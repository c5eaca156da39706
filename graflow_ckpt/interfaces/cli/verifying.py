"""Verifying checkpoints, one after the other, with a bar if there is somebody to watch it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from random import SystemRandom

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound, NoSession
from graflow_ckpt.interfaces.cli.bars import along
from graflow_ckpt.interfaces.cli.finding import checkpoint_path
from graflow_ckpt.interfaces.cli.manner import Document
from graflow_ckpt.stores import open_store, store_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one checkpoint."""

    path: str
    what: str  # good or bad
    error: str = ""  # the name of the error
    why: str = ""
    size: int | None = None  # of its values

    def document(self) -> Document:
        found = asdict(self)
        found["verdict"] = found.pop("what")
        return found


def paths_of(store: str, what: Sequence[str]) -> list[str]:
    """The checkpoints that are meant; nothing: all of the store."""
    if not what:
        return sorted(path for path, _ in open_store(store).list())
    paths: list[str] = []
    for name in what:
        path = checkpoint_path(name)
        found = [path] if path else sorted(path for path, _ in _of_session(store, name))
        if not found:
            raise _nothing(store, name)
        paths += found
    return list(dict.fromkeys(paths))


def _of_session(store: str, name: str) -> Iterator[tuple[str, bytes]]:
    return iter(()) if os.sep in name or name.endswith(".pkl") else open_store(store).list(name)


def _nothing(store: str, name: str) -> CheckpointError | NoSession:
    if os.sep in name or name.endswith(".pkl"):
        return CheckpointNotFound(f"There is no checkpoint {name}.", path=name)
    return NoSession(
        f"{name!r} is neither a checkpoint nor a session in {store}.",
        hint="--store names another folder.",
        session=name,
    )


def any_of(paths: Sequence[str], count: int | None) -> Sequence[str]:
    """So many of them by chance, in their order; None: all."""
    if count is None or count >= len(paths):
        return paths
    return sorted(SystemRandom().sample(paths, count), key=paths.index)


def verdicts(paths: Sequence[str], *, show: bool) -> Iterator[Verdict]:
    """Each is read once, from end to end."""
    opened = cache(open_store)
    for path in along(paths, "verifying", show=show and len(paths) > 1):
        try:
            store = opened(store_of(path))
            _, size = archive.check(store, Keyring.for_store(store), path)
        except CheckpointError as error:
            yield Verdict(path, "bad", type(error).__name__, str(error))
        else:
            yield Verdict(path, "good", size=size)
