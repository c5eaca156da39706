"""Origin: the program that wrote a checkpoint, so that it can be run again."""

from __future__ import annotations

import os
from dataclasses import dataclass

from graflow_ckpt.interfaces.cli.finding import Place


@dataclass(frozen=True, slots=True)
class Origin:
    """The program that wrote a checkpoint, or why it cannot be run again."""

    target: str = ""
    arguments: tuple[str, ...] = ()
    called: str | None = None
    gone: str = ""


def origin_of(place: Place) -> Origin:
    """From verified metadata only: what is named here will be run."""
    file, argv = place.found.meta.get("file"), tuple(place.found.meta.get("argv") or ())
    if file is not None:
        if not os.path.isfile(file):
            return Origin(gone=f"its program {file} is gone")
        same = bool(argv) and os.path.abspath(argv[0]) == file
        return Origin(file, argv[1:], argv[0] if same else None)
    if argv and ":" in argv[0]:
        return Origin(argv[0].removesuffix(":"), argv[1:])
    return Origin(gone="it was written by no program file")
