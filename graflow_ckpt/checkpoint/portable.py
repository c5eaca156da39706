"""A portable file: checkpoints and journals of one store, to be carried to another.

    graflow-ckpt.json                           format, version, where it comes from, sessions and their lines
    cuts/{name}.pkl  .state.json  .meta.json    a checkpoint, byte for byte
    journals/{session}/{epoch}-{after}          a segment of a journal, byte for byte

It is a zip archive without compression, so that any tool can look at it and a part can be read where it lies;
its directory is written last, so that a file that was broken off is no archive at all. It appears under its
name when it is whole and on the disk. Nothing in it is taken on trust: seals and digests are those of
the store, and whoever reads from it verifies them as anywhere else.
Not here: what is written to another store (copying.py).
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final, Self

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.describing import library_version
from graflow_ckpt.checkpoint.model import NOT_JSON, Document
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound, SchemaUnsupported
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import Line, Owner, Readable, Source
from graflow_ckpt.stores.disk import refusing
from graflow_ckpt.stores.names import META, PARTS, base_of, session_in, session_of

FORMAT: Final = 1
_HEAD: Final = "graflow-ckpt.json"
_CUTS: Final = "cuts/"
_JOURNALS: Final = "journals/"
_BROKEN: Final = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
_PIECE: Final = 4 << 20
_SMALL: Final = 64 << 20
"""What is read in one piece, but for segments of journals: those grow until the next cut."""


class PortableFile:
    """The checkpoints of a file, to be read as if it were a store."""

    shared = False
    contents = None  # what it has is complete

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = os.fspath(file)
        with refusing("open", self.file):
            try:
                self._zip = zipfile.ZipFile(self.file)
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise self._no_such_file(str(error)) from error
        try:
            self._members = self._looked_through()
            self._head = self._parsed_head()
        except BaseException:
            self._zip.close()
            raise
        self.url = str(self._head["origin"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def sessions(self) -> tuple[str, ...]:
        """Those that are in it as a whole."""
        return tuple(self._head["sessions"])

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """All, or what a session has; there are no patterns here."""
        for name in sorted(self._members):
            if name.startswith(_CUTS) and name.endswith(f".{META}"):
                base = base_of(name.removeprefix(_CUTS))
                if session is not None and session_of(base) not in (None, session):
                    continue
                raw = self._read(name)
                if session is None or session_of(base) == session or session_in(raw) == session:
                    yield f"{base}.pkl", raw

    def meta(self, path: str) -> bytes:
        name = f"{_CUTS}{base_of(path)}.{META}"
        if name not in self._members:
            raise CheckpointNotFound(f"There is no checkpoint {path} in {self.file}.", path=path)
        return self._read(name)

    def open(self, path: str, part: str, stage: str) -> Source:
        name = f"{_CUTS}{base_of(path)}.{part}"
        if name not in self._members:
            raise CheckpointCorrupt(f"The checkpoint {path} in {self.file} lacks its {part}.", path=path)
        with self._reading(name):
            return _Member(self._zip.open(self._members[name]), self._members[name].file_size)

    def unsafe(self, path: str) -> str | None:
        """It is read once, and verified while it is read: who could have written it does not matter."""
        return None

    def owner(self, session: str) -> Owner | None:
        return None

    def lines(self, session: str) -> tuple[Line, ...]:
        return tuple(Line(int(epoch), int(at)) for epoch, at in self._head["sessions"].get(session, ()))

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        found = []
        for name in self._members:
            if name.startswith(f"{_JOURNALS}{session}/"):
                epoch, _, after = name.rpartition("/")[2].partition("-")
                found.append((int(epoch), int(after), name))
        for number, start, name in sorted(found):
            yield number, start, self._read(name)

    # --- within ------------------------------------------------------------------------

    def _looked_through(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.filename in members or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise self._no_such_file(f"{info.filename!r} is there twice, compressed or encrypted")
            members[info.filename] = info
        return members

    def _parsed_head(self) -> Document:
        try:
            head: Document = json.loads(self._read(_HEAD))
            found = head["format"]
            if found == FORMAT:
                for session, lines in head["sessions"].items():
                    check_session_id(session)
                    _ = [Line(int(epoch), int(sequence)) for epoch, sequence in lines]
                _ = [int(n) for name in self._members if name.startswith(_JOURNALS)
                     for n in name.rpartition("/")[2].split("-", 1)]  # fmt: skip
                if not isinstance(head["origin"], str):
                    raise TypeError(f"origin is a {type(head['origin']).__name__}")
                return head
        except (*NOT_JSON, KeyError, TypeError, AttributeError) as error:
            raise self._no_such_file(f"{_HEAD} is not what it should be ({error!r})") from error
        raise SchemaUnsupported(
            f"{self.file} has format {found}; this version reads format {FORMAT}.",
            hint="Upgrade graflow-ckpt here.",
            path=self.file,
        )

    def _read(self, name: str) -> bytes:
        try:
            info = self._members[name]
        except KeyError as error:
            raise self._no_such_file(f"it has no {name}") from error
        if info.file_size > (self._whole if name.startswith(_JOURNALS) else _SMALL):
            raise self._no_such_file(f"{name} has {info.file_size} bytes")
        with self._reading(name):
            return self._zip.read(info)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """The directory of an archive says where a member is; what is there is another question."""
        try:
            yield
        except _BROKEN as error:
            raise CheckpointCorrupt(f"{name} in {self.file} cannot be read: {error}.", path=name) from error

    @property
    def _whole(self) -> int:
        """The size of the file: whatever its directory says, nothing in it has more bytes than that."""
        return os.path.getsize(self.file)

    def _no_such_file(self, why: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"{self.file} is no file of checkpoints, or not a whole one: {why}.",
            hint="graflow-ckpt checkpoints export makes one.",
            path=self.file,
        )


class PortableWriter:
    """Writes one. As a context: the file is there when it ends well, and else nothing is."""

    def __init__(self, file: str | os.PathLike[str], *, replace: bool = False) -> None:
        self.file = os.path.abspath(os.fspath(file))
        self._replace = replace
        self._staged = f"{self.file}.{os.getpid()}.tmp"
        self._sessions: dict[str, list[tuple[int, int]]] = {}
        self._names: set[str] = set()
        self._origin = ""
        self._raw: IO[bytes]
        self._zip: zipfile.ZipFile

    def __enter__(self) -> Self:
        if os.path.lexists(self.file) and not self._replace:
            raise CheckpointError(
                f"{self.file} is there already.", hint="Give another name, or --force.", path=self.file
            )
        with refusing("create", self._staged):
            fd = os.open(self._staged, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._raw = open(fd, "w+b")
        self._zip = zipfile.ZipFile(self._raw, "w", zipfile.ZIP_STORED, allowZip64=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._zip.fp = None  # of a file that was given up no directory is written
            self._raw.close()
            with suppress(FileNotFoundError):
                os.unlink(self._staged)

    def cut(self, origin: Readable, keys: Keyring, path: str) -> int:
        """Add a checkpoint, verified; its size."""
        with refusing("write", self._staged):
            return archive.taken(origin, keys, path, lambda meta, part: self._add(origin, path, meta, part))

    def session(self, origin: Readable, session: str) -> None:
        """Add what a session has besides its checkpoints: how far it went back, and its journal."""
        self._origin = self._origin or origin.url
        self._sessions[session] = [(line.epoch, line.sequence) for line in origin.lines(session)]
        for epoch, after, raw in origin.segments(session):
            self._zip.writestr(self._info(f"{_JOURNALS}{session}/{epoch}-{after}"), raw)

    def _add(self, origin: Readable, path: str, meta: Document, part: Callable[[str], Source]) -> int:
        base, size = base_of(path.rpartition("/")[2]), 0
        if base in self._names:
            raise CheckpointError(
                f"Two checkpoints are called {base}, or it was written anew meanwhile.",
                hint="Export them one at a time.",
                path=path,
            )
        self._names.add(base)
        for name in PARTS:
            if name != META:
                size += self._pour(f"{_CUTS}{base}.{name}", part(name))
        self._zip.writestr(self._info(f"{_CUTS}{base}.{META}"), json.dumps(meta, separators=(",", ":")))
        self._origin = self._origin or origin.url
        return size

    def _pour(self, name: str, source: Source) -> int:
        size = 0
        info = self._info(name)
        info.file_size = source.size
        try:
            with self._zip.open(info, "w", force_zip64=True) as member:
                buffer = memoryview(bytearray(min(_PIECE, source.size)))
                while size < source.size:
                    count = source.readinto(buffer[: source.size - size])
                    member.write(buffer[:count])
                    size += count
        finally:
            source.close()
        return size

    @staticmethod
    def _info(name: str) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(name, time.localtime()[:6])
        info.external_attr = 0o600 << 16
        return info

    def _finish(self) -> None:
        head = {
            "format": FORMAT,
            "library": library_version(),
            "origin": self._origin,
            "sessions": self._sessions,
        }
        with refusing("write", self._staged):
            self._zip.writestr(self._info(_HEAD), json.dumps(head))
            self._zip.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            if self._replace:
                os.rename(self._staged, self.file)
            else:
                os.link(self._staged, self.file)  # a rename would take the place of one that came meanwhile
            folder = os.open(os.path.dirname(self.file), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


class _Member:
    """A part that lies in the file."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw: Any = raw  # zipfile's file has readinto; its type does not say so
        self.size = size

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            return int(self._raw.readinto(buffer))
        except _BROKEN as error:
            raise CheckpointCorrupt(f"What is in the file is not what was written: {error}.") from error

    def close(self) -> None:
        self._raw.close()
