"""Random state: that of `random`, numpy's legacy generator and torch's, whichever are loaded.

It is part of a session unless `rng=False`. Generators that a program makes itself (such as
`numpy.random.default_rng`) are values: they belong into the channel, or into the `state` of a loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from struct import pack, unpack
from typing import Any

from graflow_ckpt.checkpoint.values.codec import decode, encode

States = dict[str, Any]
"""The states of the generators that are loaded, as these give them: taken faster than a cell is made."""


def look() -> States:
    """Return the states now."""
    states: States = {}
    if (random := sys.modules.get("random")) is not None:
        states["random"] = random.getstate()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states["numpy"] = numpy.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
    return states


def cell_of(states: States) -> bytes:
    """Return them as one plain cell."""
    plain: dict[str, object] = {}
    if "random" in states:
        version, internal, gauss = states["random"]
        # as bytes: with a journal it is looked at after every task, and 625 integers take three times as long
        plain["random"] = [version, pack(f"<{len(internal)}I", *internal), gauss]
    if "numpy" in states:
        name, keys, position, has_gauss, gauss = states["numpy"]
        plain["numpy"] = [name, keys.tobytes(), int(position), int(has_gauss), float(gauss)]
    if "torch" in states:
        plain["torch"] = states["torch"].numpy().tobytes()
    return encode(plain)


def capture_random() -> bytes:
    """Return the state of every generator that is loaded, as one plain cell."""
    return cell_of(look())


def remember_random() -> Callable[[], None]:
    """Take the states as they are; the result puts them back."""
    states = look()

    def put_back() -> None:
        if "random" in states:
            sys.modules["random"].setstate(states["random"])
        if "numpy" in states:
            sys.modules["numpy.random"].set_state(states["numpy"])
        if "torch" in states:
            sys.modules["torch"].set_rng_state(states["torch"])

    return put_back


def restore_random(cell: bytes) -> None:
    """Put the generators back; a library that was loaded then is loaded now."""
    states = decode(cell)
    if "random" in states:
        import random

        version, internal, gauss = states["random"]
        random.setstate((version, unpack(f"<{len(internal) // 4}I", internal), gauss))
    if "numpy" in states:
        import numpy

        name, keys, position, has_gauss, gauss = states["numpy"]
        numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), position, has_gauss, gauss))
    if "torch" in states:
        import torch  # type: ignore[import-not-found]

        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
