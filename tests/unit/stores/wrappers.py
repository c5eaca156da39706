"""Wrappers for tests: they do nothing beside."""

from __future__ import annotations

from typing import Self

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around.wrapper import Wrapper


class Plain(Wrapper):
    """Takes any argument."""

    word = "plain"

    @classmethod
    def of(cls, inner: CheckpointStore, argument: str) -> Self:
        return cls(inner, argument)


class Other(Wrapper):
    """Takes none."""

    word = "other"
