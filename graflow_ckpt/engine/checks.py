"""GRAFLOW_CKPT_CHECK=1: who changes a live value that was handed out read-only is named.

Digested when it is handed out and when the body has ended, so this is for tests: it reads every
such value twice. A value that somebody has on loan meanwhile, or commits, is left alone.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from graflow_ckpt.checkpoint.pickles import live_digest
from graflow_ckpt.core.errors import NotStorable, ReadOnlyChanged
from graflow_ckpt.core.values import Cell, Version


def enabled() -> bool:
    return os.environ.get("GRAFLOW_CKPT_CHECK", "") not in ("", "0")


class Values(Protocol):
    """What is asked of a session."""

    def read(self, name: str) -> tuple[Cell, Version, tuple[Cell, ...]] | None: ...

    def on_loan(self) -> list[str]: ...


class Watch:
    """The live values that one attempt may look at and must not change."""

    def __init__(self, values: Values, task: str) -> None:
        self._values = values
        self._task = task
        self._given: dict[str, tuple[Any, Version, bytes]] = {}

    def given(self, name: str, value: Any, version: Version) -> None:
        if name not in self._given and name not in self._values.on_loan():
            digest = _digest(value)
            if digest:
                self._given[name] = (value, version, digest)

    def lent(self, name: str) -> None:
        """The attempt has got it itself and may change it."""
        self._given.pop(name, None)

    def check(self) -> ReadOnlyChanged | None:
        """The error of the first one that is not as it was."""
        for name, (value, version, before) in self._given.items():
            found = self._values.read(name)
            settled = found is not None and found[1] == version and name not in self._values.on_loan()
            if settled and _digest(value) != before:
                return ReadOnlyChanged(
                    f"Task {self._task!r} changed {name!r}, which it had read-only: that would be lost.",
                    hint="Work on a copy, or get it from the channel without readonly=True.",
                    task=self._task,
                    name=name,
                )
        return None


def _digest(value: Any) -> bytes:
    try:
        return live_digest(value)
    except NotStorable:  # durability="none": nothing that can be compared
        return b""
