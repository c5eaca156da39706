"""Wrappers for tests: they do nothing beside."""

from __future__ import annotations

from graflow_ckpt.stores.around.wrapper import Wrapper


class Plain(Wrapper):
    """Takes any argument."""

    word, argued = "plain", True


class Other(Wrapper):
    """Takes none."""

    word = "other"
