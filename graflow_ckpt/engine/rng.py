"""Random state: `random`, numpy's legacy generator and torch's, whichever are loaded.

It is part of a session unless `rng=False`. Generators that a program makes itself (such as
`numpy.random.default_rng`) are values: they belong into the channel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from struct import pack, unpack

from graflow_ckpt.checkpoint.values.codec import decode, encode


def capture() -> bytes:
    """The state of every generator that is loaded, as one plain cell."""
    states: dict[str, object] = {}
    random = sys.modules.get("random")
    if random is not None:
        version, internal, gauss = random.getstate()
        # as bytes: with a journal it is looked at after every task, and 625 integers take three times as long
        states["random"] = [version, pack(f"<{len(internal)}I", *internal), gauss]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.get_state()
        states["numpy"] = [name, keys.tobytes(), int(position), int(has_gauss), float(gauss)]
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return encode(states)


def remember() -> Callable[[], None]:
    """Take the states as they are, which costs less than a cell; the result puts them back."""
    undo: list[Callable[[], None]] = []
    random = sys.modules.get("random")
    if random is not None:
        undo.append(partial(random.setstate, random.getstate()))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        undo.append(partial(numpy.set_state, numpy.get_state()))
    torch = sys.modules.get("torch")
    if torch is not None:
        undo.append(partial(torch.set_rng_state, torch.get_rng_state()))

    def put_back() -> None:
        for one in undo:
            one()

    return put_back


def restore(cell: bytes) -> None:
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
