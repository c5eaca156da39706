"""Origin: the program that wrote a checkpoint, so that it can be run again."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from graflow_ckpt.checkpoint import archive, inert
from graflow_ckpt.core.redaction import HIDDEN
from graflow_ckpt.interfaces.cli.finding import Place, by_path, by_session
from graflow_ckpt.interfaces.cli.manner import Manner


@dataclass(frozen=True, slots=True)
class Origin:
    """The program that wrote a checkpoint, or why it cannot be run again."""

    target: str = ""
    arguments: tuple[str, ...] = ()
    called: str | None = None
    gone: str = ""


def in_its_folder(manner: Manner, place: Place) -> Place:
    """Change to the working folder that the session was started in, where its program finds its files."""
    folder = place.found.meta.get("cwd")
    if not isinstance(folder, str) or os.path.realpath(folder) == os.path.realpath("."):
        return place
    whole = place.store if "://" in place.store else os.path.abspath(place.store)
    path = place.found.path
    found = by_path(os.path.abspath(path) if "://" not in path else path) if place.named else None
    try:
        os.chdir(folder)
    except OSError:
        manner.note(f"its folder {folder} is gone; the working folder is {os.getcwd()}")
        return place
    manner.note(f"in folder {folder}")
    return replace(found, store=whole) if found else by_session(whole, place.session)


def argv_of(place: Place) -> tuple[str, ...]:
    """Return the arguments of the program, with the secrets that only the values hold. No code is run."""
    argv = tuple(place.found.meta.get("argv") or ())
    if not any(HIDDEN in word for word in argv):
        return argv
    payload = archive.open_values(place.kept_in, place.found, inert.load)
    return tuple(archive.unredacted(place.found, payload).meta["argv"])


def origin_of(place: Place) -> Origin:
    """From verified metadata only: what is named here will be run."""
    file, argv = place.found.meta.get("file"), argv_of(place)
    if file is not None:
        if not os.path.isfile(file):
            return Origin(gone=f"its program {file} is gone")
        same = bool(argv) and os.path.abspath(argv[0]) == file
        return Origin(file, argv[1:], argv[0] if same else None)
    if argv and ":" in argv[0]:
        return Origin(argv[0].removesuffix(":"), argv[1:])
    return Origin(gone="it was written by no program file")
