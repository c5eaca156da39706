"""Attachments: files that a session refers to. Their bytes stay where they are; what they were is kept.

`ctx.attach(path)` commits, with the task, a plain value under a name of its own: path, size, and the digest
of the bytes (of its chunks, if there are several, as contents are named). When the session continues in a
process, each is read again and compared: a result that was made of another file is not the session's. With
changed="reuse" differences are only logged.
Not here: files that are to be kept; put their bytes into the channel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import IO, Any, Final

from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.checkpoint.values.contents import name_of
from graflow_ckpt.checkpoint.values.digest import CHUNK, DigestingSink, Out, digest_of
from graflow_ckpt.core.errors import AttachmentChanged, CheckpointCorrupt, CheckpointError
from graflow_ckpt.core.facts import Cell

ATTACHED: Final = ".__attached__"

log = logging.getLogger("graflow_ckpt.checkpoint")


@dataclass(frozen=True, slots=True)
class Attachment:
    """One file as it was when it was attached."""

    path: str
    size: int
    digest: str

    def open(self) -> IO[bytes]:
        """Open the file for reading; AttachmentChanged if it is not that file any more."""
        why = self.differs()
        if why is not None:
            raise _changed("", [f"{self.path} {why}"])
        return open(self.path, "rb")

    def differs(self) -> str | None:
        """Return how the file differs; None if it is as it was."""
        try:
            size = os.path.getsize(self.path)
            if size == self.size:
                return None if _digest(self.path) == self.digest else "has other bytes"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        return f"has {size} bytes, and had {self.size}"


def attach(path: str | os.PathLike[str]) -> Attachment:
    """Return the file as it is now."""
    place = os.path.abspath(os.fspath(path))
    try:
        before = os.stat(place)
        attachment = Attachment(place, before.st_size, _digest(place))
        after = os.stat(place)
    except OSError as error:
        raise CheckpointError(
            f"{place} cannot be attached: {error.strerror or error}.",
            hint="Attach a file that can be read here, and that is finished.",
            path=place,
        ) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CheckpointError(
            f"{place} cannot be attached: it is being written.", hint="Close it first.", path=place
        )
    return attachment


# Any: a plain value, which becomes codec bytes.
def record(attachment: Attachment) -> tuple[str, dict[str, Any]]:
    """Return under which name it is kept, and as what."""
    return attachment.path + ATTACHED, asdict(attachment)


def check(session: str, values: Iterable[tuple[str, Cell]], *, reuse: bool) -> None:
    """Raise AttachmentChanged if a file is not what it was; with `reuse` that is only logged."""
    found = [_of(name, cell) for name, cell in values if name.endswith(ATTACHED)]
    different = [f"{one.path} {why}" for one in found if (why := one.differs()) is not None]
    if different and not reuse:
        raise _changed(session, different)
    for line in different:
        log.warning("session %s goes on although %s", session, line, extra={"session": session})


def _of(name: str, cell: Cell) -> Attachment:
    try:
        said = decode(cell) if isinstance(cell, bytes) else None
        return Attachment(said["path"], said["size"], said["digest"])  # type: ignore[index]  # TypeError below
    except (KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{name} is not what an attachment looks like.", name=name) from error


def _changed(session: str, different: list[str]) -> AttachmentChanged:
    of = f" of session {session}" if session else ""
    return AttachmentChanged(
        f"Attached files{of} are not what they were: {'; '.join(different)}.",
        hint="Put them back, go back to an older checkpoint, or go on all the same: --changed=reuse.",
        session=session,
        files=tuple(different),
    )


def _digest(path: str) -> str:
    """Digest chunk after chunk, each while the next is read."""
    with open(path, "rb", buffering=0) as file, DigestingSink(Out()) as sink:
        while piece := file.read(CHUNK):
            sink.write(piece)
        chunks = sink.finish().chunks
    return name_of(chunks) if chunks else digest_of(b"")
